"""Slots run functions. A failure of any kind costs only its request."""

import asyncio
import contextlib
import json
import os
import select
import signal
from pathlib import Path

import psutil
import pytest

from superdl.lambda_prefetch.worker.slots import RequestFailedError, Slots
from superdl.lambda_prefetch.worker.template import Template
from superdl.super_wire.errors import SuperError
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.functions import MODULE
from tests.coordinator.executors.processes import alive, children_running, until

SLOT = "superdl.lambda_prefetch.worker.slot"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _functions_are_found(monkeypatch):
    """Make the functions importable for processes that do not search the current directory."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@contextlib.asynccontextmanager
async def slots_of(function, count=1):
    slots = Slots(f"{MODULE}:{function}", count, nice=7)
    await slots.start()
    try:
        yield slots
    finally:
        pids = children_running(SLOT)
        await slots.close()
        await until(lambda: not any(map(alive, pids)))


def pids_now():
    """Return the pids of slots, without the process that they are forked from."""
    return [pid for pid in children_running(SLOT) if os.getpgid(pid) != pid]


def sockets_of(pid):
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return {link for link in links if link.startswith("socket:")}


async def run(slots, what, timeout_s=TIMEOUT_S):
    return json.loads(await slots.run(ask(what).to_json().encode(), timeout_s))


@pytest.mark.parametrize(
    ("does", "kind", "words", "is_replaced"),
    [
        ("exit:0", "crashed", "exit code 0", True),
        ("kill", "crashed", "SIGKILL", True),
        ("system-exit", "crashed", "exit code 7", True),
        ("hang", "timed_out", "1 s", True),
        ("hang-in-c:{}", "timed_out", "1 s", True),
        ("raise:so be it", "raised", "ValueError: so be it", False),
        ("not-json", "raised", "TypeError", False),
    ],
)
def test_a_failure_costs_its_request_alone(tmp_path, does, kind, words, is_replaced):
    async def main():
        async with slots_of("misbehaving") as slots:
            (before,) = pids_now()
            timeout_s = 1.0 if kind == "timed_out" else TIMEOUT_S
            with pytest.raises(RequestFailedError, match=words) as failed:
                await run(slots, does.format(tmp_path / "hangs"), timeout_s)
            assert failed.value.kind == kind
            after = int((await run(slots, "pid"))["messages"]["0"])
            assert (after != before) == is_replaced
            assert psutil.Process(after).nice() == psutil.Process().nice() + 7

    asyncio.run(main())


def test_a_stuck_slot_is_replaced_and_prints_do_not_disturb(capfd):
    async def main():
        async with slots_of("misbehaving") as slots:
            ended = int((await run(slots, "end"))["messages"]["0"])
            assert int((await run(slots, "pid"))["messages"]["0"]) != ended
            assert (await run(slots, "print"))["outcomes"] == ["cached"]

    asyncio.run(main())
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "printed by the function" in captured.err
    assert "written to standard output" in captured.err


def test_a_duplicate_answer_is_not_used_for_the_next_request(caplog):
    async def main():
        async with slots_of("answering_twice") as slots:
            (before,) = pids_now()
            names = [f"plain:{n}" for n in range(3)]
            assert [(await run(slots, name))["request_id"] for name in names] == names
            assert pids_now() == [before]

    asyncio.run(main())
    assert "answered call 2 more than once" in caplog.text


def test_a_slot_with_an_unexpected_answer_is_replaced():
    async def main():
        async with slots_of("answering_what_was_not_asked") as slots:
            await run(slots, "plain")
            with pytest.raises(RequestFailedError, match="unexpected reply b'result' to call 1000000"):
                await run(slots, "plain")
            assert (await run(slots, "plain"))["outcomes"] == ["cached"]

    asyncio.run(main())


def test_cancelling_a_request_ends_its_slot(tmp_path):
    async def main():
        async with slots_of("misbehaving") as slots:
            (before,) = pids_now()
            running = asyncio.create_task(run(slots, f"hang:{tmp_path / 'hangs'}"))
            await until((tmp_path / "hangs").exists)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await until(lambda: not alive(before))
            assert int((await run(slots, "pid"))["messages"]["0"]) != before

    asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("no_such_function", "AttributeError"),
        ("raises_when_warmed", "RuntimeError: no warm welcome"),
        ("without_fingerprint", "is not from SUPER's function"),
    ],
)
def test_a_function_that_cannot_start_is_reported(function, words):
    async def main():
        with pytest.raises(SuperError, match=words):
            await Slots(f"{MODULE}:{function}", 2).start()
        await until(lambda: not children_running(SLOT))

    asyncio.run(main())


def test_the_process_that_forks_slots_is_replaced():
    async def main():
        async with slots_of("misbehaving", 2) as slots:
            await until(lambda: len(pids_now()) == 2)
            living = pids_now()
            (template,) = set(children_running(SLOT)) - set(living)
            os.kill(template, signal.SIGKILL)
            for pid in living:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not any(map(alive, living)))
            assert int((await run(slots, "pid"))["messages"]["0"]) not in living

    asyncio.run(main())


def test_a_slot_has_no_open_files_of_other_slots():
    async def main():
        async with slots_of("misbehaving", 2) as slots:
            await until(lambda: len(pids_now()) == 2)
            await run(slots, "pid")
            ends = [sockets_of(pid) for pid in pids_now()]
            assert [len(end) for end in ends] == [1, 1]
            assert ends[0] != ends[1]

    asyncio.run(main())


def test_a_slot_whose_worker_is_killed_with_an_answer_unread_ends():
    async def main():
        template = Template()
        try:
            return await template.fork()
        finally:
            await template.close()

    pid, connection = asyncio.run(main())
    start = {"function": "json:loads", "nice": 0, "environment": {}}
    connection.sendall(json.dumps(start).encode() + b"\n1 5 {}\n")
    assert select.select([connection], [], [], 30)[0], "it has answered"
    connection.close()
    asyncio.run(until(lambda: os.waitpid(pid, os.WNOHANG)[0]))
