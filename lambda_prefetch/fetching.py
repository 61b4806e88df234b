"""Fetch a request's objects in threads, ahead of the decoders and within a byte budget."""

from __future__ import annotations

import math
import queue
import select
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TypeAlias

from superdl.lambda_prefetch.members import MAX_RANGE_BYTES, pieces_of, read_rows
from superdl.lambda_prefetch.push import BudgetClosedError, ByteBudget
from superdl.lambda_prefetch.sources import SampleFailedError, open_shard_cache, read_object
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.lambda_prefetch.invocation import Invocation
    from superdl.lambda_prefetch.members import Piece
    from superdl.lambda_prefetch.push import Pusher
    from superdl.super_wire.objects import Bucket, Pending, Span

_Content: TypeAlias = "bytes | bytearray | memoryview | SampleFailedError"

_ENOUGH_ARRIVED, _FEW_ARRIVED = 16, 4  # fetchers pause at this many arrived samples, and resume at this many
_MAX_SILENCE_S = 20  # maximum time without a reply to any request of a thread
_OUTAGE_S = 1.0  # stop reading from a source that has been unavailable for this long
_BLOCK_S = 20.0  # if less time is left, read only the members, not whole blocks of shards
_PIECES_IN_BUDGET = 4  # receive some pieces while others are decoded


@dataclass(slots=True)
class _Room:
    """Reserved bytes that the samples of a piece share. The last sample to finish releases them."""

    size_bytes: int
    samples: int


@dataclass(slots=True)
class Arrived:
    """A sample that was fetched or that failed."""

    index: int
    data: bytes | bytearray | memoryview = b""  # for a member, a slice of its piece
    failure: SampleFailedError | None = None
    fetch_us: int = 0
    read_bytes: int = 0  # its share of the bytes read for its piece
    room: _Room | None = None


@dataclass(slots=True)
class _Read:
    """The state of reading a piece, from the request until its bytes arrive."""

    piece: Piece
    begun_ns: int = field(default_factory=time.perf_counter_ns)
    pending: Pending | None = None
    by_blocks: bool = False
    failure: SampleFailedError | None = None
    reserved_bytes: int | None = None
    fetch_us: int = 0
    read_bytes: int = 0
    requests: int = 0


class Fetchers:
    """Threads that read a request's objects. On leaving the context, they stop after their current reads."""

    def __init__(self, invocation: Invocation, bucket: Bucket, pusher: Pusher) -> None:
        request, settings = invocation.request, invocation.settings
        self._invocation, self._request, self._bucket, self._pusher = invocation, request, bucket, pusher
        self._budget = ByteBudget(settings.fetch_bytes)
        self._shards = open_shard_cache(settings.shard_cache, settings.shard_cache_bytes)
        self._last_error, self._down_since_s = "", math.inf
        self._arrived: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()  # bounded by the request
        self._untaken = len(request.keys)
        # The budget limits pieces of members instead.
        self._enough_arrived = sys.maxsize if request.members else _ENOUGH_ARRIVED
        share = settings.fetch_bytes // _PIECES_IN_BUDGET
        pieces = pieces_of(request, min(MAX_RANGE_BYTES, share, request.limits.object_bytes))
        self._pieces = iter(pieces)
        self.requests = 0  # successful GETs
        self._lock = threading.Lock()
        self._few = threading.Condition(self._lock)
        self._resting = 0
        self._stopping = False
        self._error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"super-fetch-{n}", daemon=True)
            for n in range(min(settings.fetch_threads or bucket.threads, len(pieces)))
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
        """Return the next fetched or failed sample, or ``None`` after the last sample or :meth:`stop`.

        Several decoders may wait at once. Raises any unexpected error from a fetching thread.
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
        """Drop a decoded sample's bytes. The last sample of a piece also releases the reserved memory."""
        arrived.data = b""
        if arrived.room is not None:
            with self._lock:
                arrived.room.samples -= 1
                is_last = not arrived.room.samples
            if is_last:
                self._budget.release(arrived.room.size_bytes)

    def _run(self) -> None:
        reads: dict[int, _Read] = {}  # by descriptor
        try:
            self._fetch(reads)
        except BudgetClosedError:
            return
        except Exception as error:  # noqa: BLE001  # otherwise the decoders would wait forever
            self._error = error
            self._arrived.put(None)
        finally:
            for read in reads.values():
                if read.pending is not None:
                    read.pending.close()

    def _fetch(self, reads: dict[int, _Read]) -> None:
        replies = select.poll()
        while True:
            while len(reads) < self._bucket.in_flight and (piece := self._next_piece()) is not None:
                read = _Read(piece)
                self._begin(read)
                if read.pending is None:
                    self._finish(read)
                else:
                    reads[read.pending.fileno()] = read
                    replies.register(read.pending, select.POLLIN)
            if not reads:
                return
            if self._arrived.qsize() >= self._enough_arrived:
                # Let replies accumulate while the decoders are busy, and read many at once. Two small objects
                # then take one thread switch. With a thread per object, they would take four.
                with self._lock:
                    self._resting += 1
                    self._few.wait_for(lambda: self._stopping or self._arrived.qsize() <= _FEW_ARRIVED)
                    self._resting -= 1
            ready = [descriptor for descriptor, _ in replies.poll(1000 * _MAX_SILENCE_S)]
            # If no reply arrived in time, abandon all requests.
            for descriptor in ready or list(reads):
                read = reads.pop(descriptor)
                replies.unregister(descriptor)
                if not ready:
                    message = f"no reply arrived within {_MAX_SILENCE_S} s"
                    read.failure = SampleFailedError(Outcome.UNAVAILABLE, message)
                self._finish(read)

    def _next_piece(self) -> Piece | None:
        with self._lock:
            return None if self._stopping else next(self._pieces, None)

    def _place_of(self, piece: Piece) -> tuple[str, str]:
        """Return the key and version of a piece's object."""
        index = piece.indices[0]
        return self._request.keys[index], self._request.versions[index]

    def _reason_to_skip(self) -> SampleFailedError | None:
        if self._invocation.expired():
            message = "the request expired before this sample was read"
            return SampleFailedError(Outcome.EXPIRED, message)
        if self._pusher.broken:
            message = f"skipped because the cache accepts no records: {self._pusher.broken}"
            return SampleFailedError(Outcome.CACHE_ERROR, message)
        return self._outage()

    def _outage(self) -> SampleFailedError | None:
        """Return an error if the source has been unavailable for too long, or else ``None``."""
        is_down = time.perf_counter() - self._down_since_s > _OUTAGE_S
        return SampleFailedError(Outcome.UNAVAILABLE, self._last_error) if is_down else None

    def _begin(self, read: _Read) -> None:
        """Send the request for a piece, unless it must be skipped or needs no request yet."""
        read.failure = self._reason_to_skip()
        if read.failure is not None:
            return
        piece, limit_bytes = read.piece, self._request.limits.object_bytes
        key, version = self._place_of(piece)
        if self._shards is not None and piece.span is not None and piece.span.size_bytes <= limit_bytes:
            is_in_time = not self._invocation.expired(_BLOCK_S)
            read.by_blocks = is_in_time and self._shards.count_read(self._bucket, key, version, piece.span)
        # The location of a row group is only known from the file's footer.
        if read.by_blocks or piece.has_rows:
            return
        try:
            read.pending = self._bucket.begin(key, version.strip('"'), piece.span)
        except Exception:  # noqa: BLE001  # reading fails too, and reports the error
            return

    def _finish(self, read: _Read) -> None:
        """Read a piece unless it has already failed, and pass its samples to the decoders."""
        requested_s = time.perf_counter()
        contents: Mapping[int, _Content] = {}
        read.failure = read.failure or self._outage()
        try:
            if read.failure is None:
                contents = self._contents(read)
                self._down_since_s = math.inf
            elif read.pending is not None:
                read.pending.close()
        except SampleFailedError as failure:
            read.failure = failure.without_traceback()
            is_down = failure.outcome is Outcome.UNAVAILABLE
            if read.reserved_bytes is not None:  # it answered, and the thread may have waited for room
                requested_s = time.perf_counter()
            # An outage begins with the first of several failures in a row.
            since_s = min(self._down_since_s, requested_s)
            self._last_error, self._down_since_s = failure.message, since_s if is_down else math.inf
        except BudgetClosedError:
            raise
        except Exception as error:  # noqa: BLE001  # otherwise the invocation would hang
            message = f"could not be read: {type(error).__name__}: {error}"
            read.failure = SampleFailedError(Outcome.SOURCE_ERROR, message)
        self._pass_on(read, contents)

    def _pass_on(self, read: _Read, contents: Mapping[int, _Content]) -> None:
        indices, failure = read.piece.indices, read.failure
        count = len(indices)
        room = None if read.reserved_bytes is None else _Room(read.reserved_bytes, count)
        if failure is None:
            with self._lock:
                self.requests += read.requests
        share, remainder = divmod(read.read_bytes, count)
        for position, index in enumerate(indices):
            # The first samples count the remainder, which makes the sum exact.
            read_bytes = share + (position < remainder)
            arrived = Arrived(index, fetch_us=read.fetch_us // count, read_bytes=read_bytes, room=room)
            content = contents.get(index, b"")
            if failure is not None:  # a separate error for each, because several threads raise them
                arrived.failure = SampleFailedError(failure.outcome, failure.message, reason=failure.reason)
            elif isinstance(content, SampleFailedError):
                arrived.failure = content
            else:
                arrived.data = content
            self._arrived.put(arrived)

    def _contents(self, read: _Read) -> Mapping[int, _Content]:
        """Read a piece. Return each sample's bytes or failure, by index."""

        def reserve(size_bytes: int) -> None:
            if read.reserved_bytes is None:  # else already reserved for a block that could not be cached
                began_ns = time.perf_counter_ns()
                self._budget.acquire(size_bytes)
                read.reserved_bytes = size_bytes
                read.begun_ns += time.perf_counter_ns() - began_ns  # waiting for room is not fetching

        piece = read.piece
        key, version = self._place_of(piece)
        contents: Mapping[int, _Content]
        if piece.has_rows:
            rows = read_rows(self._request, piece.indices, self._bucket, reserve)
            contents, read.read_bytes, read.requests = rows.contents, rows.read_bytes, rows.requests
        else:
            data: bytes | bytearray | None = None
            if self._shards is not None and piece.span is not None and read.by_blocks:
                blocks = self._shards.read(self._bucket, key, version, piece.span, reserve)
                data, read.read_bytes, read.requests = blocks
            if data is None:
                data = read_object(
                    self._bucket,
                    key,
                    version,
                    limit_bytes=self._request.limits.object_bytes,
                    reserve=reserve,
                    begun=read.pending,
                    span=piece.span,
                )
                read.read_bytes += len(data)
                read.requests += 1
            contents = {piece.indices[0]: data} if piece.span is None else self._cut(data, piece, piece.span)
        read.fetch_us = (time.perf_counter_ns() - read.begun_ns) // 1000
        return contents

    def _cut(self, data: bytes | bytearray, piece: Piece, span: Span) -> dict[int, _Content]:
        contents, view = dict[int, _Content](), memoryview(data)
        for index in piece.indices:
            begin = self._request.member_offsets[index]
            end = begin + self._request.member_lengths[index]
            contents[index] = view[begin - span.begin : end - span.begin]
            if span.begin + len(view) < end:
                contents[index] = SampleFailedError(
                    Outcome.CHANGED,
                    f"the object ends at {span.begin + len(view)}, but this member is at {begin} to {end}: "
                    "the object was truncated, or the key list is for another object. List its members again",
                )
        return contents
