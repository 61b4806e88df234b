"""Blocking calls beside an event loop: no more at once than is set, and nobody waits for them in the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from superdl.coordinator.executors.lambda_client import CallingThreads

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


NO_MORE_THREADS = """
import asyncio, os, resource, sys, threading
from superdl.coordinator.executors import ThrottledError
from superdl.coordinator.executors.lambda_client import CallingThreads

limit, size = int(sys.argv[1]), 64 << 20

async def work():
    threads = CallingThreads(1000, "calling-test")
    gate = threading.Event()
    calls = [asyncio.create_task(threads.run(lambda: gate.wait(30))) for _ in range(200)]
    await asyncio.sleep(0)
    started = threading.active_count() - 1
    gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    threads.close(RuntimeError())
    return started, done

threading.stack_size(size)  # which the limit on memory makes scarce, for root too
asyncio.run(asyncio.sleep(0))
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + limit * size + size // 2,) * 2)
started, done = asyncio.run(work())
refused = [one for one in done if isinstance(one, ThrottledError)]
assert all(one is True or one in refused for one in done), done
print(started, len(refused), refused[:1])
"""


@pytest.mark.parametrize("limit", [0, 3])
def test_where_no_more_threads_can_be_started_those_that_there_are_do_all(limit):
    command = [sys.executable, "-c", NO_MORE_THREADS, str(limit)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stderr
    started, refused, said = ran.stdout.split(maxsplit=2)
    if limit:
        assert 0 < int(started) < 200
        assert refused == "0"
        assert ran.stderr.count("threads can be started") <= 1
    else:
        assert (started, refused) == ("0", "200")
        assert "lower lambda_concurrency" in said
