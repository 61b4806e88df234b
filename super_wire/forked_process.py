"""Forked child processes that share this process's modules, and process names."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_STANDARD = (0, 1, 2)


def set_process_name(name: str) -> None:
    """Set this process's name in ``ps`` and ``top``, at most 15 bytes. Child processes inherit the name."""
    with contextlib.suppress(OSError):  # only for display
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


class ForkedProcess:
    """A child process that runs ``main`` and exits with its return value. It has the methods of ``Popen``.

    The child leads a process group and keeps only the standard streams open. Its input is the descriptor
    ``stdin``. Create it before this process starts a thread. Raises ``OSError`` if the fork fails.
    """

    def __init__(self, main: Callable[[], int], stdin: int) -> None:
        self.returncode: int | None = None
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # or the child would write it again
        self.pid = os.fork()
        if not self.pid:
            _run(main, stdin)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or ``None`` while the process runs.

        As with ``Popen``, the code is 0 if this process ignores SIGCHLD, because the actual code is lost.
        """
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        """Wait for the process to exit, and return its exit code."""
        return self._reap(0)

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # if SIGCHLD is ignored, the exit code is lost
                pid, status = self.pid, 0
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _run(main: Callable[[], int], stdin: int) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # so that collections do not copy the memory that is shared
        gc.enable()
        # Ctrl-C at the terminal is meant for the trainer.
        os.setpgid(0, 0)
        os.dup2(stdin, 0)
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if descriptor not in _STANDARD:
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(descriptor)
        code = main()
    except BaseException:  # noqa: BLE001  # nothing may return to the parent's code
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:  # on a full disk, too: the parent's code would remove the run's cache and directory
            os._exit(code)
