"""What the driver makes of calls that come with their cancelling. What takes Ray's place notes it."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import pytest

from superdl.coordinator.executors import ray_driver
from superdl.coordinator.executors.worker import BEGUN

CALL = {"node": "a1", "event": "{}", "timeout_s": 60.0}


class NotingRay:
    """Tasks that begin and never answer."""

    exceptions = SimpleNamespace()

    def __init__(self):
        self.started = []
        self.cancelled = []

    def remote(self, **_options):
        return lambda _function: self

    def options(self, **_options):
        return self

    async def items(self):
        answer = asyncio.get_running_loop().create_future()
        begun = asyncio.get_running_loop().create_future()
        begun.set_result(BEGUN)
        yield begun
        yield answer

    def _started(self, call):
        self.started.append(call)
        return self.items()

    def cancel(self, generator, *, force):
        assert force
        self.cancelled.append(generator)


@pytest.fixture
def ray(monkeypatch):
    noting = NotingRay()
    noting.remote = lambda *args, **options: noting._started(args[2]) if args else lambda _function: noting
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda *_args, **_options: None
    for name, module in (("ray", ModuleType("ray")), ("ray.util", ModuleType("ray.util"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    return noting


def driving(ray, work):
    async def main():
        told = asyncio.Queue()
        driver = ray_driver._Driver(ray, "f:f", 1.0, told.put_nowait)
        await work(driver, told)

    asyncio.run(main())


def test_a_call_that_is_cancelled_before_it_starts_never_does(ray):
    async def work(driver, told):
        driver._take({"call": 7, **CALL})
        driver._take({"cancel": 7})
        driver._take({"call": 8, **CALL})
        assert await told.get() == {"begun": 8}

    driving(ray, work)
    assert [name.rsplit("-", 1)[1] for name in ray.started] == ["8"]
    assert not ray.cancelled


def test_a_call_that_has_started_is_cancelled_once(ray):
    async def work(driver, told):
        driver._take({"call": 7, **CALL})
        assert await told.get() == {"begun": 7}
        for _ in range(2):
            driver._take({"cancel": 7})

    driving(ray, work)
    assert len(ray.cancelled) == 1
