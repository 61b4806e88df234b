"""What runs functions: a worker process by itself, and a task of Ray without a node."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from superdl.coordinator.executors.worker import BEGUN, line_of, parse, run_task
from tests.coordinator.executors.asking import ask

WORKER = [sys.executable, "-P", "-m", "superdl.coordinator.executors.worker"]


def start(function, command=WORKER, **options):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*command, function, "0"], **pipes, **options)


def send(process, event, timeout_s=60.0, call=1):
    process.stdin.write(line_of({"call": call, "event": event, "timeout_s": timeout_s}))
    process.stdin.flush()


def answer_of(process):
    return parse(process.stdout.readline())


def test_it_answers_and_ends_with_its_input(functions):
    with start(f"{functions}:misbehaving") as process:
        for call in (1, 7):
            send(process, {"super_warm": 1, "name": "ä\n"}, call=call)
            answer = answer_of(process)
            assert (answer["call"], answer["result"]["golden"]) == (call, "a" * 32)
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff\xff\n", b"abc\n"])
def test_rubbish_ends_it(functions, rubbish):
    with start(f"{functions}:misbehaving") as process:
        process.stdin.write(rubbish)
        process.stdin.flush()
        assert process.wait(20) == 1
        assert b"message" in process.stderr.read()


OVERTIME = """
import sys
from superdl.coordinator.executors import worker
worker._OVERTIME_S = 0.1
worker.main(sys.argv[1:])
"""


def test_it_ends_itself_when_nobody_does(functions, tmp_path):
    """Even where it hangs in native code, with the interpreter's lock held."""
    with start(f"{functions}:misbehaving", [sys.executable, "-c", OVERTIME]) as process:
        send(process, json.loads(ask(f"hang-in-c:{tmp_path}/hangs").to_json()), timeout_s=0.1)
        assert process.wait(20) != 0
        assert (tmp_path / "hangs").exists()
        assert b"Timeout" in process.stderr.read()


def test_the_real_function_runs_without_what_is_slow_to_import(functions):
    program = (
        "import sys\n"
        "from superdl.coordinator.executors import worker\n"
        "worker._load('superdl.lambda_prefetch.handler:handler')\n"
        "print(sorted({'torch', 'grpc', 'google.protobuf', 'asyncio', 'boto3', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


# Ray runs a task so; in a process of its own, since it sets variables and a watchdog for the process.
TASK = """
import os, sys
from superdl.coordinator.executors.worker import run_task
for item in run_task(sys.argv[1], sys.argv[2].encode(), "ray-1", 60.0, 2):
    print(item.decode().rstrip(), flush=True)
print(os.environ["SUPER_DECODERS"], os.environ["SUPER_LOG_LEVEL"])
"""


def ran(function, event, program=TASK):
    command = [sys.executable, "-c", program, function, json.dumps(event)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_task_answers_after_it_has_said_that_it_has_begun(functions):
    begun, answer, decoders = ran(f"{functions}:misbehaving", {"super_warm": 1}).stdout.splitlines()
    assert begun == BEGUN.decode()
    assert json.loads(answer)["result"]["golden"] == "a" * 32
    assert decoders == "2 WARNING"
    task = run_task("json:dumps", b"{}", "ray-1", 60.0, 1)
    assert next(task) == BEGUN
    task.close()


@pytest.mark.slow
def test_a_process_in_which_something_is_stuck_ends_soon_after_the_answer(functions):
    event = json.loads(ask("end").to_json())
    done = ran(f"{functions}:misbehaving", event, TASK + "import threading; threading.Event().wait()")
    assert done.returncode != 0
    assert json.loads(done.stdout.splitlines()[1])["result"]["outcomes"] == ["cached"]
