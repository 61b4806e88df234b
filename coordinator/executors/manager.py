"""Start all executors at once, report their capacities to the core, and retry those that fail."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.core import ExecutorResized
from superdl.coordinator.executors.base import ExecutorError
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from superdl.coordinator.core import Event
    from superdl.coordinator.executors.base import Executor

_log = logging.getLogger(__name__)

_GRACE_S = 5.0
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0
_CLOSE_S = 8.0
_NONE = ExecutorResized(0)


class ExecutorManager:
    """All executors: those that decode, cheapest first, then those that only restore and save.

    Raises ``ConfigError`` if a setting is invalid.

    Attributes:
        executors: the current executor from each factory. A restart replaces the entry.
        fingerprint: the decoder fingerprint that all running executors share.
    """

    def __init__(
        self, makers: Sequence[Callable[[], Executor]], store_only: Sequence[Callable[[], Executor]] = ()
    ) -> None:
        self._makers, self._decoding = (*makers, *store_only), len(makers)
        numbers = range(len(self._makers))
        self.executors = [self._make(number, "it has not been started") for number in numbers]
        self.fingerprint = ""
        self._closed: set[Executor] = set()
        self._reported: dict[int, ExecutorResized] = {}
        self._starting: list[asyncio.Task[None]] = []
        self._keeping: list[asyncio.Task[None]] = []

    @property
    def decoding(self) -> Sequence[Executor]:
        """The executors that decode, numbered as in :attr:`executors`."""
        return self.executors[: self._decoding]

    @property
    def remote(self) -> bool:
        """Whether any executor's functions run on other machines."""
        return any(executor.remote for executor in self.executors)

    async def start(self) -> None:
        """Start all executors. Wait until one has started, then briefly for the others.

        Raises ``SuperError`` if all of them fail.
        """
        self._starting = [asyncio.create_task(self._start(number)) for number in range(len(self.executors))]
        # Do not wait for executors that only restore and save.
        starting = self._starting[: self._decoding]
        pending = set(starting)
        # Wait until one executor has started, or all have failed.
        while pending and all(task.exception() for task in set(starting) - pending):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        # The others get a little more time.
        await asyncio.wait(self._starting, timeout=_GRACE_S)
        if all(task.done() and task.exception() for task in starting):
            raise self._none_left(*(task.exception() for task in starting))

    async def agree(self, agree: Callable[[str], Awaitable[object]]) -> None:
        """Admit the started executors whose decoder ``agree`` accepts, and keep retrying the others.

        ``agree`` raises ``ConfigError`` to reject a decoder. Raises ``SuperError`` if all are rejected.
        """
        failures = []
        for number, starting in enumerate(self._starting):
            # If it is still starting, _keep() goes on with this attempt.
            again: asyncio.Task[None] | None = starting
            if starting.done():
                again = None
                try:
                    starting.result()
                    await self._admit(number, agree)
                    continue
                except SuperError as error:
                    failures += [error] if number < self._decoding else []
                    name = self.executors[number].name
                    _log.warning("skipping the executor %s for now: %s", name, error)
            # If the only executor fails, the coordinator ends.
            if len(self.executors) > 1:
                self._keeping.append(asyncio.create_task(self._keep(number, agree, again)))
        if not self.fingerprint:
            raise self._none_left(*failures)

    def report_changes(self, post_event: Callable[[Event], None]) -> None:
        """Report capacity changes to the core."""
        for number, executor in enumerate(self.executors):
            resized = replace(_NONE if executor.absence else executor.scaling, executor=number)
            if resized != self._reported.get(number):
                self._reported[number] = resized
                post_event(resized)

    async def close(self) -> None:
        """Close all executors."""
        await cancel_and_wait(*self._keeping, *self._starting)
        await asyncio.gather(
            *(self._close(executor, "the coordinator is shutting down") for executor in self.executors)
        )

    def _none_left(self, *failures: BaseException | None) -> BaseException:
        if self._decoding == 1 and failures[0] is not None:
            return failures[0]
        reasons = "; ".join(f"{executor.name}: {executor.absence}" for executor in self.decoding)
        return ExecutorError(f"none of the executors could be started: {reasons}")

    def _make(self, number: int, absence: str) -> Executor:
        executor = self._makers[number]()
        executor.absence, executor.decodes = absence, number < self._decoding
        return executor

    async def _start(self, number: int) -> None:
        """Start an executor, or raise :class:`SuperError`. It gets no requests until :meth:`_admit`."""
        executor = self.executors[number]
        try:
            if executor in self._closed:
                fresh = self._make(number, executor.absence)
                self._closed.discard(executor)
                executor = self.executors[number] = fresh
            await executor.start()
        except SuperError as error:
            await self._close(executor, str(error))
            raise
        except Exception as error:
            words = f"it failed to start because of a bug ({type(error).__name__}: {error})"
            _log.exception("the executor %s: %s", executor.name, words)
            await self._close(executor, words)
            raise ExecutorError(words) from error

    async def _close(self, executor: Executor, reason: str) -> None:
        """Close an executor within a bounded time, at most once. The next start creates a new executor."""
        executor.absence = reason
        if executor in self._closed:
            return
        self._closed.add(executor)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await executor.close()
        except TimeoutError:
            words = "the executor %s did not shut down within %g s and was abandoned"
            _log.error(words, executor.name, _CLOSE_S)
        except Exception:  # noqa: BLE001  # the others must close too
            _log.exception("the executor %s did not shut down cleanly", executor.name)

    async def _admit(self, number: int, agree: Callable[[str], Awaitable[object]]) -> None:
        executor = self.executors[number]
        if executor.decodes:
            try:
                await agree(executor.fingerprint)
            except SuperError as error:
                await self._close(executor, str(error))
                raise
            self.fingerprint = self.fingerprint or executor.fingerprint
        executor.absence = ""

    async def _keep(
        self, number: int, agree: Callable[[str], Awaitable[object]], starting: asyncio.Task[None] | None
    ) -> None:
        """Try to start an executor until it is admitted. ``starting`` is the attempt in progress, if any."""
        pause_s, name = _FIRST_PAUSE_S, self.executors[number].name
        while self.executors[number].absence:
            if starting is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await (starting or self._start(number))
                await self._admit(number, agree)
            except Exception as error:  # noqa: BLE001  # retry after bugs, too
                is_bug = not isinstance(error, SuperError)
                words = "the executor %s is unavailable and will be retried: %s"
                _log.warning(words, name, error, exc_info=is_bug)
            starting = None
        _log.info("the executor %s is available", name)
