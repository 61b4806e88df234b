"""The coordinator's own worker process."""

import subprocess
import sys

import psutil
import pytest

END_TIMEOUT_S = 30.0
COORDINATOR = """
import sys
from superdl.super_wire.worker_process import WorkerProcess
worker = WorkerProcess("test", forks=sys.argv[1] == "forks")
print(worker.is_waiting, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["forks", "starts"])
@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda coordinator: coordinator.stdin.close()])
def test_a_waiting_worker_ends_with_its_coordinator(end, how):
    command = [sys.executable, "-c", COORDINATOR, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stdout.readline() == "True\n"
        family = psutil.Process(coordinator.pid).children(recursive=True)
        assert family
        end(coordinator)
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
    assert not alive
