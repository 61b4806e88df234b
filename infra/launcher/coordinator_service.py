"""The coordinator of a run, on the leader: started with the run's cache and executor, ready when it serves.

All of its other settings are as everywhere: ``SUPER_*`` variables of the leader's environment.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from infra.launcher.addresses import with_port
from infra.launcher.processes import Child, Service

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["coordinator_service"]

_NOT_ITS = frozenset({"SUPER_CACHE_BYTES"})  # here it says how much the cache may take, with all headroom


def coordinator_service(
    address: str,
    port: int,
    cache: str,
    environment: Mapping[str, str],
    directory: Path,
    *,
    executor: str,
    workers: int,
    ray: str,
    run_id: str,
    own_cache: bool,
    insecure: bool,
    wait_s: float,
) -> Service:
    """The coordinator, not started yet.

    Args:
        address: this host's.
        port: where it listens.
        cache: the run's.
        environment: its own.
        directory: a private one.
        executor: how its functions run.
        workers: processes, where they run locally.
        ray: Ray's address, where they run on that.
        run_id: so that one that is started again takes over from its predecessor.
        own_cache: whether the cache is the launcher's.
        insecure: see :mod:`infra.launcher.trust`.
        wait_s: how long it may take to serve.
    """
    health = f"{directory}/health.sock"
    options = {
        "--listen": with_port(address, port),
        "--health-listen": f"unix:{health}",
        "--cache": cache,
        "--executor": executor,
        "--workers": str(workers),
        "--owner": f"launcher-{run_id}",
    }
    command = [
        sys.executable,
        "-P",
        "-m",
        "superdl.coordinator",
        *(w for option in options.items() for w in option),
    ]
    own = {name: text for name, text in environment.items() if not (own_cache and name in _NOT_ITS)}
    if ray:
        own |= {"SUPER_RAY_ADDRESS": ray, "SUPER_RAY_NODES": "all"}  # each node's CPUs were counted out
    child = Child("the coordinator", command + (["--insecure"] if insecure else []), own)

    async def ready() -> None:
        _, writer = await asyncio.open_unix_connection(health)  # quick to fail, unlike the probe
        writer.close()
        probe = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "superdl.coordinator.probe",
            f"unix:{health}",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            code = await probe.wait()
        finally:
            if probe.returncode is None:
                probe.kill()
        if code:
            msg = "it does not serve yet"
            raise ConnectionError(msg)

    return Service(child, ready, wait_s=wait_s)
