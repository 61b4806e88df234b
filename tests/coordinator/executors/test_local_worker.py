"""Run the local executor with real processes. Its worker runs the real function and is replaced on exit."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from superdl.coordinator.executors.base import ExecutorContext, ExecutorError
from superdl.coordinator.executors.local_worker import LocalExecutor, LocalSettings, Scratch
from superdl.super_wire.worker_process import WorkerProcess
from tests.coordinator.executors.asking import TIMEOUT_S, ask, ask_for_images, assert_cached
from tests.coordinator.executors.processes import alive, children_running, until

WORKER, SLOT = "superdl.lambda_prefetch.worker", "superdl-slot"


@pytest.fixture
def sockets(tmp_path):
    """A directory for an executor's socket, in which nothing may be left behind."""
    directory = tmp_path / "sockets"
    directory.mkdir()
    yield str(directory)
    assert list(directory.iterdir()) == []


def local(slots, function, sockets=""):
    return LocalExecutor(LocalSettings(slots, worker_nice=7), ExecutorContext("", function, sockets=sockets))


@contextlib.asynccontextmanager
async def started(function, slots=1, sockets=""):
    executor = local(slots, function, sockets)
    before = children_running(WORKER)
    await executor.start()
    (worker,) = set(children_running(WORKER)) - set(before)
    try:
        yield executor, worker
    finally:
        pids = [
            pid for living in children_running(WORKER) for pid in (living, *children_running(SLOT, living))
        ]
        await executor.close()
        assert not [pid for pid in pids if alive(pid)]


async def pid_of(executor):
    return int((await executor.invoke(ask("pid"), timeout_s=TIMEOUT_S)).messages["0"])


@pytest.fixture
def misbehaving(functions):
    return f"{functions}:misbehaving"


async def test_the_real_function_fills_a_real_cache(functions, tmp_path, valkey, sockets):
    request, pixels = ask_for_images(tmp_path, valkey.unix_url)
    async with started("superdl.lambda_prefetch.handler:handler", sockets=sockets) as (executor, worker):
        assert (executor.name, executor.scaling.capacity, len(executor.fingerprint)) == ("local", 1, 32)
        first = await executor.invoke(request, timeout_s=TIMEOUT_S)
        second = await executor.invoke(request, timeout_s=TIMEOUT_S)
        nice = {psutil.Process(pid).nice() for pid in children_running(SLOT, worker)}
        assert nice == {psutil.Process().nice(), psutil.Process().nice() + 7}  # the first forks the others
    assert first.outcomes == second.outcomes == ("cached",) * 8
    assert not second.cold_start  # the warm-up was the cold start
    assert_cached(valkey, request, pixels)


async def test_slots_with_another_decoder_are_refused(functions, capfd):
    said = []

    def is_said():
        said.append(capfd.readouterr().err)
        return "Restart the worker" in "".join(said)

    async with started(f"{functions}:disagreeing", slots=2) as (executor, _):
        fingerprint = executor.fingerprint
        await until(is_said)
        assert executor.fingerprint == fingerprint


COORDINATOR = """
import asyncio, sys
from superdl.coordinator.executors.base import ExecutorContext
from superdl.coordinator.executors.local_worker import LocalExecutor, LocalSettings
from tests.coordinator.executors.asking import ask

async def main():
    executor = LocalExecutor(LocalSettings(2), ExecutorContext("", sys.argv[1], sockets=sys.argv[3]))
    await executor.start()
    await executor.invoke(ask("hang:" + sys.argv[2]), timeout_s=3600)

asyncio.run(main())
"""


def test_no_process_outlives_its_coordinator(misbehaving, tmp_path):
    hangs = tmp_path / "hangs"
    command = [sys.executable, "-c", COORDINATOR, misbehaving, str(hangs), str(tmp_path)]
    with subprocess.Popen(command) as coordinator:
        asyncio.run(until(hangs.exists))
        (worker,) = children_running(WORKER, coordinator.pid)
        slots = children_running(SLOT, worker)
        assert len(slots) == 3  # including the process that forks them
        coordinator.kill()
    asyncio.run(until(lambda: not any(map(alive, [worker, *slots]))))


async def test_ctrl_c_does_not_reach_worker_and_slots(misbehaving):
    async with started(misbehaving) as (executor, worker):
        before = await pid_of(executor)
        assert len({os.getpgid(pid) for pid in (before, worker, 0)}) == 3
        os.kill(before, signal.SIGINT)
        assert await pid_of(executor) == before


@pytest.mark.parametrize("is_killed", [False, True])
async def test_an_early_worker_is_used_unless_it_has_ended(misbehaving, is_killed):
    early = WorkerProcess("")
    (pid,) = children_running(WORKER)
    if is_killed:
        os.kill(pid, signal.SIGKILL)
        assert await early.ended() == -signal.SIGKILL
    executor = LocalExecutor(LocalSettings(1), ExecutorContext("", misbehaving, worker=early))
    try:
        await executor.start()
        assert (children_running(WORKER) == [pid]) is not is_killed
        assert await pid_of(executor)
    finally:
        await executor.close()


ANOTHER = """
import sys
from pathlib import Path
from superdl.coordinator.executors.local_worker import Scratch
mine = Scratch(Path(sys.argv[1]))
print(mine.path, flush=True)
sys.stdin.read()
"""


def test_scratch_directories_of_killed_processes_are_removed(tmp_path):
    parent = tmp_path / "not" / "there yet"
    command = [sys.executable, "-c", ANOTHER, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as another:
        theirs = Path(another.stdout.readline().strip())
        (theirs / "block").write_bytes(b"x" * 1000)
        mine = Scratch(parent)
        assert set(parent.iterdir()) == {theirs, Path(mine.path)}
        another.kill()
    (Path(mine.path) / "block").write_bytes(b"x")
    mine.remove()
    assert set(parent.iterdir()) == {theirs}
    last = Scratch(parent)
    assert set(parent.iterdir()) == {Path(last.path)}
    last.remove()


async def test_a_broken_decoder_is_named(tmp_path, monkeypatch):
    (tmp_path / "PIL.py").write_text("raise ImportError('this Pillow has no JPEG')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    executor = LocalExecutor(LocalSettings(1), ExecutorContext(""))
    with pytest.raises(ExecutorError, match="this Pillow has no JPEG"):
        await executor.start()
