"""``superdl worker --ray``: workers as actors of a Ray cluster, which places them on its nodes.

Ray restarts an actor elsewhere when its node dies, and runs its only call again (``max_task_retries``). Each
worker has its credentials in its own environment: they do not pass through Ray.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from dataclasses import fields
from typing import Any

from superdl.lambda_prefetch.worker.settings import WorkerSettings
from superdl.lambda_prefetch.worker.working import work
from superdl.super_wire.errors import ConfigError, SuperError

__all__ = ["RayWorker", "run_on_ray"]

_log = logging.getLogger(__name__)

_REACH_S = 5.0
_TELL_S = 30.0
_POLL_S = 1.0


class RayWorker:
    """The actor: a worker in one of Ray's processes."""

    def placed(self) -> str:
        """Return the name of its host."""
        return socket.gethostname()

    def work(self, settings: dict[str, Any]) -> str:
        """Work until the coordinator is gone or refuses; return the reason, or empty text."""
        logging.basicConfig(level=logging.INFO)
        host = socket.gethostname()
        try:
            work(WorkerSettings(**{**settings, "name": f"{host}-{os.getpid()}"}))
        except SuperError as error:  # as text: no error of ours is pickled
            return f"{host}: {error}"
        return ""


def run_on_ray(address: str, count: int, cpus: float, settings: WorkerSettings) -> int:
    """Run workers on a Ray cluster, until they end or this process gets SIGTERM or SIGINT.

    Args:
        address: of the cluster, or ``auto`` for the one that this machine is a node of.
        count: the number of workers.
        cpus: CPUs of a node for each.
        settings: of each worker, except name and credentials, which are its own.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    ray = _connected(address)
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda given, _: stopped.append(given))
    try:
        actor_type = ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=cpus)(RayWorker)
        shared = {field.name: getattr(settings, field.name) for field in fields(settings)}
        del shared["credentials"]
        actors = [actor_type.remote() for _ in range(count)]
        placing = {actor.placed.remote() for actor in actors}
        working = {actor.work.remote(shared) for actor in actors}
        warned_s, reasons = time.monotonic(), []
        while working and not stopped:
            ended, _ = ray.wait([*working, *placing], timeout=_POLL_S)
            for reference in ended:
                host, reason = _outcome(ray, reference, is_placing=reference in placing)
                if host:
                    _log.info("a worker runs on %s", host)
                if reason:
                    _log.error("a worker ended: %s", reason)
                    reasons.append(reason)
            placing, working = placing - set(ended), working - set(ended)
            if placing and time.monotonic() - warned_s >= _TELL_S:
                warned_s = time.monotonic()
                words = "%d of %d workers wait for a node of the Ray cluster with %g free CPUs"
                _log.warning(words, len(placing), count, cpus)
    finally:
        ray.shutdown()  # the actors end with their driver
    return 1 if reasons else 0


def _outcome(ray: Any, reference: Any, *, is_placing: bool) -> tuple[str, str]:
    """Return the host of a worker that was placed, and the reason why one ended."""
    try:
        answer: str = ray.get(reference)
    except Exception as error:  # noqa: BLE001  # Ray raises a dozen types, such as for a node without SUPER
        return "", f"{type(error).__name__}: {error}"
    return (answer, "") if is_placing else ("", answer)


def _connected(address: str) -> Any:
    """Connect to the cluster, and return Ray."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--ray needs Ray ({error}): pip install 'superdl[ray]'") from error
    try:
        _check_reachable(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, logging_level="WARNING")
    except Exception as error:  # its own types, and Python's
        raise ConfigError(
            f"no connection to the Ray cluster at {address} ({type(error).__name__}: {error}): start one, or "
            "name it as --ray HEAD:6379; this machine must be one of its nodes (ray start "
            "--address=HEAD:6379 --num-cpus=0 makes it one), with the cluster's versions of Ray and Python"
        ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Fail fast if the address cannot be reached: Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
