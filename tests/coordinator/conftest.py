"""Running a coordinator inside the test's own process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.running import running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.coordinator.running import Running
    from tests.fixtures.valkey import Valkey


@pytest.fixture(scope="session")
def serving_loop() -> Iterator[asyncio.Runner]:
    """The one event loop that serves gRPC: grpc.aio loses events where a process has had another one before."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def run(serving_loop: asyncio.Runner, valkey: Valkey) -> Callable[..., Any]:
    """Runs ``work(coordinator)`` against a running coordinator with settings of the core's."""

    def run_work(work: Callable[[Running], Awaitable[Any]], **options: Any) -> Any:
        async def body() -> Any:
            async with running(valkey, **options) as coordinator:
                return await work(coordinator)

        return serving_loop.run(body())

    return run_work
