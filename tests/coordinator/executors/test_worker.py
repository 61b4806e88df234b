"""A worker process by itself: it is light, ends with its input, and ends itself when it is over its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from superdl.coordinator.executors import worker
from superdl.coordinator.executors.framing import LENGTH_BYTES, body_length, frame, parse
from tests.coordinator.executors.asking import ask

COMMAND = [sys.executable, "-P", "-m", "superdl.coordinator.executors.worker"]


def start(function, **options):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, function], **pipes, **options)


def exchange(process, event, timeout_s=60.0, call=1):
    process.stdin.write(frame({"call": call, "event": event, "timeout_s": timeout_s}))
    process.stdin.flush()
    return parse(process.stdout.read(body_length(process.stdout.read(LENGTH_BYTES))))


def test_it_answers_and_ends_with_its_input(functions):
    with start(f"{functions}:misbehaving") as process:
        assert exchange(process, {"super_warm": 1})["result"]["golden"] == "a" * 32
        assert exchange(process, {"super_warm": 1}, call=7)["call"] == 7, "an answer names its call"
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize("rubbish", [b"\xff\xff\xff\xff", b"\0\0\0\x03abc"])
def test_rubbish_ends_it(functions, rubbish):
    with start(f"{functions}:misbehaving", stderr=subprocess.PIPE) as process:
        process.stdin.write(rubbish)
        process.stdin.flush()
        assert process.wait(20) == 1
        assert b"message" in process.stderr.read()


def test_a_function_that_cannot_be_imported_is_its_answer(functions):
    with start(f"{functions}:none") as process:
        answer = parse(process.stdout.read(body_length(process.stdout.read(LENGTH_BYTES))))
        assert (answer["call"], answer["error"]) == (1, "AttributeError")
        assert f"{functions}:none" in answer["message"]
        assert process.wait(20) == 1


OVERTIME = """
import sys
from superdl.coordinator.executors import worker
worker._OVERTIME_S = 0.1
worker.main(sys.argv[1:])
"""


def test_it_ends_itself_when_nobody_does(functions, tmp_path):
    """Even where it hangs in native code, with the interpreter's lock held."""
    request = ask(f"hang-in-c:{tmp_path}/hangs")
    command = [sys.executable, "-c", OVERTIME, f"{functions}:misbehaving"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdin.write(frame({"call": 1, "event": json.loads(request.to_json()), "timeout_s": 0.1}))
        process.stdin.flush()
        assert process.wait(20) != 0
        assert (tmp_path / "hangs").exists()
        assert b"Timeout" in process.stderr.read()


def test_the_real_function_runs_without_grpc_torch_and_asyncio(functions):
    program = (
        "import sys\n"
        "from superdl.coordinator.executors import worker\n"
        "worker._load('superdl.lambda_prefetch.handler:handler')\n"
        "print(sorted({'torch', 'grpc', 'google.protobuf', 'asyncio', 'boto3'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_context_has_lambdas_names():
    context = worker.LocalContext(3, 10.0)
    assert context.aws_request_id == f"local-{os.getpid()}-3"
    assert context.memory_limit_in_mb == 0
    assert context.function_name in context.invoked_function_arn
    assert 0 < context.get_remaining_time_in_millis() <= 10_000
    assert worker.LocalContext(1, -1.0).get_remaining_time_in_millis() == 0
