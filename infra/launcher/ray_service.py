"""Ray on the hosts of a run: a head on the leader, a node on every other host that has CPUs for functions.

Its processes are ours alone: started in the foreground, ended with their guard, never by ``ray stop``. How
functions run on it is the coordinator's executor's; that all nodes are there,
:mod:`infra.launcher.ray_nodes`'.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from infra.launcher.processes import Child, Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["ray_head", "ray_node"]

_OBJECT_STORE_BYTES = 256 * 2**20  # outcomes are small; tensors go to the cache
_PROBE_S = 3.0
_START = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start"]


def ray_head(
    address: str, port: int, cpus: int, environment: Mapping[str, str], directory: Path, *, wait_s: float
) -> Service:
    """The head, with ``cpus`` for functions; it is ready when it can be connected to.

    It is not started again when it dies, since the others' nodes die with it.
    """
    command = _command(address, cpus, directory, ["--head", "--port", str(port)])
    child = Child("Ray's head", command, _environment(environment))

    async def ready() -> None:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()

    return Service(child, ready, wait_s=wait_s, restarts=0)


def ray_node(
    head: str, address: str, cpus: int, environment: Mapping[str, str], directory: Path, *, wait_s: float
) -> Service:
    """A node of the head at ``head``; that it is there, the leader sees."""
    command = _command(address, cpus, directory, ["--address", head])
    child = Child("Ray's node", command, _environment(environment))

    async def ready() -> None:
        return

    return Service(child, ready, wait_s=wait_s)


def _command(address: str, cpus: int, directory: Path, place: Sequence[str]) -> list[str]:
    options = {
        "--temp-dir": str(directory / "ray"),
        "--node-ip-address": address,
        "--num-cpus": str(cpus),
        "--num-gpus": "0",
        "--object-store-memory": str(_OBJECT_STORE_BYTES),
        "--min-worker-port": "0",  # any that are free; else those from 10,002 to 19,999, whoever has them
        "--max-worker-port": "0",
        "--include-log-monitor": "false",
        "--log-color": "false",
    }
    words = [word for option in options.items() for word in option]
    dashboard = ["--include-dashboard", "false"] if "--head" in place else []
    return [*_START, *place, *words, *dashboard, "--disable-usage-stats", "--block"]


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PYTHONUNBUFFERED": "1"}
