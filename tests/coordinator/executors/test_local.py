"""The local executor with real processes: it runs the real function and survives every failing worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from superdl.coordinator.executors import (
    ExecutorContext,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    ThrottledError,
)
from superdl.coordinator.executors import local as local_module
from superdl.coordinator.executors.local import LocalExecutor, LocalSettings
from tests.coordinator.executors.asking import TIMEOUT_S, ask, ask_for_images, assert_cached
from tests.coordinator.executors.processes import alive, until


def local(workers, function):
    return LocalExecutor(LocalSettings(workers, worker_nice=7), ExecutorContext("", function))


@contextlib.asynccontextmanager
async def pool(function, workers=1):
    executor = local(workers, function)
    await executor.start()
    try:
        yield executor
    finally:
        pids = executor.worker_pids
        await executor.close()
        assert executor.worker_pids == []
        assert not [pid for pid in pids if alive(pid)]


async def pid_of(executor):
    return int((await executor.invoke(ask("pid"), timeout_s=TIMEOUT_S)).messages["0"])


@pytest.fixture
def misbehaving(functions):
    return f"{functions}:misbehaving"


def test_the_real_function_fills_a_real_cache(functions, tmp_path, valkey):
    request, pixels = ask_for_images(tmp_path, valkey.unix_url)

    async def main():
        async with pool("superdl.lambda_prefetch.handler:handler") as executor:
            assert executor.name == "local"
            assert len(executor.fingerprint) == 32
            first = await executor.invoke(request, timeout_s=TIMEOUT_S)
            second = await executor.invoke(request, timeout_s=TIMEOUT_S)
            return first, second

    first, second = asyncio.run(main())
    assert first.outcomes == second.outcomes == ("cached",) * 8
    assert not second.cold_start  # the warm event was
    assert_cached(valkey, request, pixels)


def test_a_worker_that_asks_for_its_end_is_ended_once_it_has_answered(misbehaving):
    """Nothing is lost: its answer counts, and no request meets the worker while it ends."""

    async def main():
        async with pool(misbehaving) as executor:
            for _ in range(3):
                told = await executor.invoke(ask("end"), timeout_s=TIMEOUT_S)
                assert told.outcomes == ("cached",)
                ended = int(told.messages["0"])
                assert await pid_of(executor) != ended
                await until(lambda pid=ended: not alive(pid))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("does", "words"),
    [("exit:0", "exit code 0"), ("kill", "SIGKILL"), ("system-exit", "exit code 7")],
)
def test_a_crash_costs_its_request_and_nothing_else(misbehaving, does, words):
    async def main():
        async with pool(misbehaving) as executor:
            before = await pid_of(executor)
            with pytest.raises(FunctionCrashedError, match=words):
                await executor.invoke(ask(does), timeout_s=TIMEOUT_S)
            assert await pid_of(executor) != before

    asyncio.run(main())


@pytest.mark.parametrize("how", ["hang", "hang-in-c"])
def test_a_hang_is_ended_after_its_time(misbehaving, tmp_path, how):
    async def main():
        async with pool(misbehaving) as executor:
            before = await pid_of(executor)
            with pytest.raises(FunctionTimedOutError, match=r"0\.3 s"):
                await executor.invoke(ask(f"{how}:{tmp_path}/hangs"), timeout_s=0.3)
            after = await pid_of(executor)
            assert after != before
            await until(lambda: not alive(before))

    asyncio.run(main())


def test_what_the_function_raises_is_told_and_the_worker_stays(misbehaving):
    async def main():
        async with pool(misbehaving) as executor:
            before = await pid_of(executor)
            with pytest.raises(FunctionRaisedError, match="ValueError: so be it"):
                await executor.invoke(ask("raise:so be it"), timeout_s=TIMEOUT_S)
            with pytest.raises(FunctionRaisedError, match="no prefetch result"):
                await executor.invoke(ask("nonsense"), timeout_s=TIMEOUT_S)
            with pytest.raises(FunctionRaisedError, match="TypeError"):
                await executor.invoke(ask("not-json"), timeout_s=TIMEOUT_S)
            assert await pid_of(executor) == before

    asyncio.run(main())


def test_a_second_answer_is_not_the_next_requests(functions, caplog):
    async def main():
        async with pool(f"{functions}:answering_twice") as executor:
            before = await pid_of(executor)
            names = [f"plain:{n}" for n in range(3)]
            answers = [await executor.invoke(ask(name), timeout_s=TIMEOUT_S) for name in names]
            assert [answer.request_id for answer in answers] == names
            assert await pid_of(executor) == before

    asyncio.run(main())
    assert "answered call 2 more than once" in caplog.text


def test_a_worker_that_answers_what_was_not_asked_is_replaced(functions):
    async def main():
        async with pool(f"{functions}:answering_what_was_not_asked") as executor:
            await executor.invoke(ask(), timeout_s=TIMEOUT_S)

    with pytest.raises(FunctionCrashedError, match="answered call 1000000, which was never made"):
        asyncio.run(main())


def test_what_the_function_prints_disturbs_no_answer(misbehaving, capfd):
    async def main():
        async with pool(misbehaving) as executor:
            return await executor.invoke(ask("print"), timeout_s=TIMEOUT_S)

    assert asyncio.run(main()).outcomes == ("cached",)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "printed by the function" in captured.err
    assert "written to standard output" in captured.err


def test_nobody_waits_for_ever_for_a_free_worker(misbehaving, tmp_path):
    async def main():
        async with pool(misbehaving) as executor:
            gate = tmp_path / "gate"
            busy = asyncio.create_task(executor.invoke(ask(f"wait:{gate}"), timeout_s=TIMEOUT_S))
            await asyncio.sleep(0)
            with pytest.raises(ThrottledError, match="none of the 1 local workers was free"):
                await executor.invoke(ask(), timeout_s=0.1)
            gate.touch()
            await busy
            assert (await executor.invoke(ask(), timeout_s=TIMEOUT_S)).outcomes == ("cached",)

    asyncio.run(main())


def test_a_cancelled_call_does_not_leave_its_answer_to_the_next(misbehaving, tmp_path):
    async def main():
        async with pool(misbehaving) as executor:
            before = await pid_of(executor)
            call = asyncio.create_task(executor.invoke(ask(f"hang:{tmp_path}/hangs"), timeout_s=TIMEOUT_S))
            await until((tmp_path / "hangs").exists)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await pid_of(executor) != before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("{functions}:no_such_function", "AttributeError"),
        ("no_such_module_anywhere:handler", "ModuleNotFoundError"),
        ("{functions}:raises_when_warmed", "RuntimeError: no warm welcome"),
        ("{functions}:without_fingerprint", "a worker answered a warm event with"),
    ],
)
def test_a_function_that_cannot_start_is_told_at_once(functions, function, words):
    async def main():
        executor = local(2, function.format(functions=functions))
        with pytest.raises(ExecutorError, match=words):
            await executor.start()
        assert executor.worker_pids == []

    asyncio.run(main())


def test_a_worker_that_ended_before_it_was_asked_still_tells_why():
    """As one whose function cannot be imported does on a busy machine."""

    async def main():
        worker = await local_module._Worker.start(
            local_module._MODULE, "no_such_module_anywhere:handler", "0", environment=dict(os.environ)
        )
        await worker.wait()
        with pytest.raises(FunctionRaisedError, match="no_such_module_anywhere"):
            await worker.warm(30.0)

    asyncio.run(main())


def test_workers_give_way_to_all_else(functions):
    async def main():
        async with pool(f"{functions}:misbehaving") as executor:
            nice = [psutil.Process(pid).nice() for pid in executor.worker_pids]
            assert nice == [psutil.Process().nice() + 7]

    asyncio.run(main())


def test_workers_that_decode_otherwise_are_refused(functions, caplog):
    async def main():
        async with pool(f"{functions}:disagreeing", workers=2) as executor:
            fingerprint = executor.fingerprint
            await until(lambda: "decoder has the fingerprint" in caplog.text)
            assert executor.fingerprint == fingerprint

    asyncio.run(main())


COORDINATOR = """
import asyncio, sys
from superdl.coordinator.executors import ExecutorContext
from superdl.coordinator.executors.local import LocalExecutor, LocalSettings
from tests.coordinator.executors.asking import ask

async def main():
    executor = LocalExecutor(LocalSettings(2), ExecutorContext("", sys.argv[1]))
    await executor.start()
    while len(executor.worker_pids) < 2:
        await asyncio.sleep(0.01)
    print(*executor.worker_pids, flush=True)
    await executor.invoke(ask("hang:" + sys.argv[2]), timeout_s=3600)

asyncio.run(main())
"""


def test_no_worker_outlives_its_coordinator_even_in_the_middle_of_a_request(functions, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, f"{functions}:misbehaving", f"{tmp_path}/hangs"],
        stdout=subprocess.PIPE,
        text=True,
    ) as coordinator:
        pids = [int(pid) for pid in coordinator.stdout.readline().split()]
        asyncio.run(until((tmp_path / "hangs").exists))
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        coordinator.kill()
    asyncio.run(until(lambda: not any(alive(pid) for pid in pids)))


def test_ctrl_c_does_not_reach_the_workers(misbehaving):
    async def main():
        async with pool(misbehaving) as executor:
            before = await pid_of(executor)
            os.kill(before, signal.SIGINT)
            assert os.getpgid(before) != os.getpgid(0)
            assert await pid_of(executor) == before

    asyncio.run(main())
