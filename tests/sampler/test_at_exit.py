"""Processes that exit without closing their samplers close the jobs that they opened, without waiting."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
END_TIMEOUT_S = 60.0

PROLOGUE = """
import os, sys
from superdl.sampler import SuperSampler
from tests.sampler.stand_ins import BoundDataset

def make(**arguments):
    return SuperSampler(BoundDataset(), batch_size=2, shuffle=True, coordinator=sys.argv[1], **arguments)
"""


def ended(coordinator, program, code=0):
    """Run a program to its end and return its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(  # our own program
        [sys.executable, "-c", PROLOGUE + program, coordinator.address],
        capture_output=True,
        text=True,
        timeout=END_TIMEOUT_S,
        check=False,
        env=environment,
    )
    assert done.returncode == code, done.stderr
    return done


def closed(coordinator):
    return [(request.job, request.rank) for request in coordinator.requests("CloseJob")]


def test_unclosed_samplers_are_closed_at_exit(coordinator):
    program = """
first, second = make(), make(rank=1, num_replicas=2)
next(iter(first))
make(seed=5).close()
print(first.job, second.job)
"""
    done = ended(coordinator, program)
    first, second = done.stdout.split()
    assert sorted(closed(coordinator)[1:]) == sorted([(first, 0), (second, 1)])
    assert len(closed(coordinator)) == 3, "what was closed is not closed again"
    assert coordinator.jobs == {}
    assert done.stderr == ""


def test_a_forked_child_closes_nothing(coordinator):
    program = """
sampler = make()
next(iter(sampler))
child = os.fork()
if not child:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.stdout.flush()
next(iter(sampler))  # the job is still open for the parent
os._exit(0)  # without closing the job
"""
    assert ended(coordinator, program).stdout == "7\n"
    assert closed(coordinator) == []
    assert coordinator.count("OpenJob") == 1


def test_a_silent_coordinator_is_called_once_at_exit(coordinator):
    coordinator.closing.clear()
    ended(coordinator, "samplers = [make() for _ in range(3)]")
    coordinator.closing.set()
    assert len(closed(coordinator)) == 1, "the others are not tried"
