"""The names by which grpc's threads are known, seen on the grpc that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

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


def run(*arguments: object) -> str:
    """What a fresh process prints: this one has grpc's threads of a server."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_threads_come_with_a_channel_and_go_after_it(coordinator):
    outlived = run("-c", PROGRAM, coordinator.address)
    assert int(outlived) == 0, "a thread outlived the channel: has grpc new names for its threads?"


def test_threads_of_others_do_not_count():
    run(Path(__file__).resolve().parents[1] / "programs" / "threads_of_others.py")
