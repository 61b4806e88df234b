"""Starts executors together, informs the core as they come and go, and restarts missing ones."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from superdl.coordinator.core import ExecutorResized
from superdl.coordinator.executors.base import ExecutorError, Scaling
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.base import Executor
    from superdl.super_wire.request import PrefetchRequest, PrefetchResult

__all__ = ["ExecutorManager", "ManagedExecutor"]

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
_CLOSE_S = 8.0
_NONE = Scaling(0, burst=0, per_s=math.inf, backlog=0)


class ManagedExecutor:
    """One executor, running or not; usable like an :class:`Executor`.

    ``make`` makes it, for each attempt to start it; ``made`` is the latest. Unless
    it ``decodes``, it serves the store alone.
    """

    def __init__(self, make: Callable[[], Executor], *, decodes: bool = True) -> None:
        self._make = make
        self.decodes = decodes
        self.made = make()  # raises at once for wrong settings
        self._is_closed = False
        self.name, self.remote = self.made.name, self.made.remote
        # Reason that it is absent; empty while it runs.
        self.absence = "it has not been started"

    @property
    def scaling(self) -> Scaling:
        """Return the number of requests it accepts at once: none while absent."""
        return _NONE if self.absence else self.made.scaling

    async def start(self) -> None:
        """Start it, or raise :class:`SuperError`; it accepts requests once ``absence`` is cleared."""
        try:
            if self._is_closed:
                self.made, self._is_closed = self._make(), False
            await self.made.start()
        except SuperError as error:
            await self.close(str(error))
            raise
        except Exception as error:
            words = f"its start failed unexpectedly ({type(error).__name__}: {error})"
            _log.exception("the executor %s: %s", self.name, words)
            await self.close(words)
            raise ExecutorError(words) from error

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """Carry out one request; see :class:`superdl.coordinator.executors.base.Executor`."""
        if self.absence:
            error = ExecutorError(f"the executor {self.name} is not there: {self.absence}")
            error.refused = True
            raise error
        return await self.made.invoke(request, timeout_s=timeout_s)

    async def close(self, reason: str = "the coordinator ends") -> None:
        """End the executor, once and within a bounded time. The next start makes another one."""
        self.absence = reason
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.made.close()
        except TimeoutError:
            _log.error("the executor %s did not end within %g s: it is left to itself", self.name, _CLOSE_S)
        except Exception:  # noqa: BLE001  # logged: the others must end too
            _log.exception("the executor %s did not end well", self.name)


class ExecutorManager:
    """All executors, the cheapest first, then those for the store alone;
    ``ConfigError``: a wrong setting.
    """

    def __init__(
        self, makers: Sequence[Callable[[], Executor]], store_only: Sequence[Callable[[], Executor]] = ()
    ) -> None:
        # With the same numbers as among all.
        self.decoding = tuple(ManagedExecutor(make) for make in makers)
        self.executors = (*self.decoding, *(ManagedExecutor(make, decodes=False) for make in store_only))
        # Decoder fingerprint shared by all running executors.
        self.fingerprint = ""
        self._told: dict[int, Scaling] = {}
        self._starting: list[asyncio.Task[None]] = []
        self._keeping: list[asyncio.Task[None]] = []

    @property
    def remote(self) -> bool:
        """Return whether functions of any executor run on other machines."""
        return any(executor.remote for executor in self.executors)

    async def start(self) -> None:
        """Start all, hardly waiting for others than the first; ``SuperError``: all failed."""
        self._starting = [asyncio.create_task(executor.start()) for executor in self.executors]
        # A start never waits for those that serve the store alone.
        starting = self._starting[: len(self.decoding)]
        pending = set(starting)
        # Wait until one has started, or all have failed.
        while pending and all(task.exception() for task in set(starting) - pending):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        # The others get a little more time.
        await asyncio.wait(self._starting, timeout=_GRACE_S)
        if all(task.done() and task.exception() for task in starting):
            raise self._none_left(*(task.exception() for task in starting))

    async def agree(self, agree: Callable[[str], Awaitable[object]]) -> None:
        """Admit started executors whose decoder ``agree`` accepts; keep retrying the others.

        ``agree`` raises ``ConfigError`` to reject one. ``SuperError``: no executor is left.
        """
        failures = []
        for executor, starting in zip(self.executors, self._starting, strict=True):
            # If it is still starting, _keep() goes on with this attempt.
            again: asyncio.Task[None] | None = starting
            if starting.done():
                again = None
                try:
                    starting.result()
                    await self._admit(executor, agree)
                    continue
                except SuperError as error:
                    failures += [error] if executor.decodes else []
                    _log.warning("the executor %s is left out for now: %s", executor.name, error)
            # The failure of a single executor ends the coordinator, so there is nothing to retry.
            if len(self.executors) > 1:
                self._keeping.append(asyncio.create_task(self._keep(executor, agree, again)))
        if not self.fingerprint:
            raise self._none_left(*failures)

    def tell_changes(self, post_event: Callable[[Event], None]) -> None:
        """Report executors whose number of accepted requests has changed to the core."""
        for number, executor in enumerate(self.executors):
            scaling = executor.scaling
            if scaling != self._told.get(number):
                self._told[number] = scaling
                post_event(ExecutorResized(**asdict(scaling), executor=number))

    async def close(self) -> None:
        """End all."""
        await cancel_and_wait(*self._keeping, *self._starting)
        await asyncio.gather(*(executor.close() for executor in self.executors))

    def _none_left(self, *failures: BaseException | None) -> BaseException:
        if len(self.decoding) == 1 and failures[0] is not None:
            return failures[0]
        reasons = "; ".join(f"{executor.name}: {executor.absence}" for executor in self.decoding)
        return ExecutorError(f"none of the executors could be started: {reasons}")

    async def _admit(self, executor: ManagedExecutor, agree: Callable[[str], Awaitable[object]]) -> None:
        if executor.decodes:
            try:
                await agree(executor.made.fingerprint)
            except SuperError as error:
                await executor.close(str(error))
                raise
            self.fingerprint = self.fingerprint or executor.made.fingerprint
        executor.absence = ""

    async def _keep(
        self,
        executor: ManagedExecutor,
        agree: Callable[[str], Awaitable[object]],
        starting: asyncio.Task[None] | None,
    ) -> None:
        """Retry a missing executor's start until it runs; ``starting``: an attempt in progress."""
        pause_s = _FIRST_PAUSE_S
        while executor.absence:
            if starting is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await (starting or executor.start())
                await self._admit(executor, agree)
            except Exception as error:  # noqa: BLE001  # a bug is no reason to give it up forever
                is_bug = not isinstance(error, SuperError)
                words = "the executor %s is missing, and is tried again: %s"
                _log.warning(words, executor.name, error, exc_info=is_bug)
            starting = None
        _log.info("the executor %s is there", executor.name)
