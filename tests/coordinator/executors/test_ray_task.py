"""What runs on a node, without a node: it says that it has begun, then what the function answers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from superdl.coordinator.executors.ray_task import BEGUN, RayContext, run
from tests.coordinator.executors.asking import ask

# Ray runs a task so; in a process of its own, since it sets variables and a watchdog for the process.
PROGRAM = """
import sys
from superdl.coordinator.executors.ray_task import run
for item in run(sys.argv[1], sys.argv[2].encode(), "ray-1", float(sys.argv[3]), 2):
    print(item.decode(), flush=True)
import os
print(os.environ["SUPER_DECODERS"], os.environ["SUPER_LOG_LEVEL"])
"""


def ran(function, event, timeout_s=60.0, program=PROGRAM):
    return subprocess.run(
        [sys.executable, "-c", program, function, json.dumps(event), str(timeout_s)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_it_answers_after_it_has_said_that_it_has_begun(functions):
    done = ran(f"{functions}:misbehaving", {"super_warm": 1, "cache": ""})
    begun, answer, decoders = done.stdout.splitlines()
    assert begun == BEGUN.decode()
    assert json.loads(answer)["result"]["golden"] == "a" * 32
    assert decoders == "2 WARNING"


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("functions_of_tests:raises_when_warmed", "RuntimeError", "no warm welcome"),
        ("functions_of_tests:none", "AttributeError", "none"),
        ("no_such_module:handler", "ModuleNotFoundError", "no_such_module"),
    ],
)
def test_what_the_function_raises_is_an_answer_too(functions, function, error, words):
    begun, answer, _ = ran(function, {"super_warm": 1}).stdout.splitlines()
    assert begun == BEGUN.decode()
    said = json.loads(answer)
    assert said["error"] == error
    assert words in said["message"]


def test_the_time_starts_when_it_begins():
    task = run("json:dumps", b"{}", "ray-1", 60.0, 1)
    assert next(task) == BEGUN
    assert 0 < RayContext("ray-1", 60.0).get_remaining_time_in_millis() <= 60_000
    assert RayContext("ray-1", -1.0).get_remaining_time_in_millis() == 0
    task.close()


@pytest.mark.slow
def test_a_process_in_which_something_is_stuck_ends_soon_after_the_answer(functions):
    event = json.loads(ask("end").to_json())
    waiting = PROGRAM + "import threading; threading.Event().wait()"
    done = ran(f"{functions}:misbehaving", event, program=waiting)
    assert done.returncode != 0
    assert json.loads(done.stdout.splitlines()[1])["result"]["outcomes"] == ["cached"]
