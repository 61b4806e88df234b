"""``superdl worker``: run functions for a coordinator, on this machine or as actors of a Ray cluster."""

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
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.host import usable_cores
from superdl.super_wire.protocol import host_and_port, installed_version, socket_path
from superdl.super_wire.redaction import keep_secrets_out_of_logs

if TYPE_CHECKING:
    import argparse

_log = logging.getLogger(__name__)

_MAX_SLOTS = 1024
_REACH_S, _POLL_S, _REMIND_S = 5.0, 1.0, 30.0  # for Ray's head, its actors, and a warning about waiting ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--coordinator", help="host:port or unix:/path (default: SUPER_COORDINATOR)")
    words = "concurrent requests, each in its own process (default: SUPER_SLOTS, or the number of cores)"
    add("--slots", type=int, help=words)
    add("--name", help="name in the coordinator's log (default: host and process id)")
    add("--nice", type=int, default=0, help="niceness of the slots; 19 is the lowest priority (default: 0)")
    words = "exit after S seconds if no coordinator responds (default: 300)"
    add("--linger", type=float, default=300.0, metavar="S", help=words)
    add("--grace", type=float, default=30.0, metavar="S", help="time to finish after SIGTERM (default: 30)")
    add("--function", default=FUNCTION, help=f"module:attribute that the slots run (default: {FUNCTION})")
    add("--store", default="", help="the coordinator's store, if accessible here (default: SUPER_STORE)")
    add("--store-only", action="store_true", help="only restore and save, for functions that run elsewhere")
    add("--metrics-listen", default="", help="host:port where Prometheus can read metrics (default: none)")
    add("--health-listen", default="", help="host:port for probes of /healthz and /livez, without TLS")
    words = "run workers on the Ray cluster at ADDRESS, such as HEAD:6379 (default: this machine's cluster)"
    add("--ray", nargs="?", const="auto", metavar="ADDRESS", help=words)
    add("--num", type=int, default=1, help="with --ray: number of workers (default: 1)")
    add("--num-cpus", type=float, default=1.0, help="with --ray: CPUs for each worker (default: 1)")


def run(arguments: argparse.Namespace, template: Template | None = None) -> int:
    """Run a worker until SIGTERM, or workers on a Ray cluster. Return the exit code.

    Slots are forked from ``template``, if there is one already.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    keep_secrets_out_of_logs()
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR", "")
    if not host_and_port(address)[1] and socket_path(address) is None:
        raise ConfigError(f"--coordinator must be host:port or unix:/path, not {address!r}")
    cores = usable_cores() if arguments.ray is None else max(1, int(arguments.num_cpus))
    given = str(arguments.slots or os.environ.get("SUPER_SLOTS") or cores)
    if not given.isdecimal() or not 1 <= int(given) <= _MAX_SLOTS:
        raise ConfigError(f"--slots (SUPER_SLOTS) must be from 1 to {_MAX_SLOTS}, not {given[:20]!r}")
    settings = WorkerSettings(
        address,
        arguments.name or f"{platform.node()}-{os.getpid()}",
        arguments.function,
        int(given),
        arguments.nice,
        arguments.linger,
        arguments.grace,
        store=arguments.store,
        store_only=arguments.store_only,
        metrics_listen=arguments.metrics_listen,
        health_listen=arguments.health_listen,
    )
    if arguments.ray is None:
        return _work(settings, template)
    if settings.metrics_listen or settings.health_listen:
        raise ConfigError(
            "--metrics-listen and --health-listen cannot be used with --ray, which runs several workers"
        )
    if arguments.num < 1 or arguments.num_cpus <= 0:
        raise ConfigError("--num must be at least 1, and --num-cpus must be above 0")
    return _run_on_ray(arguments.ray, arguments.num, arguments.num_cpus, settings)


def _work(settings: WorkerSettings, template: Template | None = None) -> int:
    """Work until SIGTERM or the coordinator's goodbye, and return its exit code."""
    # An actor has its node's environment, so credentials do not pass through Ray.
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
    starting, stack, trouble = asyncio.create_task(slots.start()), contextlib.ExitStack(), ""
    try:
        # In a thread, so that the slots start meanwhile.
        await asyncio.to_thread(_import_calling)
        from superdl.lambda_prefetch.settings import store_in
        from superdl.lambda_prefetch.worker.calling import serve
        from superdl.lambda_prefetch.worker.showing import check_listening, show

        check_listening(settings)
        settings = replace(settings, store=store_in(os.environ))
        if settings.store_only and not settings.store:
            raise ConfigError(
                "a worker that only restores and saves needs a store: set --store (or SUPER_STORE)"
            )
        await show(settings, slots, connected, stack)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            return 0
        try:
            starting.result()
        except SuperError as error:
            trouble = str(error)
        return await serve(settings, slots, stop, trouble, connected)
    finally:
        stack.close()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await slots.close()


def standby() -> tuple[list[str], Template]:
    """Load what a worker needs, then wait for a line of JSON with its ``arguments`` and ``environment``.

    Sets the environment. Returns the arguments, none if the input ended because the coordinator did, and
    a template for the slots.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the coordinator raises its own later
    from superdl.lambda_prefetch.handler import own_fingerprint

    # The slots inherit these.
    own_fingerprint()
    installed_version()
    template = Template(forks=True)
    _import_calling()
    line = sys.stdin.buffer.readline()
    if not line:
        return [], template
    given = json.loads(line)
    os.environ.clear()
    os.environ.update(given["environment"])
    return given["arguments"], template


def _import_calling() -> None:
    """Import the modules that need gRPC and numpy, which takes as long as a slot's start."""
    from superdl.lambda_prefetch.worker import calling  # noqa: F401


class RayWorker:
    """A Ray actor that runs a worker in its process."""

    def host(self) -> str:
        """Return the actor's host name, once it is placed."""
        return socket.gethostname()

    def work(self, settings: dict[str, Any]) -> str:
        """Work until the coordinator is gone or refuses. Return the reason, or an empty string."""
        logging.basicConfig(level=logging.INFO)
        host = socket.gethostname()
        try:
            _work(WorkerSettings(**{**settings, "name": f"{host}-{os.getpid()}"}))
        except SuperError as error:  # as text, so that no error of ours is pickled
            return f"{host}: {error}"
        return ""


def _run_on_ray(address: str, count: int, cpus: float, settings: WorkerSettings) -> int:
    """Run workers with ``cpus`` CPUs each until they end or this process gets SIGTERM or SIGINT."""
    ray = _connect_to_ray(address)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _: stopped.append(given))
    try:
        # Ray restarts an actor elsewhere when its node dies, and runs its only call again.
        actor_type = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=cpus)(RayWorker)
        shared = {field.name: getattr(settings, field.name) for field in fields(settings)}
        # Each actor reads its own.
        del shared["credentials"]
        actors = [actor_type.remote() for _ in range(count)]
        placing = {actor.host.remote() for actor in actors}
        working = {actor.work.remote(shared) for actor in actors}
        warned_s, code = time.monotonic(), 0
        while working and not stopped:
            ended, _ = ray.wait([*working, *placing], timeout=_POLL_S)
            for reference in ended:
                try:
                    host, reason = ray.get(reference), ""
                    if reference in working:
                        host, reason = "", host
                except Exception as error:  # noqa: BLE001  # a dozen types, such as for a node without SUPER
                    host, reason = "", f"{type(error).__name__}: {error}"
                if host:
                    _log.info("a worker is running on %s", host)
                if reason:
                    _log.error("a worker ended: %s", reason)
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
        # Fail fast if the address cannot be reached: Ray itself would retry for minutes.
        head = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
        host, _, port = head.rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except Exception as error:  # its own types, and Python's
        raise ConfigError(
            f"cannot connect to the Ray cluster at {address} ({type(error).__name__}: {error}): start one, "
            "or pass its address as --ray HEAD:6379. This machine must be one of its nodes (run ray start "
            "--address=HEAD:6379 --num-cpus=0), with the same versions of Ray and Python"
        ) from error
    return ray
