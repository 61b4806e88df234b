"""A coordinator takes over a cache before it starts functions, and exits in time whatever hangs."""

import asyncio
import signal
import subprocess
import sys
import textwrap

import pytest

from superdl.coordinator.cache.cache import Cache, LockHeldError
from superdl.coordinator.server.upkeep import warm_and_take_over
from superdl.super_wire.cancelling import cancel_and_wait
from tests.coordinator.executors.lambda_running import executor_for
from tests.fixtures.stack import Stack

ENOUGH_S = 30.0

# The real coordinator, with a thread that never ends and that the interpreter waits for.
HANGING = """
import asyncio, sys, time
from superdl.coordinator.server import server
from superdl.coordinator.__main__ import main

start = server._start

async def start_and_hang(*arguments):
    running = await start(*arguments)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    return running

server._start, server._DRAIN_MAX_S = start_and_hang, 1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_keep_the_process(valkey):
    arguments = ("--listen", f"unix:{valkey.directory}/c.sock", "--cache", valkey.unix_url, "--slots", "1")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HANGING), *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any("serving on" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=ENOUGH_S)
        finally:
            process.kill()
    assert "Timeout (0:00:01)!" in log
    assert process.returncode == 1


def test_a_cache_that_hangs_does_not_keep_the_process():
    with Stack(arguments=("--slots", "1")) as stack:
        stack.valkey.process.send_signal(signal.SIGSTOP)
        try:
            stack.process.terminate()
            stack.process.communicate(timeout=ENOUGH_S)
        finally:
            stack.valkey.process.send_signal(signal.SIGCONT)
        assert stack.process.returncode == 0, stack.log.read_text()
        assert "the lock was not released and will expire" in stack.log.read_text()


RENEWAL_S = 0.1


async def test_no_function_is_warmed_for_a_cache_that_another_coordinator_owns(lambda_service, valkey):
    async def own(cache):
        while True:
            await cache.hold_lock()
            await asyncio.sleep(RENEWAL_S)

    first, second = Cache(valkey.url, owner=""), Cache(valkey.url, owner="")
    executor = executor_for(lambda_service, valkey.url)
    await first.hold_lock()
    owning = asyncio.create_task(own(first))
    try:
        with pytest.raises(LockHeldError, match="set SUPER_COORDINATOR"):
            await warm_and_take_over(executor, second)
    finally:
        await cancel_and_wait(owning)
        await executor.close()
        await second.close()
        await first.close()
    assert not lambda_service.invocations


async def test_the_lock_is_kept_while_functions_are_warmed(lambda_service, valkey, monkeypatch):
    monkeypatch.setattr("superdl.coordinator.server.upkeep.LOCK_TTL_S", 0.04)
    held = []

    class Counting(Cache):
        async def hold_lock(self):
            held.append(lambda_service.refused)
            return await super().hold_lock()

    cache = Counting(valkey.url, owner="")
    executor = executor_for(lambda_service, valkey.url)
    lambda_service.throttle_next(1)  # warming continues after a second
    try:
        await warm_and_take_over(executor, cache)
    finally:
        await executor.close()
        await cache.close()
    assert held.count(1) > 1  # repeatedly after the throttling
    assert len(lambda_service.invocations) == 1
