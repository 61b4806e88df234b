"""A child process of the coordinator that speaks in lines of JSON: its start, its messages and its end.

The workers of the local executor and Ray's driver are such children. What they say is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any, Self

from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.worker import MAX_MESSAGE_BYTES, MessageError, line_of, parse

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["ChildProcess", "keep_running"]

_EXIT_TIMEOUT_S = 5.0


class ChildProcess:
    """A process and its two pipes; made by :meth:`start`."""

    def __init__(self, process: Process) -> None:
        self.pid = process.pid
        self._process = process
        if process.stdin is None or process.stdout is None:  # never: both were asked for
            raise ConnectionError
        self._to_child, self._from_child = process.stdin, process.stdout

    @classmethod
    async def start(
        cls, module: str, *arguments: str, environment: Mapping[str, str], directory: str | None = None
    ) -> Self:
        """Run a module as ``python -m`` does, in ``directory`` if one is named.

        Raises:
            ExecutorError: the system has no room for another process.
        """
        command = (sys.executable, "-P", "-m", module, *arguments)
        try:
            # A process group of its own: Ctrl-C at the terminal is for the trainer, not for its children.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                limit=MAX_MESSAGE_BYTES,
                env=environment,
                process_group=0,
                cwd=directory,
            )
        except OSError as error:
            raise ExecutorError(f"no process could be started for {module}: {error}") from error
        return cls(process)

    @property
    def alive(self) -> bool:
        """Whether it has not been seen to end."""
        return self._process.returncode is None

    async def drain(self) -> None:
        """Wait until the child has read most of what was written."""
        await self._to_child.drain()

    def tell(self, message: dict[str, Any]) -> None:
        """Write a message without waiting; to a child that is gone there is nothing to say."""
        if not self._to_child.is_closing():
            self._to_child.write(line_of(message))

    async def read(self) -> dict[str, Any]:
        """The next message.

        Raises:
            IncompleteReadError, ConnectionError: there will be no more.
            MessageError: what came is no message.
        """
        try:
            line = await self._from_child.readline()
        except ValueError as error:
            raise MessageError(f"a message is over the limit of {MAX_MESSAGE_BYTES} bytes") from error
        if not line.endswith(b"\n"):
            raise asyncio.IncompleteReadError(line, None)
        return parse(line)

    def end(self) -> None:
        """Close its input, upon which it ends."""
        self._to_child.close()

    def kill(self) -> None:
        """End it by force."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Wait until it has ended."""
        await self._process.wait()

    async def last_words(self, error: Exception | None = None) -> str:
        """How it ended, as far as can be told after a bounded wait; or that it sent what is no message."""
        if isinstance(error, MessageError):
            return str(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await self._process.wait()
        code = self._process.returncode
        if code is None:
            return "it closed its output"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def keep_running(
    run: Callable[[], Awaitable[bool]], closing: asyncio.Event, *, first_s: float, longest_s: float
) -> None:
    """Run something until ``closing`` is set, again after each end.

    The pause before the next run is ``first_s`` after one that says it served, and else doubles up to
    ``longest_s``.
    """
    pause_s = first_s
    while not closing.is_set():
        served = await run()
        pause_s = first_s if served else min(2 * pause_s, longest_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await closing.wait()
