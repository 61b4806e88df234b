"""Start the processes of a round together, one per run, and monitor them until all have exited.

Each process is ``python -P -m superdl.experiments.comparing.processes PARENT ARGUMENT...``. It runs
``superdl ARGUMENT...`` or, after ``--launch``, another command, and exits when its parent does.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_POLL_S = 0.05
# Time for an interrupted run to write its report and end its processes before it is killed.
_END_WAIT_S = 20.0
_LAST_LINES, _LAST_BYTES = 12, 8192
# Variables that a launcher of the comparison sets. They would turn each run into one of its ranks.
_RANK_VARIABLES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR"}
    | {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
)
_LAUNCH = "--launch"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass
class RunProcess:
    """The process of a run, with the run's title, spec file and output file."""

    title: str
    spec_file: Path
    output: Path
    launch: tuple[str, ...] = ()  # see Arm.launch
    # Whether the comparison ended it, because another run failed or the user interrupted.
    was_ended: bool = False
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        run = ["run", "--no-page", str(self.spec_file)]
        if self.launch:
            run = [_LAUNCH, *map(_in_environment, self.launch), "-m", "superdl.main", *run]
        module = "superdl.experiments.comparing.processes"
        command = [sys.executable, "-P", "-m", module, str(os.getpid()), *run]
        kept = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=kept | {"PYTHONUNBUFFERED": "1"},  # keeps all output of a killed run
                process_group=0,  # on Ctrl-C, only this process interrupts the trainers
            )

    @property
    def code(self) -> int | None:
        """The exit code, or None while the process runs."""
        return None if self.process is None else self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Interrupt the run, so that it writes its report, or kill it. Its services exit on their own."""
        if self.process is not None and self.code is None:
            self.was_ended = True
            with contextlib.suppress(ProcessLookupError):
                # An interrupted trainer ends its workers; a killed one does not.
                send = os.killpg if number == signal.SIGKILL else os.kill
                send(self.process.pid, number)

    def wait(self, until_s: float) -> None:
        """Wait for the process to exit, at most until ``until_s`` on the monotonic clock."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, until_s - time.monotonic()))

    def last_lines(self) -> str:
        """Return the last lines of the run's output."""
        text = self.output.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
        return "\n".join(line for line in text.splitlines()[-_LAST_LINES:] if line.strip())


def run_together(runs: Sequence[RunProcess], *, end_wait_s: float = _END_WAIT_S) -> None:
    """Start all runs and wait until they have exited. Call this from the main thread.

    If a run fails, the others are interrupted. Any still running after ``end_wait_s`` seconds are killed.

    Raises:
        KeyboardInterrupt: the user interrupted this process. The runs have been interrupted, too.
    """
    kill_at_s = math.inf
    try:
        # PR_SET_PDEATHSIG below refers to the thread that starts a child, hence the main thread.
        for run in runs:
            run.start()
        while any(run.code is None for run in runs):
            now_s = time.monotonic()
            if kill_at_s == math.inf and any(run.code for run in runs):
                kill_at_s = now_s + end_wait_s
                _end(runs, signal.SIGINT, 0.0)
            if now_s >= kill_at_s:
                _end(runs, signal.SIGKILL, 0.0)
            time.sleep(_POLL_S)
    finally:
        try:
            _end(runs, signal.SIGINT, _END_WAIT_S)
        finally:  # a run has not exited in time, or the user interrupted again
            _end(runs, signal.SIGKILL, _END_WAIT_S)


def _end(runs: Sequence[RunProcess], number: signal.Signals, wait_s: float) -> None:
    for run in runs:
        run.signal(number)
    until_s = time.monotonic() + wait_s
    for run in runs:
        run.wait(until_s)


def main(arguments: Sequence[str]) -> None:
    """Run ``superdl`` with the arguments that follow the parent's process id."""
    parent, *words = arguments
    # A shell starts background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # If the parent dies, this process is interrupted, and the run still writes its report.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != int(parent):  # the parent died before the call above
        sys.exit(1)
    if words[0] == _LAUNCH:
        sys.exit(_run_command(words[1:]))
    command = entry_points(group="console_scripts")["superdl"]  # this package must not import superdl.main
    try:
        sys.exit(command.load()(words))
    finally:
        embedded = sys.modules.get("superdl.sampler.embedded.embedded")
        if embedded is not None:
            # Wait for the run's services, whose CPU time then counts for the parent.
            embedded.release_all()


def _in_environment(word: str) -> str:
    """Return a command's path in this virtual environment, or ``word`` itself if it is not there."""
    own = Path(sys.executable).parent / word
    return str(own) if "/" not in word and own.is_file() else word


def _run_command(words: Sequence[str]) -> int:
    """Run a command, forward interrupts to it, and return its exit code."""
    with subprocess.Popen(words) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
