"""The CPU clocks count what they say, of this process, its children and others."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.cpu_clock import children_cpu_s, descendants_cpu_s, process_cpu_s

BURN_S = 0.05
BURNER = f"""
import sys, time
while time.process_time() < {BURN_S}:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def burner():
    """A child that has burnt some CPU and now waits."""
    with subprocess.Popen(
        [sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"burnt\n"
        yield process


def test_own_clock_is_the_processes():
    before = time.process_time()
    clock = process_cpu_s(os.getpid())
    assert before <= clock <= time.process_time()


def test_a_child_is_counted_alive_and_waited_for(burner):
    assert process_cpu_s(burner.pid) >= BURN_S
    assert descendants_cpu_s(os.getpid()) >= BURN_S
    alive = children_cpu_s()
    burner.communicate()
    # The clock of the ended is coarser where the system counts in ticks.
    assert children_cpu_s() >= alive - 0.02


def test_a_process_that_is_gone_is_an_error(burner):
    burner.communicate()
    with pytest.raises(ProcessLookupError):
        process_cpu_s(burner.pid)
    with pytest.raises(ProcessLookupError):
        descendants_cpu_s(burner.pid)
