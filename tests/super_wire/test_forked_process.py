"""Processes forked with the modules of their parent."""

import subprocess
import sys

PARENT = """
import os, signal, sys
from superdl.super_wire.forked_process import ForkedProcess

class Full:
    def flush(self):
        raise OSError(28, "No space left on device")

def main():
    sys.stdout = Full()
    return 7

if sys.argv[1] == "ignored":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
process = ForkedProcess(main, os.open(os.devnull, os.O_RDONLY))
print(os.getpid(), process.wait(), process.poll(), flush=True)
process.terminate()
"""


def output(handling):
    """Return the parent's process id, and what it and its child have printed."""
    command = [sys.executable, "-c", PARENT, handling]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        printed, _ = parent.communicate(timeout=60)
    assert parent.returncode == 0
    return parent.pid, printed


def test_a_child_never_returns_to_its_parents_code_even_on_a_full_disk():
    pid, printed = output("default")
    assert printed == f"{pid} 7 7\n"


def test_a_child_can_be_awaited_although_sigchld_is_ignored():
    pid, printed = output("ignored")
    assert printed == f"{pid} 0 0\n", "its exit code is lost"
