"""Executors start together, are excluded if they fail to start or decode differently, and are retried."""

import asyncio
import contextlib

import pytest

from superdl.coordinator.core import ExecutorResized
from superdl.coordinator.executors import manager as manager_module
from superdl.coordinator.executors.base import Executor, ExecutorError
from superdl.coordinator.executors.manager import ExecutorManager
from superdl.super_wire.errors import ConfigError
from tests.coordinator.running import ENOUGH_S


class Startable(Executor):
    """An executor that starts, or fails to, as the test says."""

    remote = False
    region = fingerprint = ""
    scaling = ExecutorResized(0)

    def __init__(self, name="one", fingerprint="aa", fails=(), waits=None, closing=None):
        self.name = name
        self.fingerprint = fingerprint
        self.fails = list(fails)
        self.waits = waits
        self.closing = closing
        self.scaling = ExecutorResized(2)
        self.starts = self.closes = 0

    async def start(self):
        self.starts += 1
        if self.waits is not None:
            await self.waits.wait()
        if self.fails:
            raise self.fails.pop(0)

    async def invoke(self, request, *, timeout_s):
        return self.name

    async def close(self):
        self.closes += 1
        if isinstance(self.closing, asyncio.Event):
            await self.closing.wait()
        elif self.closing is not None:
            raise self.closing


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(manager_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(manager_module, "_LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(manager_module, "_GRACE_S", 0.05)


async def agree_on(digest):
    if digest != "aa":
        raise ConfigError("other pixels")


@contextlib.asynccontextmanager
async def using(executors):
    """Start the executors and yield their manager."""
    manager = ExecutorManager([lambda one=one: one for one in executors])
    try:
        async with asyncio.timeout(ENOUGH_S):
            await manager.start()
            await manager.agree(agree_on)
            yield manager
    finally:
        await manager.close()


async def presence(manager):
    return [one.absence for one in manager.executors]


async def until_there(manager):
    while any(one.absence for one in manager.executors):  # noqa: ASYNC110  # nothing signals it
        await asyncio.sleep(0)


async def test_one_that_does_not_start_is_left_out_and_started_later_whatever_it_fails_by(caplog):
    first = Startable("one", fails=[ExecutorError("asleep"), KeyError("k")])
    third = Startable("three", fails=[OSError("no space")])

    async with using([first, Startable("two"), third]) as manager:
        told = await presence(manager)
        events = []
        manager.tell_changes(events.append)
        await until_there(manager)
        manager.tell_changes(events.append)
    assert told == ["asleep", "", "its start failed unexpectedly (OSError: no space)"]
    assert [(event.executor, event.capacity) for event in events] == [(0, 0), (1, 2), (2, 0), (0, 2), (2, 2)]
    assert (first.starts, third.starts) == (3, 2)
    assert "the executor one is left out for now: asleep" in caplog.text
    assert "its start failed unexpectedly (KeyError: 'k')" in caplog.text


async def test_one_that_decodes_otherwise_is_left_out():
    async with using([Startable("one", fingerprint="bb"), Startable("two")]) as manager:
        assert manager.fingerprint == "aa"
        assert await presence(manager) == ["other pixels", ""]


async def test_the_core_is_told_of_what_changes():
    executors = [Startable("one"), Startable("two")]

    async with using(executors) as manager:
        events = []
        manager.tell_changes(events.append)
        manager.tell_changes(events.append)
        executors[1].scaling = ExecutorResized(7, backlog=0)
        manager.tell_changes(events.append)
        told = events
    assert [event.executor for event in told] == [0, 1, 1]
    assert told[-1] == ExecutorResized(7, backlog=0, executor=1)
