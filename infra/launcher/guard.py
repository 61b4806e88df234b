"""``python guard.py COMMAND...``: runs one command, and leaves no process of it behind.

The guard hands SIGTERM on to the command. A byte on standard input, which the launcher holds, is the order to
kill all at once; its end, to end within seconds: so nothing stays when the launcher is killed. On Linux the
guard adopts what the command started in sessions of its own (torchrun's ranks, Ray's daemons), and ends it
too; elsewhere it ends the command's process group. The exit code is the command's, or 128 and the number of
the signal that ended it.

It is started by path and imports nothing of ours, so that it costs little and nothing can hide it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time

import psutil

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_LAST_WAIT_S = 5.0  # from SIGTERM to SIGKILL, once nobody holds standard input
_REST_WAIT_S = 2.0  # the same, for what the command has left behind
_KILL_PAUSE_S = 0.05
_STDIN = 0
_NOT_STARTED = 127


class _Guard:
    def __init__(self, command: list[str]) -> None:
        self._wakeup = _signals_as_bytes()
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        self._inputs: list[int] = [_STDIN, self._wakeup.fileno()]
        self._asked_s: float | None = None
        self._kill_s: float | None = None
        self._code: int | None = None

    def run(self) -> int:
        """Wait until the command and all that came of it is gone; the exit code."""
        while self._code is None or self._rest():
            wait_s = None if self._kill_s is None else max(0.0, self._kill_s - time.monotonic())
            readable, _, _ = select.select(self._inputs, [], [], wait_s)
            if _STDIN in readable:
                self._ask()
                self._kill_s = time.monotonic()
                if not os.read(_STDIN, 4096):
                    self._inputs.remove(_STDIN)
                    self._kill_s = (self._asked_s or 0.0) + _LAST_WAIT_S
            if self._wakeup.fileno() in readable:
                if signal.SIGTERM in self._wakeup.recv(4096):
                    self._ask()
                self._reap()
            if self._kill_s is not None and time.monotonic() >= self._kill_s:
                self._signal_all(signal.SIGKILL)
                self._kill_s = time.monotonic() + _KILL_PAUSE_S  # the next round meets what was being born
        return self._code if self._code >= 0 else 128 - self._code

    def _ask(self) -> None:
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            if self._code is None:
                self._child.terminate()

    def _reap(self) -> None:
        """Take in the command's end, and that of every orphan that was adopted."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == self._child.pid:
                    self._code = self._child.returncode = os.waitstatus_to_exitcode(status)
                    self._signal_all(signal.SIGTERM)
                    self._kill_s = time.monotonic() + _REST_WAIT_S

    def _rest(self) -> bool:
        """Whether something of the command still runs."""
        if sys.platform == "linux":
            return bool(_descendants())
        try:
            os.killpg(self._child.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _signal_all(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)
        for process in _descendants() if sys.platform == "linux" else ():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)


def _descendants() -> list[psutil.Process]:
    """The processes below this one that run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                found.append(process)
    return found


def _signals_as_bytes() -> socket.socket:
    """A socket that receives the number of each SIGCHLD and SIGTERM as a byte."""
    receiver, sender = socket.socketpair()
    receiver.setblocking(False)
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return receiver


def main(command: list[str]) -> int:
    """Run ``command``; the exit code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher answers to a terminal's
    try:
        guard = _Guard(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} could not be started: {error}\n")
        return _NOT_STARTED
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
