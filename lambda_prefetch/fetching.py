"""Fetch a request's objects in threads, ahead of the decoders and within a byte budget."""

from __future__ import annotations

import math
import queue
import select
import sys
import threading
import time
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Self

from superdl.lambda_prefetch.members import MAX_RANGE_BYTES, ranges_of, read_rows
from superdl.lambda_prefetch.push import BudgetClosedError, ByteBudget
from superdl.lambda_prefetch.sources import SampleFailedError, open_shard_cache, read_object
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.lambda_prefetch.invocation import Invocation
    from superdl.lambda_prefetch.members import MemberRange, Rows
    from superdl.lambda_prefetch.push import Pusher
    from superdl.super_wire.objects import Bucket, Pending, Span

_ENOUGH_ARRIVED, _FEW_ARRIVED = 16, 4  # fetchers pause at this many arrived samples, and resume at this many
_MAX_SILENCE_S = 20  # maximum time without a reply to any request of a thread
_OUTAGE_S = 1.0  # stop reading from a source that has been unavailable for this long
_BLOCK_S = 20.0  # if less time is left, read only the members, not whole blocks of shards
_RANGES_IN_BUDGET = 4  # so that some are received while others are being decoded


@dataclass(slots=True)
class _Reservation:
    """Reserved bytes shared by ``samples`` members of a range. The last member to finish releases them."""

    reserved_bytes: int
    samples: int


@dataclass(slots=True)
class Arrived:
    """A fetched or failed sample, or before that a range of members, with the ``index`` of the first."""

    index: int
    data: bytes | bytearray | memoryview = b""  # for a member, a slice of its range
    failure: SampleFailedError | None = None
    fetch_us: int = 0
    reserved_bytes: int | None = None
    begun_ns: int = 0
    read_bytes: int = 0  # for a member, its share of the bytes read for the range
    by_blocks: bool = False
    requests: int = 1  # of a range; may be 0 if it is read by_blocks
    range: MemberRange | None = None
    rows: Rows | None = None
    room: _Reservation | None = None

    @property
    def span(self) -> Span | None:
        """The requested span of the object, for a range of members."""
        return None if self.range is None else self.range.span

    def fail(self, outcome: Outcome, message: str) -> None:
        """Record a failure that is not the fault of the object's bytes."""
        self.failure = SampleFailedError(outcome, message)


class Fetchers:
    """Threads that read a request's objects. Leaving the context stops them after their current reads."""

    def __init__(self, invocation: Invocation, bucket: Bucket, pusher: Pusher) -> None:
        request, settings = invocation.request, invocation.settings
        self._invocation, self._request, self._bucket, self._pusher = invocation, request, bucket, pusher
        self._budget = ByteBudget(settings.fetch_bytes)
        self._shards = open_shard_cache(settings.shard_cache, settings.shard_cache_bytes)
        self._trouble, self._down_since_s = "", math.inf
        self._arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()  # bounded by the request
        self._untaken = count = len(request.keys)
        self._enough_arrived = _ENOUGH_ARRIVED
        pieces: Iterable[tuple[int, MemberRange | None]] = zip(range(count), repeat(None))
        if request.members:
            share = settings.fetch_bytes // _RANGES_IN_BUDGET
            ranges = ranges_of(request, min(MAX_RANGE_BYTES, share, request.limits.object_bytes))
            pieces = [(member_range.indices[0], member_range) for member_range in ranges]
            # Parts that are whole objects rather than members.
            pieces += [(index, None) for index, member in enumerate(request.members) if not member]
            count = len(pieces)
            self._enough_arrived = sys.maxsize  # ranges are limited by the budget instead
        if request.fields:  # keep a sample's parts together, because decoded parts wait for the others
            pieces = sorted(pieces, key=lambda piece: piece[0] % request.count)
        self._pieces = iter(pieces)
        # Ranges and Parquet footers, and with fields also whole objects.
        self.ranges_read = 0
        self._lock = threading.Lock()
        self._few = threading.Condition(self._lock)
        self._resting = 0
        self._stopping = False
        self._error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"super-fetch-{n}", daemon=True)
            for n in range(min(settings.fetch_threads or bucket.threads, count))
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopping = True
            self._few.notify_all()
        # Wake fetchers that wait for room, which no decoder will release now.
        self._budget.close()
        for thread in self._threads:
            thread.join()  # reads have deadlines of their own

    def next(self) -> Arrived | None:
        """Return the next fetched or failed sample, or ``None`` after the last one or :meth:`stop`.

        Several decoders may wait at once. Raises the unexpected error of a fetching thread.
        """
        with self._lock:
            # Every decoder returns here, and the last sees few arrived samples, so no fetcher pauses forever.
            if self._resting and self._arrived.qsize() <= _FEW_ARRIVED:
                self._few.notify_all()
            if self._untaken == 0:
                return None
            self._untaken -= 1
        arrived = self._arrived.get()  # every sample arrives exactly once
        if arrived is None:
            self._arrived.put(None)  # wakes the next decoder
            if self._error is not None:
                raise self._error
        return arrived

    def stop(self) -> None:
        """Make :meth:`next` return ``None`` once it has returned all samples that have arrived."""
        with self._lock:
            self._untaken = 0
        self._arrived.put(None)

    def release(self, arrived: Arrived) -> None:
        """Release the bytes reserved for a decoded sample."""
        arrived.data = b""
        if arrived.reserved_bytes is not None:
            self._budget.release(arrived.reserved_bytes)
        elif arrived.room is not None:
            with self._lock:
                arrived.room.samples -= 1
                is_last = not arrived.room.samples
            if is_last:
                self._budget.release(arrived.room.reserved_bytes)

    def _run(self) -> None:
        begun: dict[int, tuple[Arrived, Pending]] = {}  # by descriptor
        try:
            self._fetch(begun)
        except BudgetClosedError:
            return
        except Exception as error:  # noqa: BLE001  # otherwise the decoders would wait forever
            self._error = error
            self._arrived.put(None)
        finally:
            # These are requests whose replies will not be read.
            for _, pending in begun.values():
                pending.close()

    def _fetch(self, begun: dict[int, tuple[Arrived, Pending]]) -> None:
        replies = select.poll()
        while True:
            while len(begun) < self._bucket.in_flight and (piece := self._next_piece()) is not None:
                index, member_range = piece
                arrived = Arrived(index, begun_ns=time.perf_counter_ns(), range=member_range)
                pending = self._begin(arrived)
                if pending is None:
                    self._finish(arrived, None)
                else:
                    begun[pending.fileno()] = arrived, pending
                    replies.register(pending, select.POLLIN)
            if not begun:
                return
            if self._arrived.qsize() >= self._enough_arrived:
                # Let replies accumulate while the decoders are busy, and read many at once. Two small objects
                # then take one thread switch. With a thread per object, they would take four.
                with self._lock:
                    self._resting += 1
                    self._few.wait_for(lambda: self._stopping or self._arrived.qsize() <= _FEW_ARRIVED)
                    self._resting -= 1
            ready = [descriptor for descriptor, _ in replies.poll(1000 * _MAX_SILENCE_S)]
            # No reply arrived in time, so abandon all requests.
            for descriptor in ready or list(begun):
                arrived, pending = begun.pop(descriptor)
                replies.unregister(descriptor)
                if not ready:
                    pending.close()
                    arrived.fail(Outcome.UNAVAILABLE, f"no reply arrived within {_MAX_SILENCE_S} s")
                self._finish(arrived, pending)

    def _source_is_down(self) -> bool:
        return time.perf_counter() - self._down_since_s > _OUTAGE_S

    def _next_piece(self) -> tuple[int, MemberRange | None] | None:
        with self._lock:
            return None if self._stopping else next(self._pieces, None)

    def _begin(self, arrived: Arrived) -> Pending | None:
        """Send the request for an object. Return ``None`` if that failed or is not needed."""
        if self._invocation.expired():
            arrived.fail(Outcome.EXPIRED, "the request expired before this sample was read")
            return None
        if self._pusher.broken:
            arrived.fail(
                Outcome.CACHE_ERROR, f"skipped because the cache accepts no records: {self._pusher.broken}"
            )
            return None
        if self._source_is_down():
            arrived.fail(Outcome.UNAVAILABLE, self._trouble)
            return None
        key, version = self._request.keys[arrived.index], self._request.versions[arrived.index]
        span, limit_bytes = arrived.span, self._request.limits.object_bytes
        if self._shards is not None and span is not None and span.size_bytes <= limit_bytes:
            is_in_time = not self._invocation.expired(_BLOCK_S)
            arrived.by_blocks = is_in_time and self._shards.count_read(self._bucket, key, version, span)
        # The location of a row group is only known from the file's footer.
        if arrived.by_blocks or (arrived.range is not None and arrived.span is None):
            return None
        try:
            return self._bucket.begin(key, version.strip('"'), arrived.span)
        except Exception:  # noqa: BLE001  # reading fails too, and reports the error
            return None

    def _finish(self, arrived: Arrived, pending: Pending | None) -> None:
        """Read a sample that has not failed yet, and pass it to the decoders."""
        requested_s = time.perf_counter()
        try:
            if arrived.failure is None and self._source_is_down():
                if pending is not None:
                    pending.close()
                arrived.fail(Outcome.UNAVAILABLE, self._trouble)
            elif arrived.failure is None:
                self._read(arrived, pending)
                self._down_since_s = math.inf
        except SampleFailedError as failure:
            # The frames of the traceback would keep the received bytes alive beyond their budget.
            failure.__cause__ = failure.__context__ = None
            arrived.failure = failure.with_traceback(None)
            is_down = failure.outcome is Outcome.UNAVAILABLE
            if arrived.reserved_bytes is not None:  # it answered, and the thread may have waited for room
                requested_s = time.perf_counter()
            # An outage begins with the first of several failures in a row.
            since_s = min(self._down_since_s, requested_s)
            self._trouble, self._down_since_s = failure.message, since_s if is_down else math.inf
        except BudgetClosedError:
            raise
        except Exception as error:  # noqa: BLE001  # otherwise the invocation would hang
            arrived.fail(Outcome.SOURCE_ERROR, f"could not be read: {type(error).__name__}: {error}")
        if arrived.range is None:
            if self._request.fields and arrived.failure is None:
                with self._lock:
                    self.ranges_read += 1
            self._arrived.put(arrived)
        else:
            self._part(arrived, arrived.range)

    def _part(self, arrived: Arrived, member_range: MemberRange) -> None:
        count, failure = len(member_range.indices), arrived.failure
        room = None if arrived.reserved_bytes is None else _Reservation(arrived.reserved_bytes, count)
        share, remainder = divmod(arrived.read_bytes, count)
        members = [
            # Add the remainder to the first members, so that the sum is exact.
            Arrived(index, begun_ns=arrived.begun_ns, room=room, read_bytes=share + (position < remainder))
            for position, index in enumerate(member_range.indices)
        ]
        if failure is not None:
            for member in members:  # a separate error for each, because several threads raise them
                member.failure = SampleFailedError(failure.outcome, failure.message, reason=failure.reason)
        elif arrived.rows is not None:
            for member in members:
                content = arrived.rows.contents[member.index]
                if isinstance(content, SampleFailedError):
                    member.failure = content
                else:
                    member.data = content
        elif member_range.span is not None:
            self._cut(arrived.data, member_range.span, members)
        if failure is None:
            with self._lock:
                self.ranges_read += arrived.requests
        for member in members:
            member.fetch_us = arrived.fetch_us // count
            self._arrived.put(member)

    def _cut(self, data: bytes | bytearray | memoryview, span: Span, members: list[Arrived]) -> None:
        view = memoryview(data)
        for member in members:
            begin = self._request.member_offsets[member.index]
            end = begin + self._request.member_lengths[member.index]
            member.data = view[begin - span.begin : end - span.begin]
            if len(member.data) < end - begin:
                member.fail(
                    Outcome.CHANGED,
                    f"the object ends at {span.begin + len(view)}, but this member is at {begin} to {end}: "
                    "the object was truncated, or the key list is for another object. List its members again",
                )

    def _read(self, arrived: Arrived, pending: Pending | None) -> None:
        waited_ns = 0

        def reserve(size_bytes: int) -> None:
            nonlocal waited_ns
            if arrived.reserved_bytes is not None:  # already reserved for a block that could not be cached
                return
            began_ns = time.perf_counter_ns()
            self._budget.acquire(size_bytes)
            arrived.reserved_bytes = size_bytes
            waited_ns += time.perf_counter_ns() - began_ns

        key, version = self._request.keys[arrived.index], self._request.versions[arrived.index]
        data: bytes | bytearray | None = None
        if arrived.range is not None and arrived.span is None:
            rows = read_rows(self._request, arrived.range.indices, self._bucket, reserve)
            arrived.rows, arrived.read_bytes, arrived.requests = rows, rows.read_bytes, rows.requests
            data = b""
        elif self._shards is not None and arrived.span is not None and arrived.by_blocks:
            blocks = self._shards.read(self._bucket, key, version, arrived.span, reserve)
            data, arrived.read_bytes, arrived.requests = blocks
        if data is None:
            arrived.requests += arrived.by_blocks
            data = read_object(
                *(self._bucket, key, version),
                limit_bytes=self._request.limits.object_bytes,
                reserve=reserve,
                begun=pending,
                span=arrived.span,
            )
            arrived.read_bytes += len(data)
        arrived.data = data
        arrived.fetch_us = (time.perf_counter_ns() - arrived.begun_ns - waited_ns) // 1000
