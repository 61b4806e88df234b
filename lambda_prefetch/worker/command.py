"""``superdl worker``: run functions for a coordinator, on this machine or in actors on a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import resource
import signal
import socket
import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from superdl.lambda_prefetch.worker.slots import Slots, WorkerSettings
from superdl.lambda_prefetch.worker.template import FUNCTION, Template
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.display import keep_secrets_out_of_logs
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.host import usable_cores
from superdl.super_wire.protocol import host_and_port, installed_version, socket_path

if TYPE_CHECKING:
    import argparse

_log = logging.getLogger(__name__)

_MAX_SLOTS = 1024
_SETTINGS = {field.name for field in fields(WorkerSettings)}
_REACH_S, _POLL_S, _REMIND_S = 5.0, 1.0, 30.0  # for Ray's head, its actors, and warnings about pending actors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--coordinator", help="host:port or unix:/path (default: SUPER_COORDINATOR)")
    words = "concurrent requests, each in its own process (default: SUPER_SLOTS, or the number of cores)"
    add("--slots", type=int, help=words)
    add("--name", help="name in the coordinator's log (default: host and process id)")
    add("--nice", type=int, default=0, help="niceness of the slots; 19 is the lowest priority (default: 0)")
    words = "exit if the coordinator does not respond for S seconds (default: 300)"
    add("--linger", dest="linger_s", type=float, default=300.0, metavar="S", help=words)
    words = "after SIGTERM, let running requests finish for up to S seconds (default: 30)"
    add("--grace", dest="grace_s", type=float, default=30.0, metavar="S", help=words)
    add("--function", default=FUNCTION, help=f"module:attribute that the slots run (default: {FUNCTION})")
    add("--store", default="", help="the coordinator's store, if accessible here (default: SUPER_STORE)")
    add("--store-only", action="store_true", help="only restore and save, for functions that run elsewhere")
    add("--metrics-listen", default="", help="host:port that serves metrics to Prometheus (default: none)")
    add("--health-listen", default="", help="host:port that serves /healthz and /livez without TLS")
    words = "run workers on the Ray cluster at ADDRESS, such as HEAD:6379 (default: this machine's cluster)"
    add("--ray", nargs="?", const="auto", metavar="ADDRESS", help=words)
    add("--num", type=int, default=1, help="with --ray: number of workers (default: 1)")
    add("--num-cpus", type=float, default=1.0, help="with --ray: CPUs for each worker (default: 1)")


def run(arguments: argparse.Namespace, template: Template | None = None) -> int:
    """Run a worker, or workers on a Ray cluster, until SIGTERM. Return the exit code.

    If ``template`` is ``None``, the worker starts a template to fork its slots from.
    """
    level = logging.getLevelNamesMapping().get(os.environ.get("SUPER_LOG_LEVEL", ""), logging.INFO)
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(message)s")
    keep_secrets_out_of_logs()
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR", "")
    if not address:
        raise ConfigError("no coordinator is set: use --coordinator host:port, or set SUPER_COORDINATOR")
    if not host_and_port(address)[1] and socket_path(address) is None:
        raise ConfigError(f"--coordinator must be host:port or unix:/path, not {address!r}")
    cores = usable_cores() if arguments.ray is None else max(1, int(arguments.num_cpus))
    slots = str(arguments.slots or os.environ.get("SUPER_SLOTS") or cores)
    if not slots.isdecimal() or not 1 <= int(slots) <= _MAX_SLOTS:
        raise ConfigError(f"--slots (SUPER_SLOTS) must be from 1 to {_MAX_SLOTS}, not {slots[:20]!r}")
    options = {name: value for name, value in vars(arguments).items() if name in _SETTINGS}
    name = arguments.name or f"{platform.node()}-{os.getpid()}"
    settings = WorkerSettings(**(options | {"coordinator": address, "name": name, "slots": int(slots)}))
    if arguments.ray is None:
        return _work(settings, template)
    if settings.metrics_listen or settings.health_listen:
        raise ConfigError(
            "--ray runs several workers, so it cannot be used with --metrics-listen or --health-listen"
        )
    if arguments.num < 1 or arguments.num_cpus <= 0:
        raise ConfigError("--num must be at least 1, and --num-cpus must be above 0")
    return _run_on_ray(arguments.ray, arguments.num, arguments.num_cpus, settings)


def _work(settings: WorkerSettings, template: Template | None = None) -> int:
    """Work until SIGTERM or the coordinator's goodbye. Return the exit code."""
    # An actor reads its node's credentials. None pass through Ray.
    credentials = CoordinatorCredentials.from_environment(os.environ)
    credentials.check_suffices(host_and_port(settings.coordinator)[0])
    if settings.store:
        os.environ["SUPER_STORE"] = settings.store  # for the slots
    return asyncio.run(_serve(replace(settings, credentials=credentials), template))


async def _serve(settings: WorkerSettings, template: Template | None) -> int:
    stop, connected, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    slots = Slots(settings.function, settings.slots, nice=settings.nice, template=template)
    starting, stack, start_error = asyncio.create_task(slots.start()), contextlib.ExitStack(), ""
    try:
        # In a thread, because slots are starting.
        await asyncio.to_thread(_import_calling)
        from superdl.lambda_prefetch.settings import store_in
        from superdl.lambda_prefetch.worker.metrics import check_listening, listen
        from superdl.lambda_prefetch.worker.stream import serve

        check_listening(settings)
        settings = replace(settings, store=store_in(os.environ))
        if settings.store_only and not settings.store:
            raise ConfigError("a worker with --store-only needs a store. Set --store (or SUPER_STORE)")
        await listen(settings, slots, connected, stack)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            return 0
        try:
            starting.result()
        except SuperError as error:
            start_error = str(error)
        return await serve(settings, slots, stop, start_error, connected)
    finally:
        stack.close()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await slots.close()


def standby() -> tuple[list[str], Template]:
    """Import a worker's modules, then read a line of JSON with its ``arguments`` and ``environment``.

    Sets the environment. Returns the arguments and a template for the slots. The arguments are empty if the
    input ended because the coordinator ended.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the coordinator has not raised its own yet
    # The slots inherit these.
    with contextlib.suppress(Exception):  # slots report the error
        from superdl.lambda_prefetch.handler import own_fingerprint

        own_fingerprint()
    installed_version()
    template = Template(forks=True)
    _import_calling()
    line = sys.stdin.buffer.readline()
    if not line:
        return [], template
    start = json.loads(line)
    os.environ.clear()
    os.environ.update(start["environment"])
    return start["arguments"], template


def _import_calling() -> None:
    """Import gRPC and numpy. This takes as long as starting a slot."""
    from superdl.lambda_prefetch.worker import stream  # noqa: F401


class RayWorker:
    """A Ray actor that runs a worker in its process."""

    def host(self) -> str:
        """Return the name of the host that Ray placed the actor on."""
        return socket.gethostname()

    def work(self, settings: dict[str, Any]) -> str:
        """Work until the coordinator ends or refuses the worker. Return the error, or an empty string."""
        logging.basicConfig(level=logging.INFO)
        host = socket.gethostname()
        try:
            _work(WorkerSettings(**{**settings, "name": f"{host}-{os.getpid()}"}))
        except SuperError as error:  # returned as text, because Ray would pickle the error
            return f"{host}: {error}"
        return ""


def _run_on_ray(address: str, count: int, cpus: float, settings: WorkerSettings) -> int:
    """Run workers with ``cpus`` CPUs each until they end or this process receives SIGTERM or SIGINT."""
    ray = _connect_to_ray(address)
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        # Ray restarts an actor elsewhere when its node dies, and runs its only call again.
        actor_type = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=cpus)(RayWorker)
        # Each actor reads its own credentials.
        shared = {name: getattr(settings, name) for name in _SETTINGS - {"credentials"}}
        actors = [actor_type.remote() for _ in range(count)]
        placing = {actor.host.remote() for actor in actors}
        working = {actor.work.remote(shared) for actor in actors}
        warned_s, code = time.monotonic(), 0
        while working and not signals:
            ended, _ = ray.wait([*working, *placing], timeout=_POLL_S)
            for reference in ended:
                is_placed = reference in placing
                try:
                    text = ray.get(reference)
                except Exception as error:  # noqa: BLE001  # a dozen types, such as for a node without SUPER
                    is_placed, text = False, f"{type(error).__name__}: {error}"
                if is_placed:
                    _log.info("a worker is running on %s", text)
                elif text:
                    _log.error("a worker ended: %s", text)
                    code = 1
            placing, working = placing - set(ended), working - set(ended)
            if placing and time.monotonic() - warned_s >= _REMIND_S:
                warned_s = time.monotonic()
                words = "%d of %d workers are waiting for a node of the Ray cluster with %g free CPUs"
                _log.warning(words, len(placing), count, cpus)
    finally:
        ray.shutdown()  # the actors end with their driver
    return code


def _connect_to_ray(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--ray needs Ray ({error}): pip install 'superdl[ray]'") from error
    try:
        # Fail fast if the address is unreachable, because Ray would retry for minutes.
        head = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        host, _, port = head.rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except Exception as error:  # Ray's types, and Python's
        raise ConfigError(
            f"cannot connect to the Ray cluster at {address} ({type(error).__name__}: {error}). Start a "
            "cluster, or pass its address as --ray HEAD:6379. This machine must be one of its nodes (run ray "
            "start --address=HEAD:6379 --num-cpus=0), with the same versions of Ray and Python"
        ) from error
    return ray
