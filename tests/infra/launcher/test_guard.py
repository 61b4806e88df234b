"""A guard runs one command, gives its exit code, and leaves nothing of it behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import infra.launcher

GUARD = Path(infra.launcher.__file__).with_name("guard.py")
WAIT_S = 30.0
# A stray in a session of its own, as torchrun's ranks and Ray's daemons are; its pid is printed.
STRAY = "setsid sleep 1000 & echo $!;"


@pytest.fixture
def guarded():
    started = []

    def start(script):
        process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


def gone(pid):
    deadline = time.monotonic() + WAIT_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("true", 0), ("kill -9 $$", 128 + 9)])
def test_the_commands_exit_code_is_the_guards(guarded, script, code):
    assert guarded(script).wait(WAIT_S) == code


def test_a_program_that_is_not_there_is_code_127():
    run = subprocess.run(
        [sys.executable, "-I", str(GUARD), "/nonexistent"],
        input="",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert run.returncode == 127
    assert "/nonexistent could not be started" in run.stderr


def test_what_a_command_has_left_ends_with_it(guarded):
    process = guarded(f"{STRAY} exit 4")
    stray = int(process.stdout.readline())
    assert process.wait(WAIT_S) == 4
    assert gone(stray)


def test_sigterm_is_handed_on(guarded):
    process = guarded("trap 'exit 5' TERM; echo ready; sleep 1000 & wait")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 5


def test_who_does_not_heed_sigterm_is_killed_on_order(guarded):
    process = guarded(f"trap '' TERM; {STRAY} while :; do sleep 1; done")
    stray = int(process.stdout.readline())
    process.send_signal(signal.SIGTERM)
    process.stdin.write("kill")
    process.stdin.flush()
    assert process.wait(WAIT_S) == 128 + signal.SIGKILL
    assert gone(stray)


def test_all_ends_when_nobody_holds_standard_input_any_more(guarded):
    process = guarded(f"{STRAY} wait")
    stray = int(process.stdout.readline())
    process.stdin.close()
    assert process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert gone(stray)
