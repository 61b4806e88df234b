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
    """The one event loop that serves gRPC: grpc.aio loses events in a process's second."""
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


@pytest.fixture
def source(tmp_path):
    """Ten files in two classes: the scripted functions do not look into them."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(5):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"x")
    return tmp_path
