"""Blocking calls of an event loop run in a bounded number of threads and can be cancelled."""

import asyncio
import threading

from superdl.super_wire.cancelling import CallingThreads

NAME = "calling-test"


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def join_all():
    for thread in own_threads():
        thread.join(10)
    assert not own_threads()


def test_a_cancelled_call_never_starts_or_keeps_its_thread_until_it_returns():
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
        assert not calls  # the abandoned call still has the only thread
        gate.set()
        await last
        threads.close(RuntimeError())

    asyncio.run(work())
    assert calls == ["last"]
    join_all()
