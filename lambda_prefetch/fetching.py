"""Fetches a request's objects by threads, ahead of the decoders, within a budget of bytes.

A thread asks a source that can be asked ahead for many objects and reads each answer, to its end, once it
begins; while the decoders have enough to do it rests, and finds many answers at once. So there is one switch
of threads for two small objects, where a thread for each object takes two switches for one. Whatever happens
to an object becomes a failure that arrives in its place.
"""

from __future__ import annotations

import queue
import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from superdl.lambda_prefetch.push import BudgetClosedError, ByteBudget
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from superdl.lambda_prefetch.push import Pusher
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.lambda_prefetch.sources import ObjectSource, Pending
    from superdl.super_wire.request import PrefetchRequest

__all__ = ["Arrived", "Fetchers"]

_ENOUGH_ARRIVED, _FEW_ARRIVED = 16, 4
"""As many as have arrived when fetchers rest, and when they go on."""

_MAX_SILENCE_S = 20  # that objects which were asked for may keep, all of a thread's together


@dataclass(slots=True)
class Arrived:
    """One sample, fetched or failed."""

    index: int
    data: bytes | bytearray = b""
    failure: SampleFailedError | None = None
    fetch_us: int = 0
    reserved_bytes: int | None = None
    begun_ns: int = 0

    def fail(self, outcome: Outcome, why: str) -> None:
        """Note a failure that is not the fault of the object's bytes."""
        self.failure = SampleFailedError(outcome, why)


class Fetchers:
    """Threads that read the request's objects ahead of the decoders, within a budget of bytes.

    Use it as a context; leaving it ends the threads, after the reads that are under way.
    """

    def __init__(
        self,
        request: PrefetchRequest,
        source: ObjectSource,
        settings: FunctionSettings,
        pusher: Pusher,
        expires_at: float,
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
        self._error: Exception | None = None
        self._resting = 0
        self._few = threading.Condition(self._lock)
        count = min(settings.fetch_threads or source.threads, len(request.keys))
        self._threads = [
            threading.Thread(target=self._run, name=f"super-fetch-{n}", daemon=True) for n in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopping = True
            self._few.notify_all()
        self._budget.close()
        for thread in self._threads:
            thread.join()  # reads have deadlines of their own

    def next(self) -> Arrived | None:
        """The sample that arrives next, fetched or failed; ``None`` once all were taken, or :meth:`stop`.

        Several decoders may ask at once. An error that ended a fetching thread, a bug, is raised.
        """
        with self._lock:
            # Each taker comes back here; the last to come has seen few, so nobody rests for ever.
            if self._resting and self._arrived.qsize() <= _FEW_ARRIVED:
                self._few.notify_all()
            if self._untaken == 0:
                return None
            self._untaken -= 1
        arrived = self._arrived.get()  # every sample arrives, exactly once
        if arrived is None:
            self._arrived.put(None)  # for the next decoder
            if self._error is not None:
                raise self._error
        return arrived

    def stop(self) -> None:
        """Let decoders get ``None`` once what has arrived is taken."""
        with self._lock:
            self._untaken = 0
        self._arrived.put(None)

    def release(self, arrived: Arrived) -> None:
        """Give back the room of a sample that was decoded."""
        arrived.data = b""
        if arrived.reserved_bytes is not None:
            self._budget.release(arrived.reserved_bytes)

    def _run(self) -> None:
        begun: dict[int, tuple[Arrived, Pending]] = {}  # by descriptor
        try:
            self._fetch(begun)
        except BudgetClosedError:
            return
        except Exception as error:  # noqa: BLE001  # else the decoders would wait for what no thread brings
            self._error = error
            self._arrived.put(None)
        finally:
            for _, pending in begun.values():
                pending.close()

    def _fetch(self, begun: dict[int, tuple[Arrived, Pending]]) -> None:
        """Begin ahead what the source can begin ahead, and read answers as they come."""
        answers = select.poll()
        while True:
            while len(begun) < self._source.in_flight and (index := self._next_index()) is not None:
                arrived = Arrived(index, begun_ns=time.perf_counter_ns())
                pending = self._begin(arrived)
                if pending is None:
                    self._finish(arrived, None)
                else:
                    begun[pending.fileno()] = arrived, pending
                    answers.register(pending, select.POLLIN)
            if not begun:
                return
            if self._arrived.qsize() >= _ENOUGH_ARRIVED:
                self._rest()
            ready = [descriptor for descriptor, _ in answers.poll(1000 * _MAX_SILENCE_S)]
            for descriptor in ready or list(begun):
                arrived, pending = begun.pop(descriptor)
                answers.unregister(descriptor)
                if not ready:
                    pending.close()
                    arrived.fail(Outcome.SOURCE_ERROR, f"no answer came for {_MAX_SILENCE_S} s")
                self._finish(arrived, pending)

    def _rest(self) -> None:
        """Let answers gather while the decoders have enough to do: then many are read at one go."""
        with self._lock:
            self._resting += 1
            self._few.wait_for(lambda: self._stopping or self._arrived.qsize() <= _FEW_ARRIVED)
            self._resting -= 1

    def _next_index(self) -> int | None:
        with self._lock:
            return None if self._stopping else next(self._indices, None)

    def _begin(self, arrived: Arrived) -> Pending | None:
        """Ask for an object ahead of reading it, unless there is a reason not to read it at all."""
        if time.time() >= self._expires_at:
            arrived.fail(Outcome.EXPIRED, "the request expired before it was begun")
            return None
        if self._pusher.broken:
            why = f"not tried, since the cache takes nothing: {self._pusher.broken}"
            arrived.fail(Outcome.CACHE_ERROR, why)
            return None
        key, version = self._request.keys[arrived.index], self._request.versions[arrived.index]
        try:
            return self._source.begin(key, version)
        except Exception:  # noqa: BLE001  # reading it meets the same, and tells it
            return None

    def _finish(self, arrived: Arrived, pending: Pending | None) -> None:
        """Read an object that has not failed yet, and hand it to the decoders."""
        try:
            if arrived.failure is None:
                self._read(arrived, pending)
        except SampleFailedError as failure:
            # Without the frames that it passed, which hold what was received and would outlive its room.
            failure.__cause__ = failure.__context__ = None
            arrived.failure = failure.with_traceback(None)
        except BudgetClosedError:
            raise
        except Exception as error:  # noqa: BLE001  # told in the result; a thread that died silently would stop the invocation
            arrived.fail(Outcome.SOURCE_ERROR, f"it could not be read: {type(error).__name__}: {error}")
        self._arrived.put(arrived)

    def _read(self, arrived: Arrived, pending: Pending | None) -> None:
        waited_ns = 0

        def reserve(size_bytes: int) -> None:
            nonlocal waited_ns
            asked_ns = time.perf_counter_ns()
            self._budget.acquire(size_bytes)
            arrived.reserved_bytes = size_bytes
            waited_ns += time.perf_counter_ns() - asked_ns

        arrived.data = self._source.read(
            self._request.keys[arrived.index],
            self._request.versions[arrived.index],
            limit_bytes=self._request.limits.object_bytes,
            reserve=reserve,
            begun=pending,
        )
        arrived.fetch_us = (time.perf_counter_ns() - arrived.begun_ns - waited_ns) // 1000
