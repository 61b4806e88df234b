"""Runs the Ray executor on a cluster of the tests, and waits for what other processes do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import ExecutorContext
from superdl.coordinator.executors.ray_executor import RayExecutor, RaySettings
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.fixtures.node_function import FUNCTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.fixtures.ray_cluster import RayCluster

WAIT_S = 60.0


@contextlib.asynccontextmanager
async def connected(
    cluster: RayCluster, *, cache: str = "", start: bool = True, **options: Any
) -> AsyncIterator[RayExecutor]:
    """An executor that is started, and in the end closed; without a cache, nodes need not reach one."""
    settings = RaySettings(cluster.address, **{f"ray_{name}": value for name, value in options.items()})
    executor = RayExecutor(settings, ExecutorContext(cache, FUNCTION))
    if start:
        await executor.start()
    try:
        yield executor
    finally:
        pid = executor.driver_pid
        await executor.close()
        assert not alive(pid)


async def answers(executor: RayExecutor) -> bool:
    """Whether a function answers; there is nothing at the source that it is asked about."""
    return len((await executor.invoke(ask(), timeout_s=TIMEOUT_S)).outcomes) == 1


def alive(pid: int) -> bool:
    """Whether a process exists; 0 is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return bool(pid)


async def until(condition: Callable[[], bool]) -> None:
    """Wait, bounded, for what another process does."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # other processes cannot set an event of ours
            await asyncio.sleep(0.01)
