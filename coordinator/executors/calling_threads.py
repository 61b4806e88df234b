"""Runs blocking calls beside an event loop, in threads that hold up nobody's end.

The threads of :mod:`concurrent.futures` are waited for when the interpreter ends, however long the call that
one is in still waits for its answer. These are not: who closes them abandons what they are doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.coordinator.executors.base import ThrottledError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallingThreads"]

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


class CallingThreads:
    """Up to ``limit`` threads, started as they are needed; used from one event loop."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = queue.SimpleQueue()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._threads = 0
        self._is_short = False
        self._closed: Exception | None = None

    async def run(self, call: Callable[[], _Value]) -> _Value:
        """The value of ``call()``, or its error. One that is cancelled before it has begun never begins.

        Raises:
            ThrottledError: this machine starts no thread at all for now.
        """
        if self._closed is not None:
            raise self._closed
        if self._threads < min(len(self._under_way) + 1, self._limit):
            self._start_one()
        future: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
        self._under_way.add(future)
        self._calls.put((call, future))
        return await future

    def close(self, reason: Exception) -> None:
        """Begin nothing more, and abandon what is under way: it fails with ``reason``."""
        self._closed = reason
        for future in self._under_way:
            if not future.done():
                future.set_exception(reason)
        for _ in range(self._threads):
            self._calls.put(None)

    def _start_one(self) -> None:
        """One thread more; where the machine has none to give, those that there are do all."""
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._threads + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            msg = (
                f"no more than {self._threads} of {self._limit} threads can be started ({error}): raise the "
                "limit on processes (ulimit -u, TasksMax, pids.max) or lower lambda_concurrency"
            )
            if not self._threads:
                raise ThrottledError(msg) from error
            if not self._is_short:
                _log.warning("%s", msg)
            self._is_short = True
            return
        self._threads += 1

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            call, future = work
            value, error = None, None
            try:
                if not future.done():
                    value = call()
            except BaseException as raised:  # noqa: BLE001  # raised where the value is waited for
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(self._ended, future, value, error)
            del work, call, future, value, error  # a thread that waits holds no answer in memory

    def _ended(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        self._under_way.discard(future)
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
