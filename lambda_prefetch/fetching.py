"""Fetches a request's objects by threads, ahead of the decoders, within a budget of bytes.

Whatever happens to one object becomes a failure that arrives in its place. How an object is read is the
source's; what becomes of it is :mod:`lambda_prefetch.pipeline`'s.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from lambda_prefetch.budget import BudgetClosedError, ByteBudget
from lambda_prefetch.failures import SampleFailedError
from super_wire.request import Outcome

if TYPE_CHECKING:
    from types import TracebackType

    from lambda_prefetch.push import Pusher
    from lambda_prefetch.settings import Settings
    from lambda_prefetch.sources import Source
    from super_wire.request import PrefetchRequest

__all__ = ["Arrived", "Fetchers"]


@dataclass(slots=True)
class Arrived:
    """One sample, fetched or failed."""

    index: int
    data: bytes | bytearray = b""
    failure: SampleFailedError | None = None
    fetch_us: int = 0
    reserved_bytes: int | None = None


class Fetchers:
    """Threads that read the request's objects ahead of the decoders, within a budget of bytes.

    Use it as a context; leaving it ends the threads, after the reads that are under way.
    """

    def __init__(
        self, request: PrefetchRequest, source: Source, settings: Settings, pusher: Pusher, expires_at: float
    ) -> None:
        self._request = request
        self._source = source
        self._pusher = pusher
        self._expires_at = expires_at
        self._budget = ByteBudget(settings.fetch_bytes)
        self._arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()  # bounded by the request
        self._untaken = len(request.keys)
        self._indices = iter(range(len(request.keys)))
        self._lock = threading.Lock()
        self._stopping = False
        count = min(settings.fetch_threads or source.threads, len(request.keys))
        self._threads = [
            threading.Thread(target=self._run, name=f"super-fetch-{number}", daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._budget.close()
        for thread in self._threads:
            thread.join()  # reads have deadlines of their own

    def next(self) -> Arrived | None:
        """The sample that arrives next, fetched or failed; ``None`` once all were taken, or :meth:`stop`.

        Several decoders may ask at once.
        """
        with self._lock:
            if self._untaken == 0:
                return None
            self._untaken -= 1
        return self._arrived.get()  # every sample arrives, exactly once

    def stop(self, decoders: int) -> None:
        """Let that many decoders get ``None`` instead of the next sample."""
        with self._lock:
            self._untaken = 0
        for _ in range(decoders):
            self._arrived.put(None)

    def release(self, arrived: Arrived) -> None:
        """Give back the room of a sample that was decoded."""
        arrived.data = b""
        if arrived.reserved_bytes is not None:
            self._budget.release(arrived.reserved_bytes)

    def _run(self) -> None:
        while (index := self._next_index()) is not None:
            arrived = Arrived(index)
            try:
                self._fetch(arrived)
            except BudgetClosedError:
                return
            except SampleFailedError as failure:
                arrived.failure = failure
            except Exception as error:  # noqa: BLE001  # told in the result; a thread that died silently would stop the invocation
                why = f"it could not be read: {type(error).__name__}: {error}"
                arrived.failure = SampleFailedError(Outcome.SOURCE_ERROR, why)
            self._arrived.put(arrived)

    def _next_index(self) -> int | None:
        with self._lock:
            return None if self._stopping else next(self._indices, None)

    def _fetch(self, arrived: Arrived) -> None:
        if time.time() >= self._expires_at:
            raise SampleFailedError(Outcome.EXPIRED, "the request expired before it was begun")
        if self._pusher.broken:
            why = f"not tried, since the cache takes nothing: {self._pusher.broken}"
            raise SampleFailedError(Outcome.CACHE_ERROR, why)
        waited_ns = 0

        def reserve(size_bytes: int) -> None:
            nonlocal waited_ns
            asked_ns = time.perf_counter_ns()
            self._budget.acquire(size_bytes)
            arrived.reserved_bytes = size_bytes
            waited_ns += time.perf_counter_ns() - asked_ns

        begun_ns = time.perf_counter_ns()
        arrived.data = self._source.read(
            self._request.keys[arrived.index],
            self._request.versions[arrived.index],
            limit_bytes=self._request.limits.object_bytes,
            reserve=reserve,
        )
        arrived.fetch_us = (time.perf_counter_ns() - begun_ns - waited_ns) // 1000
