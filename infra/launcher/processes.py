"""Processes that a launcher starts: each below a guard, ended with it, what they print passed on.

What is started and when is :mod:`infra.launcher.services`' and :mod:`infra.launcher.training`'s; that nothing
of a process stays behind is :mod:`infra.launcher.guard`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.verdicts import EXIT_NOT_READY, EXIT_SERVICE_FAILED, RunFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

__all__ = ["Child", "Service"]

_log = logging.getLogger(__name__)

_GUARD = Path(__file__).with_name("guard.py")
_LAST_LINES = 5
_LAST_CHARACTERS = 1000
_CHUNK = 64 * 1024
_GUARD_WAIT_S = 10.0  # the guard kills at once
_OUTPUT_WAIT_S = 2.0
_PROBE_PAUSE_S = 0.05
_LONG_LIFE_S = 60.0  # who dies after so long was not started in vain
_RESTARTS = 3
_RESTART_PAUSE_S = 0.2
_SIGNALS_FROM = 128


class Child:
    """One process and all that comes of it.

    Args:
        name: what it is, for people: ``the cache``.
        command: its program and arguments.
        environment: all of its variables.
        quiet: what it prints is passed on line by line with its name before it, and the last of it kept to
            be told when it fails; else it writes where the launcher does.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, quiet: bool = True
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._quiet = quiet
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._last: deque[str] = deque(maxlen=_LAST_LINES)

    async def start(self) -> None:
        """Start it; a program that is not there ends at once with code 127."""
        pipe = asyncio.subprocess.PIPE if self._quiet else None
        self._last.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(_GUARD),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT if self._quiet else None,
            env=self._environment,
            process_group=0,
        )
        if self._quiet:
            self._output = asyncio.get_running_loop().create_task(self._relay())

    async def ended(self) -> int:
        """Its exit code, once it has ended: 128 and more where a signal ended it."""
        if self._process is None:
            msg = f"{self.name} was not started"
            raise RuntimeError(msg)
        code = await self._process.wait()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=_OUTPUT_WAIT_S)  # a stranger may hold the pipe
        return code if code >= 0 else _SIGNALS_FROM - code

    def told(self, code: int) -> str:
        """How it ended, in words, with the last that it said."""
        said = " | ".join(self._last)[-_LAST_CHARACTERS:]
        return f"{self.name} ended with exit code {code}{f': {said}' if said else ''}"

    async def end(self, wait_s: float) -> None:
        """Ask it to end, insist after ``wait_s``, and wait until nothing of it is left."""
        process = self._process
        if process is None or process.returncode is not None or process.stdin is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(wait_s):
                await self.ended()
        except TimeoutError:
            _log.warning("%s has not ended within %g s and is killed", self.name, wait_s)
            process.stdin.write(b"kill")
            try:
                async with asyncio.timeout(_GUARD_WAIT_S):
                    await self.ended()
            except TimeoutError:
                process.kill()
                await self.ended()

    async def _relay(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        rest = b""
        while chunk := await self._process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)
            if len(rest) > _CHUNK:
                self._pass_on(rest)
                rest = b""
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last.append(text)
            sys.stderr.write(f"[{self.name}] {text}\n")
            sys.stderr.flush()


class Service:
    """A child that is to run as long as the run does: found ready, and started again when it dies.

    Args:
        child: what runs.
        ready: returns once it serves; asked again and again while it raises ``OSError``.
        wait_s: how long that may take.
        restarts: so many quick deaths are borne.
    """

    def __init__(
        self,
        child: Child,
        ready: Callable[[], Awaitable[None]],
        *,
        wait_s: float,
        restarts: int = _RESTARTS,
    ) -> None:
        self.child = child
        self._ready = ready
        self._wait_s = wait_s
        self._restarts = restarts
        self._started_s = 0.0

    async def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            RunFailedError: it ends before, or does not serve in time.
        """
        self._started_s = time.monotonic()
        await self.child.start()
        loop = asyncio.get_running_loop()
        serving, ending = loop.create_task(self._serving()), loop.create_task(self.child.ended())
        try:
            done, _ = await asyncio.wait(
                {serving, ending}, timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ending in done:
                msg = f"{self.child.told(ending.result())} (before it was ready)"
                raise RunFailedError(EXIT_SERVICE_FAILED, msg)
            if serving not in done:
                msg = f"{self.child.name} was started and did not answer within {self._wait_s:g} s"
                raise RunFailedError(EXIT_NOT_READY, msg)
            serving.result()
        finally:
            for task in (serving, ending):
                task.cancel()
        _log.info("%s is ready", self.child.name)

    async def _serving(self) -> None:
        while True:
            try:
                await self._ready()
            except OSError:  # not yet; how long that may last is bounded above
                await asyncio.sleep(_PROBE_PAUSE_S)
            else:
                return

    async def keep(self) -> None:
        """Start it again whenever it dies, until it has died too often.

        Raises:
            RunFailedError: it has.
        """
        deaths = 0
        while True:
            code = await self.child.ended()
            deaths = 1 if time.monotonic() - self._started_s > _LONG_LIFE_S else deaths + 1
            told = self.child.told(code)
            if deaths > self._restarts:
                how_often = f", {deaths} times in a short time" if deaths > 1 else ""
                raise RunFailedError(EXIT_SERVICE_FAILED, f"{told}{how_often}")
            _log.warning("%s; it is started again", told)
            await asyncio.sleep(_RESTART_PAUSE_S * 2**deaths)
            await self.start()
