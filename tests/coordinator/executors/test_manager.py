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


async def test_an_executor_that_does_not_start_is_skipped_and_retried(caplog):
    first = Startable("one", fails=[ExecutorError("asleep"), KeyError("k")])
    third = Startable("three", fails=[OSError("no space")])

    async with using([first, Startable("two"), third]) as manager:
        told = await presence(manager)
        events = []
        manager.report_changes(events.append)
        manager.report_changes(events.append)  # reports nothing twice
        await until_there(manager)
        manager.executors[1].scaling = ExecutorResized(7, burst=3)
        manager.report_changes(events.append)
    assert told == ["asleep", "", "it failed to start because of a bug (OSError: no space)"]
    assert [(event.executor, event.capacity) for event in events] == [
        (0, 0),
        (1, 2),
        (2, 0),
        (0, 2),
        (1, 7),
        (2, 2),
    ]
    assert (first.starts, third.starts) == (3, 2)
    assert "skipping the executor one for now: asleep" in caplog.text
    assert "it failed to start because of a bug (KeyError: 'k')" in caplog.text


async def test_an_executor_with_another_decoder_is_skipped():
    async with using([Startable("one", fingerprint="bb"), Startable("two")]) as manager:
        assert manager.fingerprint == "aa"
        assert await presence(manager) == ["other pixels", ""]
