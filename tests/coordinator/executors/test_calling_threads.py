"""Blocking calls beside an event loop: no more at once than is set, and nobody waits for them in the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from coordinator.executors.calling_threads import CallingThreads

NAME = "calling-test"


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def join_all():
    for thread in own_threads():
        thread.join(10)
    assert not own_threads()


def test_values_and_errors_come_back_and_threads_are_started_as_they_are_needed():
    async def work():
        threads = CallingThreads(4, NAME)
        assert await threads.run(lambda: 7) == 7
        with pytest.raises(KeyError, match="x"):
            await threads.run(lambda: {}["x"])
        assert len(own_threads()) == 1  # one after the other: one thread does
        together = threading.Barrier(4, timeout=10)
        await asyncio.gather(*(threads.run(together.wait) for _ in range(4)))
        assert len(own_threads()) == 4
        assert all(thread.daemon for thread in own_threads())
        assert await asyncio.gather(*(threads.run(lambda n=n: n) for n in range(50))) == list(range(50))
        assert len(own_threads()) == 4
        threads.close(RuntimeError("closed"))
        with pytest.raises(RuntimeError, match="closed"):
            await threads.run(lambda: 7)

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


def test_closing_fails_what_is_under_way_and_a_late_answer_to_a_closed_loop_harms_nobody():
    gate, began = threading.Event(), threading.Event()

    def hang():
        began.set()
        gate.wait(10)

    async def work():
        threads = CallingThreads(2, NAME)
        running = asyncio.create_task(threads.run(hang))
        await asyncio.to_thread(began.wait, 10)
        threads.close(RuntimeError("closed"))
        with pytest.raises(RuntimeError, match="closed"):
            await running

    asyncio.run(work())
    gate.set()
    join_all()
