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
    region = ""

    def __init__(self, name, fingerprint="aa", fails=()):
        self.name, self.fingerprint, self.fails = name, fingerprint, list(fails)
        self.scaling = ExecutorResized(2)
        self.starts = 0

    async def start(self):
        self.starts += 1
        if self.fails:
            raise self.fails.pop(0)


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
    manager = ExecutorManager([lambda executor=executor: executor for executor in executors])
    try:
        async with asyncio.timeout(ENOUGH_S):
            await manager.start()
            await manager.agree(agree_on)
            yield manager
    finally:
        await manager.close()


async def until_there(manager):
    while any(executor.absence for executor in manager.executors):  # noqa: ASYNC110  # nothing signals it
        await asyncio.sleep(0)


async def test_an_executor_that_does_not_start_is_skipped_and_retried(caplog):
    first = Startable("one", fails=[ExecutorError("asleep"), KeyError("k")])
    third = Startable("three", fails=[OSError("no space")])

    async with using([first, Startable("two"), third]) as manager:
        reasons, events = [executor.absence for executor in manager.executors], []
        manager.report_changes(events.append)
        manager.report_changes(events.append)  # reports nothing twice
        await until_there(manager)
        manager.executors[1].scaling = ExecutorResized(7, backlog=0)
        manager.report_changes(events.append)
    assert reasons == ["asleep", "", "it failed to start because of a bug (OSError: no space)"]
    changes = [(event.executor, event.capacity) for event in events]
    assert changes == [(0, 0), (1, 2), (2, 0), (0, 2), (1, 7), (2, 2)]
    assert (first.starts, third.starts) == (3, 2)
    assert "skipping the executor one for now: asleep" in caplog.text
    assert "it failed to start because of a bug (KeyError: 'k')" in caplog.text


async def test_an_executor_with_another_decoder_is_skipped():
    async with using([Startable("one", fingerprint="bb"), Startable("two")]) as manager:
        assert manager.fingerprint == "aa"
        assert [executor.absence for executor in manager.executors] == ["other pixels", ""]
