"""Forks do not hang, print nothing, inherit no sockets, and need no second connection."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampler.relay import Relay

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
ROOT = PROGRAMS.parents[2]


@pytest.fixture
def relay(coordinator):
    coordinator.script.batches = 400
    coordinator.script.page_batches = 10
    running = Relay(coordinator.address)
    yield running
    running.close()


def run(*arguments, **variables):
    """What a fresh process prints; it must have nothing to complain of."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("forks", "variables"),
    [
        (60, {}),
        pytest.param(600, {}, marks=pytest.mark.slow),
        pytest.param(200, {"GRPC_ENABLE_FORK_SUPPORT": "1"}, marks=pytest.mark.slow),
        pytest.param(200, {"GRPC_ENABLE_FORK_SUPPORT": "0"}, marks=pytest.mark.slow),
    ],
)
def test_forks_at_any_moment_of_an_iteration(relay, forks, variables):
    told = json.loads(run(PROGRAMS / "forks_while_iterating.py", relay.address, forks, **variables))
    epochs = [epoch for sampler in told["given"] for epoch in sampler]
    assert epochs
    assert all(epoch == list(range(400)) for epoch in epochs)
    assert told["found"] == [0] * forks, "a child inherited sockets or pollers"
    assert relay.most_open == 1
    relay.wait_for(lambda: not relay.open)


PROGRAM = """
import os, sys
from superdl.sampler.rpc.connection import connection_to
from superdl.sampler.rpc.forking import GrpcThreads
from superdl.super_wire import coordinator_pb2 as pb

threads = GrpcThreads()
assert not threads.running()
before = set(os.listdir("/proc/self/task"))
connection = connection_to(sys.argv[1])
with connection.hold():
    connection.call("GetJobStats", pb.GetJobStatsRequest(), 10.0)
    assert threads.running()
    assert not threads.wait_until_gone(0.05)
assert threads.wait_until_gone(20.0)
print(len(set(os.listdir("/proc/self/task")) - before))
"""


def test_grpc_threads_are_recognised_and_end_with_the_channel(coordinator):
    outlived = run("-c", PROGRAM, coordinator.address)
    assert int(outlived) == 0, "a thread outlived the channel: has grpc new names for its threads?"
