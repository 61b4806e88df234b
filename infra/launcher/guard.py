"""``python guard.py COMMAND...``: runs one command, and leaves no process of it behind.

The guard hands SIGTERM on to the command. A byte on standard input, which the launcher holds, is the order to
kill all at once; its end, to end within seconds: so nothing stays when the launcher is killed. The guard
adopts what the command started in sessions of its own (torchrun's ranks, Ray's daemons), and ends it too. The
exit code is the command's, or 128 and the number of the signal that ended it.

It is started by path and imports nothing of ours, so that it costs little and nothing can hide it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_LAST_WAIT_S = 5.0  # from SIGTERM to SIGKILL, once nobody holds standard input
_REST_WAIT_S = 2.0  # the same, for what the command has left behind
_PAUSE_S = 0.05
_STDIN = 0
_NOT_STARTED = 127


def main(command: list[str]) -> int:
    """Run ``command``; the exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher answers to a terminal's
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.stderr.write(f"{command[0]} could not be started: {error}\n")
        return _NOT_STARTED
    for duty in (_hand_on, _obey):
        threading.Thread(target=duty, args=(asked, child), daemon=True).start()
    code = child.wait()
    _signal_all(signal.SIGTERM)
    deadline_s = time.monotonic() + _REST_WAIT_S
    while _descendants():
        if time.monotonic() > deadline_s:
            _signal_all(signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return code if code >= 0 else 128 - code


def _hand_on(asked: threading.Event, child: subprocess.Popen[bytes]) -> None:
    asked.wait()
    child.terminate()


def _obey(asked: threading.Event, _: subprocess.Popen[bytes]) -> None:
    """Kill all, again and again for what is being born: on order, or some time after nobody can order."""
    if not os.read(_STDIN, 1):
        asked.set()
        time.sleep(_LAST_WAIT_S)
    while True:
        _signal_all(signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _signal_all(number: signal.Signals) -> None:
    for process in _descendants():
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _descendants() -> list[psutil.Process]:
    """The processes below this one that run; those that have ended wait for this one's end."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
                found.append(process)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
