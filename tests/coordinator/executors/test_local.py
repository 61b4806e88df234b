"""The local executor with real processes: its worker runs the real function, and is replaced if it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import psutil
import pytest

from superdl.coordinator.executors.base import (
    ExecutorContext,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    ThrottledError,
)
from superdl.coordinator.executors.local import LocalExecutor, LocalSettings
from tests.coordinator.executors.asking import TIMEOUT_S, ask, ask_for_images, assert_cached
from tests.coordinator.executors.processes import alive, until

WORKER, SLOT = "superdl.lambda_prefetch.worker", "superdl.lambda_prefetch.worker.slot"


@pytest.fixture
def sockets(tmp_path):
    """A directory for an executor's socket, in which nothing must be left."""
    directory = tmp_path / "sockets"
    directory.mkdir()
    yield str(directory)
    assert list(directory.iterdir()) == []


def local(slots, function, sockets=""):
    return LocalExecutor(LocalSettings(slots, worker_nice=7), ExecutorContext("", function, sockets=sockets))


@contextlib.asynccontextmanager
async def started(function, slots=1, sockets=""):
    executor = local(slots, function, sockets)
    before = pids_of(WORKER)
    await executor.start()
    (worker,) = set(pids_of(WORKER)) - set(before)
    try:
        yield executor, worker
    finally:
        pids = [pid for living in pids_of(WORKER) for pid in (living, *pids_of(SLOT, living))]
        await executor.close()
        assert not [pid for pid in pids if alive(pid)]


def pids_of(module, parent=None):
    """Children that run a module."""
    children = psutil.Process(parent).children() if alive(parent or os.getpid()) else []
    return [child.pid for child in children if module in words_of(child)]


def words_of(process):
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


async def pid_of(executor):
    return int((await executor.invoke(ask("pid"), timeout_s=TIMEOUT_S)).messages["0"])


@pytest.fixture
def misbehaving(functions):
    return f"{functions}:misbehaving"


def test_the_real_function_fills_a_real_cache(functions, tmp_path, valkey, sockets):
    request, pixels = ask_for_images(tmp_path, valkey.unix_url)

    async def main():
        async with started("superdl.lambda_prefetch.handler:handler", sockets=sockets) as (executor, worker):
            assert (executor.name, executor.scaling.capacity, len(executor.fingerprint)) == ("local", 1, 32)
            first = await executor.invoke(request, timeout_s=TIMEOUT_S)
            second = await executor.invoke(request, timeout_s=TIMEOUT_S)
            nice = [psutil.Process(pid).nice() for pid in pids_of(SLOT, worker)]
            assert nice == [psutil.Process().nice() + 7]
            return first, second

    first, second = asyncio.run(main())
    assert first.outcomes == second.outcomes == ("cached",) * 8
    assert not second.cold_start  # the warm event was
    assert_cached(valkey, request, pixels)


@pytest.mark.parametrize(
    ("does", "kind", "words"),
    [
        ("kill", FunctionCrashedError, "SIGKILL"),
        ("hang-in-c:{}", FunctionTimedOutError, "1 s"),
        ("raise:so be it", FunctionRaisedError, "ValueError: so be it"),
        ("nonsense", FunctionRaisedError, "no prefetch result"),
        ("for-another", FunctionRaisedError, "answered for 'another'"),
    ],
)
def test_each_failure_is_named_and_the_next_request_is_answered(misbehaving, tmp_path, does, kind, words):
    async def main():
        async with started(misbehaving) as (executor, worker):
            timeout_s = 1.0 if kind is FunctionTimedOutError else TIMEOUT_S
            with pytest.raises(kind, match=words) as failed:
                await executor.invoke(ask(does.format(tmp_path / "hangs")), timeout_s=timeout_s)
            assert type(failed.value) is kind
            assert await pid_of(executor) in pids_of(SLOT, worker)

    asyncio.run(main())


def test_nobody_waits_for_ever_for_a_free_slot(misbehaving, tmp_path):
    async def main():
        async with started(misbehaving) as (executor, _):
            gate = tmp_path / "gate"
            busy = asyncio.create_task(executor.invoke(ask(f"wait:{gate}"), timeout_s=TIMEOUT_S))
            await asyncio.sleep(0)
            with pytest.raises(ThrottledError, match="all 1 slots of 1 workers were busy"):
                await executor.invoke(ask(), timeout_s=0.1)
            gate.touch()
            await busy
            assert (await executor.invoke(ask(), timeout_s=TIMEOUT_S)).outcomes == ("cached",)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("{functions}:no_such_function", "AttributeError"),
        ("no_such_module_anywhere:handler", "ModuleNotFoundError"),
        ("{functions}:without_fingerprint", "it is not SUPER's function"),
    ],
)
def test_a_function_that_cannot_start_is_told_at_once(functions, sockets, function, words):
    async def main():
        before = pids_of(WORKER)
        with pytest.raises(ExecutorError, match=words):
            await local(2, function.format(functions=functions), sockets).start()
        assert pids_of(WORKER) == before

    asyncio.run(main())


def test_a_worker_that_is_killed_is_replaced(misbehaving, tmp_path):
    async def main():
        async with started(misbehaving) as (executor, worker):
            running = asyncio.create_task(executor.invoke(ask(f"hang:{tmp_path}/hangs"), timeout_s=TIMEOUT_S))
            await until((tmp_path / "hangs").exists)
            slots, fingerprint = pids_of(SLOT, worker), executor.fingerprint
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(ExecutorError, match="is gone"):
                await running
            assert await pid_of(executor) not in slots
            assert executor.fingerprint == fingerprint
            await until(lambda: not any(map(alive, slots)))

    asyncio.run(main())


def test_slots_that_decode_differently_are_refused(functions, capfd):
    said = []

    def is_said():
        said.append(capfd.readouterr().err)
        return "restart the worker" in "".join(said)

    async def main():
        async with started(f"{functions}:disagreeing", slots=2) as (executor, _):
            fingerprint = executor.fingerprint
            await until(is_said)
            assert executor.fingerprint == fingerprint

    asyncio.run(main())


COORDINATOR = """
import asyncio, sys
from superdl.coordinator.executors.base import ExecutorContext
from superdl.coordinator.executors.local import LocalExecutor, LocalSettings
from tests.coordinator.executors.asking import ask

async def main():
    executor = LocalExecutor(LocalSettings(2), ExecutorContext("", sys.argv[1], sockets=sys.argv[3]))
    await executor.start()
    await executor.invoke(ask("hang:" + sys.argv[2]), timeout_s=3600)

asyncio.run(main())
"""


def test_no_process_outlives_its_coordinator_even_in_the_middle_of_a_request(misbehaving, tmp_path):
    hangs = tmp_path / "hangs"
    command = [sys.executable, "-c", COORDINATOR, misbehaving, str(hangs), str(tmp_path)]
    with subprocess.Popen(command) as coordinator:
        asyncio.run(until(hangs.exists))
        (worker,) = pids_of(WORKER, coordinator.pid)
        slots = pids_of(SLOT, worker)
        assert len(slots) == 2
        coordinator.kill()
    asyncio.run(until(lambda: not any(map(alive, [worker, *slots]))))


def test_ctrl_c_does_not_reach_worker_and_slots(misbehaving):
    async def main():
        async with started(misbehaving) as (executor, worker):
            before = await pid_of(executor)
            assert len({os.getpgid(pid) for pid in (before, worker, 0)}) == 3
            os.kill(before, signal.SIGINT)
            assert await pid_of(executor) == before

    asyncio.run(main())
