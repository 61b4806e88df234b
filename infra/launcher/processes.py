"""Programs that a launcher starts: each below a guard, ended with it, its output passed on.

What starts and when is :mod:`infra.launcher.services`'; :mod:`infra.launcher.guard` sees that nothing of a
program stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from infra.launcher import EXIT_NOT_READY, EXIT_SERVICE_FAILED, EXIT_SIGNAL, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

__all__ = ["Program", "Service", "forever", "race"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_GUARD = Path(__file__).with_name("guard.py")
_LAST_LINES = 5
_LAST_CHARACTERS = 1000
_GUARD_WAIT_S = 10.0  # the guard kills at once
_OUTPUT_WAIT_S = 2.0
_PROBE_S = 3.0
_PROBE_PAUSE_S = 0.05
_LONG_LIFE_S = 60.0  # a program that dies after so long was not started in vain
_RESTART_PAUSE_S = 0.2


@dataclass(eq=False)
class Program:
    """One program and all that comes of it.

    Attributes:
        name: what it is, for people: ``the cache``.
        command: the program and its arguments.
        environment: all of its variables.
        quiet: its output is passed on line by line with its name before it, and its last lines go into the
            message of its failure; else it writes where the launcher does.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    quiet: bool = True
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _output: asyncio.Task[None] | None = field(default=None, init=False)
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES), init=False)

    async def start(self) -> None:
        """Start it; a program that is not there ends at once with code 127."""
        self._last.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_GUARD), *self.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if self.quiet else None,
            stderr=asyncio.subprocess.STDOUT if self.quiet else None,
            env=dict(self.environment),
            process_group=0,
        )
        if self._process.stdout is not None:
            self._output = asyncio.get_running_loop().create_task(self._relay(self._process.stdout))

    async def ended(self) -> int:
        """Its exit code, once it has ended: 128 and more where a signal ended it."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        code = await self._process.wait()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=_OUTPUT_WAIT_S)  # a stranger may hold the pipe
        return code if code >= 0 else EXIT_SIGNAL - code

    def how_it_ended(self, code: int) -> str:
        """Its end in words, with its last lines."""
        said = " | ".join(self._last)[-_LAST_CHARACTERS:]
        return f"{self.name} ended with exit code {code}{f': {said}' if said else ''}"

    async def end(self, wait_s: float) -> None:
        """Ask it to end, insist after ``wait_s``, and wait until nothing of it is left."""
        process = self._process
        if process is None or process.returncode is not None or process.stdin is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        if await self._ended_within(wait_s):
            return
        _log.warning("%s has not ended within %g s and is killed", self.name, wait_s)
        process.stdin.write(b"kill")
        if not await self._ended_within(_GUARD_WAIT_S):
            process.kill()
            await self.ended()

    async def _ended_within(self, wait_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.ended()
                return True
        return False

    async def _relay(self, output: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await output.readuntil(b"\n")
            except asyncio.LimitOverrunError as overrun:  # a line without an end is passed on in pieces
                line = await output.readexactly(overrun.consumed)
            except asyncio.IncompleteReadError as end:
                line = end.partial
                if not line:
                    return
            if text := line.decode(errors="replace").rstrip():
                self._last.append(text)
                sys.stderr.write(f"[{self.name}] {text}\n")
                sys.stderr.flush()


@dataclass(eq=False)
class Service(Program):
    """A program that runs as long as the run does: it is found ready, and starts again when it dies.

    Attributes:
        listens: the address and port where it serves; it is ready at once without.
        wait_s: how long it may take to serve.
        restarts: how many quick deaths the run bears.
    """

    listens: tuple[str, int] | None = None
    wait_s: float = 60.0
    restarts: int = 3
    _started_s: float = field(default=0.0, init=False)

    async def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            RunFailedError: it ends before, or does not serve in time.
        """
        self._started_s = time.monotonic()
        await super().start()
        try:
            async with asyncio.timeout(self.wait_s):
                code = await race(self.ended(), self._serving())
        except TimeoutError:
            raise RunFailedError(
                EXIT_NOT_READY, f"{self.name} was started and did not answer within {self.wait_s:g} s"
            ) from None
        if code is not None:
            raise RunFailedError(EXIT_SERVICE_FAILED, f"{self.how_it_ended(code)} (before it was ready)")
        _log.info("%s is ready", self.name)

    async def _serving(self) -> None:
        while self.listens is not None:
            with contextlib.suppress(OSError):  # not yet; start() bounds how long that may last
                async with asyncio.timeout(_PROBE_S):
                    _, writer = await asyncio.open_connection(*self.listens)
                writer.close()
                return
            await asyncio.sleep(_PROBE_PAUSE_S)

    async def keep(self) -> NoReturn:
        """Start it again whenever it dies, until it has died too often.

        Raises:
            RunFailedError: it has.
        """
        deaths = 0
        while True:
            code = await self.ended()
            deaths = 1 if time.monotonic() - self._started_s > _LONG_LIFE_S else deaths + 1
            how = self.how_it_ended(code)
            if deaths > self.restarts:
                how_often = f", {deaths} times in a short time" if deaths > 1 else ""
                raise RunFailedError(EXIT_SERVICE_FAILED, f"{how}{how_often}")
            _log.warning("%s; it is started again", how)
            await asyncio.sleep(_RESTART_PAUSE_S * 2**deaths)
            await self.start()


async def race(*ways: Awaitable[_T]) -> _T:
    """The result of the first to end, or its error; of several at once, of the first named.

    The others are cancelled and waited for.
    """
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return first.result()


async def forever() -> NoReturn:
    """Wait until somebody cancels it."""
    await asyncio.Event().wait()
    raise AssertionError
