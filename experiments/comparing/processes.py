"""The processes of one round: a run each, started together, watched until the last has ended.

What such a process does is `experiments.comparing.tied_run`'s; a failed one's last lines are kept for people.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["EndedRun", "RunRequest", "run_together"]

_TICK_S = 1.0
_END_WAIT_S = 20.0
"""For an interrupted run to write its report and end what it started; after that it is killed."""

_LAST_LINES = 12
_LAST_BYTES = 8192
_RANK_VARIABLES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR"}
    | {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
)
"""Of a launcher around the comparison: with them, runs would take themselves for ranks of one."""


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
    stop_at_failure: bool = True,
    end_wait_s: float = _END_WAIT_S,
) -> tuple[EndedRun, ...]:
    """Start all runs and wait until they, and what they started, have ended; ``tick`` is called each second.

    A run that fails ends the others, unless ``stop_at_failure`` is false: they are interrupted, and killed
    if they have not ended ``end_wait_s`` later. Call it from the main thread: the system ties the runs to
    the thread that starts them.

    Raises:
        KeyboardInterrupt: a person ended it; the runs were interrupted, and have written their reports.

    """
    with contextlib.ExitStack() as stack:
        said: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        processes: list[_Process] = []
        stack.callback(_end_all, processes)
        for request in requests:
            processes.append(_Process(request, said))  # noqa: PERF401  # what was started is known if one is not
        running = set(processes)
        kill_at_s = math.inf
        while running:
            with contextlib.suppress(queue.Empty):
                gone = said.get(timeout=_TICK_S)
                running.discard(gone)
                if stop_at_failure and gone.process.returncode != 0 and kill_at_s == math.inf:
                    kill_at_s = time.monotonic() + end_wait_s
                    for other in running:
                        other.interrupt()
            if time.monotonic() >= kill_at_s:
                for other in running:
                    other.kill()  # as often as it takes: what was killed says so itself, once it is gone
            tick()
        return tuple(process.ended() for process in processes)


class _Process:
    """One run and the thread that waits for it."""

    def __init__(self, request: RunRequest, said: queue.SimpleQueue[_Process]) -> None:
        self._request = request
        self._said = said
        self._was_told_to = False
        self._done_s: float | None = None
        self._start_s = time.monotonic()
        ours, theirs = os.pipe()
        command = [sys.executable, "-P", "-m", "superdl.experiments.comparing.tied_run", str(os.getpid())]
        try:
            with request.output.open("wb") as output:
                self.process = subprocess.Popen(
                    [*command, str(theirs), str(request.spec_file)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=_environment(os.environ),
                    pass_fds=(theirs,),
                    process_group=0,  # Ctrl-C in the terminal is this process's to pass on, to trainers alone
                )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._waiter = threading.Thread(target=self._wait, args=(ours,), name=request.title, daemon=True)
        self._waiter.start()

    def _wait(self, ours: int) -> None:
        with os.fdopen(ours, "rb", buffering=0) as end:
            end.read(1)  # its exit code, or the end of a process that was killed
        self._done_s = time.monotonic()
        self.process.wait()
        self._said.put(self)

    def interrupt(self) -> None:
        """Ask it to end and to write down what it has."""
        self._was_told_to = True
        self.process.send_signal(signal.SIGINT)  # does nothing once it was reaped

    def kill(self) -> None:
        """End it and its workers at once; the services that it started end by themselves."""
        self._was_told_to = True
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def is_gone(self, wait_s: float) -> bool:
        """Whether it has ended; waits at most so long for it."""
        self._waiter.join(wait_s)
        return not self._waiter.is_alive()

    def ended(self) -> EndedRun:
        """How it ended."""
        code = self.process.returncode
        done_s = self._start_s if self._done_s is None else self._done_s
        return EndedRun(
            title=self._request.title,
            code=code,
            wall_s=done_s - self._start_s,
            was_told_to=self._was_told_to,
            last_lines="" if code == 0 else _tail(self._request.output),
        )


def _end_all(processes: Sequence[_Process]) -> None:
    """Interrupt what still runs, and kill what has not ended in time or if a person insists."""
    running = [process for process in processes if not process.is_gone(0.0)]
    try:
        for process in running:
            process.interrupt()
        until_s = time.monotonic() + _END_WAIT_S
        for process in running:
            process.is_gone(max(0.0, until_s - time.monotonic()))
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.is_gone(_END_WAIT_S)


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in ours.items() if name not in _RANK_VARIABLES}
    return kept | {"PYTHONUNBUFFERED": "1"}  # so that a run that goes on, or was killed, can be looked into


def _tail(output: Path) -> str:
    """The last lines of what a run has printed."""
    try:
        text = output.read_bytes()[-_LAST_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line for line in text.splitlines()[-_LAST_LINES:] if line.strip())
