"""Reliably stoppable background work for an event loop: tasks, and blocking calls in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger(__name__)

_CANCEL_AGAIN_S = 0.5

_Value = TypeVar("_Value")


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks repeatedly until they end. Their results and errors are ignored."""
    # A library may swallow a cancellation while it closes a broken connection, or as its own
    # timeout expires.
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


class HeldTasks:
    """Tasks of one event loop, referenced until they end.

    A failing task is a bug: its error is logged and passed to ``on_error``.
    """

    def __init__(self, owner: str, on_error: Callable[[BaseException], None] = lambda _: None) -> None:
        self._owner, self._on_error = owner, on_error
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of unfinished tasks."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a coroutine as a task."""
        task = asyncio.create_task(work, name=self._owner)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await cancel_and_wait(*self._running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a background task failed (%s); this is a bug", self._owner, exc_info=error)
            self._on_error(error)


class CallingThreads:
    """Threads for an event loop's blocking calls: one per call, and at most ``limit`` at a time."""

    def __init__(self, limit: int, name: str) -> None:
        self._name = name
        self._free = asyncio.Semaphore(limit)
        self._pending: set[asyncio.Future[Any]] = set()
        self._closed: Exception | None = None

    async def run(self, call: Callable[[], _Value]) -> _Value:
        """Return the value of ``call()``, or raise its error.

        A call that is cancelled while it is waiting never starts. Raises ``RuntimeError`` if no thread can be
        started.
        """
        await self._free.acquire()
        future: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
        # The interpreter would wait for threads of concurrent.futures before it exits.
        thread = threading.Thread(target=self._work, args=(call, future), name=self._name, daemon=True)
        if self._closed is not None:
            self._free.release()
            raise self._closed
        try:
            thread.start()
        except RuntimeError:
            self._free.release()
            raise
        self._pending.add(future)
        return await future

    def close(self, reason: Exception) -> None:
        """Make pending, running and future calls raise ``reason``. Their threads are abandoned."""
        self._closed = reason
        for future in self._pending:
            if not future.done():
                future.set_exception(reason)
        self._free.release()  # wakes the pending calls, one after another

    def _work(self, call: Callable[[], _Value], future: asyncio.Future[_Value]) -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:  # noqa: BLE001  # raised where the value is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing awaits the call
            future.get_loop().call_soon_threadsafe(self._ended, future, value, error)

    def _ended(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._pending.discard(future)
        self._free.release()
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
