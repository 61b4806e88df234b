"""Blocking calls beside an event loop: no more at once than is set, and nobody waits for them in the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from superdl.coordinator.executors.cancelling import CallingThreads, HeldTasks

NAME = "calling-test"


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def join_all():
    for thread in own_threads():
        thread.join(10)
    assert not own_threads()


def test_values_and_errors_come_back_and_no_more_run_at_once_than_is_set():
    async def work():
        threads = CallingThreads(4, NAME)
        assert await threads.run(lambda: 7) == 7
        with pytest.raises(KeyError, match="x"):
            await threads.run(lambda: {}["x"])
        together = threading.Barrier(4, timeout=10)
        await asyncio.gather(*(threads.run(together.wait) for _ in range(4)))
        gate = threading.Event()
        calls = [asyncio.create_task(threads.run(gate.wait)) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert len(own_threads()) == 4
        assert all(thread.daemon for thread in own_threads())
        threads.close(ValueError("closed"))
        ended = await asyncio.gather(*calls, threads.run(lambda: 7), return_exceptions=True)
        assert [str(error) for error in ended] == ["closed"] * 51
        gate.set()

    asyncio.run(work())
    join_all()


def test_a_cancelled_call_that_waits_never_begins_and_one_that_runs_keeps_its_thread():
    gate, began, calls = threading.Event(), threading.Event(), []

    def hang():
        began.set()
        gate.wait(10)

    async def work():
        threads = CallingThreads(1, NAME)
        running = asyncio.create_task(threads.run(hang))
        await asyncio.to_thread(began.wait, 10)
        waiting = asyncio.create_task(threads.run(lambda: calls.append("waited")))
        await asyncio.sleep(0)
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
        last = asyncio.create_task(threads.run(lambda: calls.append("last")))
        await asyncio.sleep(0)
        assert len(own_threads()) == 1
        assert not calls  # the thread is still busy with what nobody waits for
        gate.set()
        await last
        threads.close(RuntimeError())

    asyncio.run(work())
    assert calls == ["last"]
    join_all()


def test_tasks_are_held_until_they_end_and_a_bug_in_one_is_logged_and_told(caplog):
    told = []

    async def work():
        tasks, gate = HeldTasks("tests", told.append), asyncio.Event()

        async def fail():
            await gate.wait()
            raise ZeroDivisionError

        async def hang():
            await asyncio.Event().wait()

        failing, hanging = tasks.start(fail()), tasks.start(hang())
        assert len(tasks) == 2
        gate.set()
        await asyncio.wait([failing])
        assert len(tasks) == 1
        await tasks.cancel()
        assert hanging.cancelled()
        assert not tasks

    asyncio.run(work())
    assert [type(error) for error in told] == [ZeroDivisionError]
    assert caplog.text.count("a task of the tests failed: a bug") == 1
