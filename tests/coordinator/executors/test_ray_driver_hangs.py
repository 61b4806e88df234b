"""A driver that stands still: nothing waits for it for long, and another one takes its place. What no frame
holds is refused alone.
"""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from superdl.coordinator.executors import (
    ConnectionLostError,
    ExecutorError,
    PayloadTooLargeError,
    ThrottledError,
)
from superdl.coordinator.executors import ray_child as ray_child_module
from superdl.coordinator.executors import ray_executor as ray_executor_module
from superdl.coordinator.executors.ray_child import RayChild
from superdl.coordinator.executors.ray_executor import RayExecutor
from superdl.coordinator.executors.worker import MAX_FRAME_BYTES
from tests.coordinator.executors.asking import TIMEOUT_S
from tests.coordinator.executors.in_rays_place import ACTING, WORKING, in_rays_place
from tests.coordinator.executors.ray_running import until

__all__ = ["in_rays_place"]


async def start(function="ray:answer"):
    child = await RayChild.start(address="auto", function=function, cpus=1.0, on_nodes=lambda _: None)
    await child.ready(TIMEOUT_S)
    return child


async def call(child, event="{}", begin_s=TIMEOUT_S):
    return await child.call("a1", event, begin_s=begin_s, timeout_s=TIMEOUT_S, on_begun=lambda: None)


def test_calls_that_a_driver_does_not_read_end_in_time_and_are_not_heaped_up(in_rays_place):
    in_rays_place(ACTING)

    async def main():
        child = await start()
        os.kill(child.pid, signal.SIGSTOP)
        event = '{"size": 1, "more": "' + 10_000 * "x" + '"}'
        calls = [asyncio.create_task(call(child, event, begin_s=0.5)) for _ in range(60)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(error) for error in errors} == {ThrottledError, ExecutorError}
        unsent = [error for error in errors if type(error) is ExecutorError]
        assert all(error.refused and "took no call" in str(error) for error in unsent)
        assert child._process._to_child.transport.get_write_buffer_size() < 100_000
        os.kill(child.pid, signal.SIGCONT)
        assert await call(child, '{"size": 3}') == '{"result":{"text":"xxx"}}'
        await child.kill()

    asyncio.run(main())


def test_one_that_gives_no_sign_of_life_is_killed(in_rays_place, monkeypatch):
    in_rays_place(WORKING)
    monkeypatch.setattr(ray_child_module, "_PING_S", 0.01)
    monkeypatch.setattr(ray_child_module, "_MAX_SILENT_PINGS", 100)

    async def main():
        child = await start()
        heard, take = [], child._take
        monkeypatch.setattr(child, "_take", lambda message: (heard.append(message), take(message)))
        await until(lambda: {"pong": 2} in heard)
        os.kill(child.pid, signal.SIGSTOP)
        held = asyncio.create_task(call(child))
        assert "no sign of life" in await child.ended()
        with pytest.raises(ConnectionLostError, match="no sign of life"):
            await held
        with pytest.raises(ExecutorError, match="no sign of life"):
            await call(child)
        await child.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(child.pid, 0)

    asyncio.run(main())


def test_another_one_takes_its_place(in_rays_place, monkeypatch):
    in_rays_place(ACTING)
    monkeypatch.setattr(ray_child_module, "_PING_S", 0.01)
    monkeypatch.setattr(ray_child_module, "_MAX_SILENT_PINGS", 100)
    monkeypatch.setattr(ray_executor_module, "_FIRST_PAUSE_S", 0.01)

    async def fingerprint(_node):
        return "a" * 32

    async def main():
        executor = RayExecutor(cache="redis://127.0.0.1", function="ray:answer")
        executor._preflight._warm = fingerprint
        await executor.start()
        first = executor.driver_pid
        os.kill(first, signal.SIGSTOP)
        await until(lambda: executor.driver_pid not in {first, 0} and executor.scaling.capacity == 2)
        await executor.close()

    asyncio.run(main())


def test_what_no_frame_holds_is_refused_alone(in_rays_place):
    in_rays_place(ACTING)

    async def main():
        child = await start()
        with pytest.raises(PayloadTooLargeError, match="an answer of 6710.* bytes"):
            await call(child, f'{{"size": {MAX_FRAME_BYTES}}}')
        with pytest.raises(PayloadTooLargeError, match="lower request_samples") as caught:
            await call(child, "x" * MAX_FRAME_BYTES)
        assert caught.value.refused
        assert await call(child, '{"size": 1}') == '{"result":{"text":"x"}}'
        await child.kill()

    asyncio.run(main())
