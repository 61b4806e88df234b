"""Runs the Ray executor on a cluster of the tests."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import ExecutorContext
from superdl.coordinator.executors.ray_executor import RayExecutor, RaySettings
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.processes import alive
from tests.fixtures.node_function import FUNCTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fixtures.ray_cluster import RayCluster


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
