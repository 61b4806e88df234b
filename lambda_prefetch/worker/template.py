"""The process that a worker's slots are forked from.

It has loaded the function's modules, and has no threads, connections or event loop. So a host with many slots
pays for the imports once, the slots share memory, and a slot is replaced within milliseconds.
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
    """The process that slots are forked from, with the modules of ``function`` loaded.

    Slots become children of this process, which adopts orphans while it forks. If ``forks``, the first
    template shares this process's modules; this process must not have started a thread.
    """

    def __init__(self, function: str = FUNCTION, *, forks: bool = False) -> None:
        # Other functions may start threads when they are imported, so their slots import them.
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
                # A process group of its own: Ctrl-C at the terminal is for the worker.
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), process_group=0)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the process."""
        return cpu_s_of(self._process.pid)

    async def fork(self) -> tuple[int, socket.socket]:
        """Fork a slot. Return its process id and connection; raise :class:`SuperError` if that fails."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                async with self._turn:
                    if self._is_closed:
                        raise ConnectionError("the worker is shutting down")
                    if self._process.poll() is not None:
                        self._channel.close()
                        self._start()
                    # Only meanwhile: the orphans of a killed slot are not waited for.
                    _adopt_orphans(yes=True)
                    try:
                        socket.send_fds(self._channel, [b"\n"], [theirs.fileno()])
                        async with asyncio.timeout(_TIMEOUT_S):
                            return await self._answer(), ours
                    finally:
                        _adopt_orphans(yes=False)
        except OSError as error:  # also TimeoutError
            ours.close()
            self._process.kill()  # the next fork starts another
            raise SuperError(f"cannot start a process for a slot: {error}") from error

    async def _answer(self) -> int:
        answer = b""
        while not answer.endswith(b"\n"):
            received = await asyncio.get_running_loop().sock_recv(self._channel, 64)
            answer += received or b"\n"
        if not answer.strip():
            raise ConnectionError("the process that slots are forked from has ended or cannot fork")
        return int(answer)

    async def close(self) -> None:
        """End the process, and fail pending forks. Living slots stay."""
        self._is_closed = True
        self._process.kill()
        self._process.wait()
        async with self._turn:
            self._channel.close()


def _adopt_orphans(*, yes: bool) -> None:
    """Choose whether this process becomes the parent of its descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of a process without its children, or 0 if it has ended."""
    with contextlib.suppress(OSError):
        # utime and stime; the process name before them may hold spaces and parentheses.
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS
    return 0.0
