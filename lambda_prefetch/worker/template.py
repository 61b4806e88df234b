"""The process that a worker's slots are forked from.

The process has imported the function, and has no threads, connections or event loop. All slots share the
imports and their memory, and a slot can be replaced within milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

from superdl.lambda_prefetch.worker import slot
from superdl.super_wire.errors import SuperError
from superdl.super_wire.forked_process import ForkedProcess

FUNCTION = "superdl.lambda_prefetch.handler:handler"
_TIMEOUT_S = 300.0  # on a busy host
_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Template:
    """The process that slots are forked from, which has imported ``function``.

    Slots become children of the worker, which adopts orphans during a fork. If ``forks``, the first such
    process is forked from this one, which must not have started any threads. Later ones are started afresh.
    """

    def __init__(self, function: str = FUNCTION, *, forks: bool = False) -> None:
        # Other functions may start threads when they are imported, so slots import them.
        self._modules = [FUNCTION.partition(":")[0]] if function == FUNCTION else []
        self._turn, self._is_closed = asyncio.Lock(), False
        self._start(forks=forks)

    def _start(self, *, forks: bool = False) -> None:
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._process: subprocess.Popen[bytes] | ForkedProcess
        with theirs:
            if forks:
                self._process = ForkedProcess(partial(slot.main, self._modules), theirs.fileno())
            else:
                command = (sys.executable, "-P", "-m", slot.__name__, *self._modules)
                # In its own process group, because Ctrl-C at the terminal is for the worker.
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)

    @property
    def cpu_s(self) -> float:
        """CPU time of the process in seconds."""
        return cpu_s_of(self._process.pid)

    async def fork(self) -> tuple[int, socket.socket]:
        """Fork a slot. Return its process id and connection, or raise :class:`SuperError`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                async with self._turn:
                    if self._is_closed:
                        raise ConnectionError("the worker is shutting down")
                    if self._process.poll() is not None:
                        self._channel.close()
                        self._start()
                    # Only during a fork, because nothing waits for the orphans of a killed slot.
                    _adopt_orphans(yes=True)
                    try:
                        socket.send_fds(self._channel, [b"\n"], [theirs.fileno()])
                        async with asyncio.timeout(_TIMEOUT_S):
                            return await self._read_pid(), ours
                    finally:
                        _adopt_orphans(yes=False)
        except OSError as error:  # also TimeoutError
            ours.close()
            self._process.kill()  # the next fork starts another
            raise SuperError(f"cannot start a process for a slot: {error}") from error

    async def _read_pid(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            received = await asyncio.get_running_loop().sock_recv(self._channel, 64)
            line += received or b"\n"
        if not line.strip():
            raise ConnectionError("the process that slots are forked from has ended or cannot fork")
        return int(line)

    async def close(self) -> None:
        """End the process and fail any pending forks. Slots keep running."""
        self._is_closed = True
        self._process.kill()
        self._process.wait()
        async with self._turn:
            self._channel.close()


def _adopt_orphans(*, yes: bool) -> None:
    """Make this process the parent of descendants whose own parent has ended, or stop doing so."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def cpu_s_of(pid: int) -> float:
    """Return a process's own CPU time in seconds, excluding its children, or 0 if it has ended."""
    with contextlib.suppress(OSError):
        # utime and stime. The process name before them may contain spaces and parentheses.
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS
    return 0.0
