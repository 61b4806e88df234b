"""The coordinator's own worker process."""

import os
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


FORKING = """
import os, signal, sys
from superdl.super_wire.forked_process import ForkedProcess
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.stdout.write("once ")
reads, writes = os.pipe()
try:
    child = ForkedProcess(lambda: sys.argv[1] == "closed" and (sys.stdout.close() or 1) or 7, reads)
except ValueError:
    os.write(2, b"the child ran its parent's code")
    os._exit(1)
code = child.wait()
child.terminate()
print(code)
"""


@pytest.mark.parametrize(("how", "code"), [("ordinary", 7), ("ignored", 0), ("closed", 1)])
def test_a_forked_process_only_runs_its_function(how, code):
    """It repeats no buffered output, and ends although SIGCHLD is ignored or its output is closed."""
    command = [sys.executable, "-c", FORKING, how]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.stdout == f"once {code}\n"
    assert "parent's code" not in ended.stderr
