"""The processes of a round: a run each, started together, watched until the last has ended.

``python -P -m superdl.experiments.comparing.processes PARENT DESCRIPTOR SPEC`` is one such process: ``superdl
run SPEC``, tied to the one that started it. It writes the exit code as one byte to the descriptor as soon as
the run has ended, and then waits for what the run started, so that its parent gets the CPU time of all. The
parent makes the run's page: drawing it takes as much CPU as a small run.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["EndedRun", "RunRequest", "main", "run_together"]

_TICK_S = 1.0
_POLL_S = 0.05
_END_WAIT_S = 20.0
"""For an interrupted run to write its report and end what it started; after that it is killed."""

_LAST_LINES = 12
_LAST_BYTES = 8192
_RANK_VARIABLES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR"}
    | {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
)
"""Of a launcher around the comparison: with them, runs would take themselves for ranks of one."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run to be started: who it is to people, its spec's file, and the file that gets all it prints."""

    title: str
    spec_file: Path
    output: Path


@dataclass(frozen=True, slots=True)
class EndedRun:
    """How a run's process ended; ``wall_s`` is from its start until its report was written.

    ``was_told_to`` says that it was ended from here, because another failed or a person asked.
    ``last_lines`` are the end of what a failed run has printed.
    """

    title: str
    code: int
    wall_s: float
    was_told_to: bool
    last_lines: str

    @property
    def is_finished(self) -> bool:
        """Whether it did all of its work."""
        return self.code == 0


def run_together(
    requests: Sequence[RunRequest],
    tick: Callable[[], None],
    *,
    end_wait_s: float = _END_WAIT_S,
) -> tuple[EndedRun, ...]:
    """Start all runs and wait until they, and what they started, have ended; ``tick`` is called each second.

    A run that fails ends the others: they are interrupted, and killed if they have not ended ``end_wait_s``
    later. Call it from the main thread: the system ties the runs to the thread that starts them.

    Raises:
        KeyboardInterrupt: a person ended it; the runs were interrupted, and have written their reports.

    """
    processes: list[_Process] = []
    try:
        for request in requests:
            processes.append(_Process(request))  # noqa: PERF401  # what was started is known if one is not
        kill_at_s = tick_at_s = math.inf
        for now_s in _until_all_ended(processes):
            failed = any(process.code not in (None, 0) for process in processes)
            if failed and kill_at_s == math.inf:
                kill_at_s = now_s + end_wait_s
                for process in processes:
                    process.interrupt()
            if now_s >= kill_at_s:
                for process in processes:
                    process.kill()
            if tick_at_s == math.inf or now_s >= tick_at_s:
                tick()
                tick_at_s = now_s + _TICK_S
        return tuple(process.ended() for process in processes)
    finally:
        _end_all(processes)


def _until_all_ended(processes: Sequence[_Process]) -> Iterator[float]:
    """Yield the time again and again until all have ended."""
    while any(process.code is None for process in processes):
        open_ends = [process.end for process in processes if not process.end.closed]
        if open_ends:
            select.select(open_ends, [], [], _TICK_S)
        else:  # all reports are written, and what the runs started is about to end
            time.sleep(_POLL_S)
        for process in processes:
            process.look()
        yield time.monotonic()


class _Process:
    """One run; ``end`` is the pipe that tells when its report is written, ``code`` its exit code then."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._was_told_to = False
        self.code: int | None = None
        self._start_s = self._done_s = time.monotonic()
        ours, theirs = os.pipe()
        self.end = os.fdopen(ours, "rb", buffering=0)
        command = [sys.executable, "-P", "-m", "superdl.experiments.comparing.processes", str(os.getpid())]
        kept = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
        try:
            with request.output.open("wb") as output:
                self.process = subprocess.Popen(
                    [*command, str(theirs), str(request.spec_file)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=kept | {"PYTHONUNBUFFERED": "1"},  # so that a run that was killed can be looked into
                    pass_fds=(theirs,),
                    process_group=0,  # Ctrl-C in the terminal is this process's to pass on, to trainers alone
                )
        except BaseException:
            self.end.close()
            raise
        finally:
            os.close(theirs)

    def look(self) -> None:
        """See whether the run, and then its process, has ended."""
        # Its exit code can be read, or the end of a process that was killed.
        if not self.end.closed and select.select([self.end], [], [], 0)[0]:
            self._done_s = time.monotonic()
            self.end.close()
        if self.end.closed:
            self.code = self.process.poll()

    def interrupt(self) -> None:
        """Ask it to end and to write down what it has."""
        if self.code is None:
            self._was_told_to = True
            self.process.send_signal(signal.SIGINT)  # does nothing once it was reaped

    def kill(self) -> None:
        """End it and its workers at once; the services that it started end by themselves."""
        if self.code is None:
            self._was_told_to = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> EndedRun:
        """How it ended."""
        code = self.process.returncode
        said = "" if code == 0 else _tail(self._request.output)
        return EndedRun(self._request.title, code, self._done_s - self._start_s, self._was_told_to, said)


def _end_all(processes: Sequence[_Process]) -> None:
    """Interrupt what still runs, and kill what has not ended in time or if a person insists."""
    try:
        for process in processes:
            process.interrupt()
        until_s = time.monotonic() + _END_WAIT_S
        for now_s in _until_all_ended(processes):
            if now_s >= until_s:
                break
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.process.wait(_END_WAIT_S)
            process.end.close()


def _tail(output: Path) -> str:
    try:
        text = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line for line in text.splitlines()[-_LAST_LINES:] if line.strip())


def main(arguments: list[str]) -> int:
    """Run the spec in this process and return the exit code of ``superdl run``."""
    parent, descriptor, spec = int(arguments[0]), int(arguments[1]), arguments[2]
    # Where a shell started all of it in the background, SIGINT came ignored, and nothing could end the run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _tie_to(parent)
    from superdl.main import main as superdl

    code = 1
    try:
        code = superdl(["run", "--no-page", spec])
    finally:
        os.write(descriptor, bytes([code]))
        os.close(descriptor)
        embedded = sys.modules.get("superdl.sampler.embedded.embedded")  # absent where the loader needs none
        if embedded is not None:
            embedded.release_all()
    return code


def _tie_to(parent: int) -> None:
    """Have Linux interrupt this process when its parent goes, so that the run still writes its report."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:  # it died before the call above
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
