"""Restoring of records: from packs of the store into the cache. Nothing is fetched or decoded.

Threads read a request's records in pieces, each from one pack and by rising offsets: a disk reads ahead, and
S3 gets one request for neighbours. Each record's header, id and hash are checked before it is pushed. A
sample without a good record at its place has to be decoded again. A store that does not answer is not tried
again in this invocation. At most ``fetch_bytes`` of records, or one piece, wait to be handed to the pusher.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.push import ByteBudget, Pusher
from superdl.lambda_prefetch.results import ResultColumns
from superdl.lambda_prefetch.store import own_store, trouble_in_words
from superdl.super_wire.cache import MAX_BULK_BYTES
from superdl.super_wire.errors import RecordError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.request import Outcome
from superdl.super_wire.store import check_record, is_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.request import PrefetchRequest
    from superdl.super_wire.store import Store

__all__ = ["restore"]

_PIECE_BYTES = 16 * 2**20
_DIRECTORY_THREADS = 2  # a disk reads ahead; a shared filesystem answers in 1 ms
_S3_THREADS = 16


@dataclass(slots=True)
class _Piece:
    """Samples of one pack, by rising offsets, that are read in one go."""

    pack: str
    indices: list[int] = field(default_factory=list)
    size_bytes: int = 0


def restore(request: PrefetchRequest, settings: FunctionSettings, *, expires_at: float) -> ResultColumns:
    """Read the records at a request's places and push them; return the outcome of each sample.

    ``expires_at`` is Unix time in seconds: no piece is begun after it.
    """
    columns = ResultColumns(request)
    try:
        store = own_store(request.store, settings, writing=False)
    except Exception as error:  # noqa: BLE001  # in the result: the coordinator decodes meanwhile
        columns.store_trouble = trouble_in_words(error)
        for index in range(len(request.ids)):
            columns.fail(index, Outcome.STORE_ERROR, columns.store_trouble)
        return columns
    # Invocations of one process may share the store and its count of requests.
    pieces, requests_before = list(_pieces(request)), store.requests
    threads = min(len(pieces), _S3_THREADS if is_bucket(request.store) else _DIRECTORY_THREADS)
    with Pusher(request.cache, settings) as pusher, ThreadPoolExecutor(threads, "super-restore") as pool:
        reader = _Reader(request, store, settings, pusher, columns, expires_at)
        columns.store_bytes = sum(pool.map(reader.restore, pieces))
    columns.settle(pusher.results)
    columns.store_requests = store.requests - requests_before
    return columns


def _pieces(request: PrefetchRequest) -> Iterator[_Piece]:
    order = sorted(
        range(len(request.ids)), key=lambda index: (request.pack_of[index], request.offsets[index])
    )
    piece = _Piece("")
    for index in order:
        pack, length = request.packs[request.pack_of[index]], request.lengths[index]
        if pack != piece.pack or piece.size_bytes + length > _PIECE_BYTES:
            if piece.indices:
                yield piece
            piece = _Piece(pack)
        piece.indices.append(index)
        piece.size_bytes += length
    yield piece


class _Reader:
    """A reader of pieces, in several threads, that hands their records to the pusher."""

    def __init__(
        self,
        request: PrefetchRequest,
        store: Store,
        settings: FunctionSettings,
        pusher: Pusher,
        columns: ResultColumns,
        expires_at: float,
    ) -> None:
        self._request = request
        self._store = store
        self._pusher = pusher
        self._columns = columns
        self._expires_at = expires_at
        self._budget = ByteBudget(settings.fetch_bytes)
        self._trouble = ""

    def restore(self, piece: _Piece) -> int:
        """Restore the samples of a piece; return the number of bytes read."""
        indices = [index for index in piece.indices if self._is_place(index)]
        size_bytes = sum(self._request.lengths[index] for index in indices)
        if not indices or not self._may_begin(indices):
            return 0
        self._budget.acquire(size_bytes)
        try:
            return self._read(piece.pack, indices)
        finally:
            self._budget.release(size_bytes)

    def _is_place(self, index: int) -> bool:
        """Check a sample's place: no more bytes are read than a record can have."""
        offset, length = self._request.offsets[index], self._request.lengths[index]
        good = HEADER_BYTES <= length <= MAX_BULK_BYTES and offset < 2**62
        if not good:
            self._fail([index], Outcome.NOT_STORED, f"no record has {length} bytes from {offset} on")
        return good

    def _may_begin(self, wanted: list[int]) -> bool:
        if self._trouble:
            self._fail(wanted, Outcome.STORE_ERROR, f"not tried, since the store failed: {self._trouble}")
        elif self._pusher.broken:
            why = f"not tried, since the cache takes nothing: {self._pusher.broken}"
            self._fail(wanted, Outcome.CACHE_ERROR, why)
        elif time.time() >= self._expires_at:
            self._fail(wanted, Outcome.EXPIRED, "the request expired before it was begun")
        else:
            return True
        return False

    def _read(self, pack: str, wanted: list[int]) -> int:
        begun_ns = time.perf_counter_ns()
        spans = [(self._request.offsets[index], self._request.lengths[index]) for index in wanted]
        try:
            records = self._store.read_many(pack, spans)
        except (StoreGoneError, StoreFormatError, StoreRefusedError) as error:
            # Without permission to list, S3 also refuses a missing pack.
            self._fail(wanted, Outcome.NOT_STORED, trouble_in_words(error))
            return 0
        except Exception as error:  # noqa: BLE001  # in the result; the coordinator decodes meanwhile
            self._trouble = self._columns.store_trouble = trouble_in_words(error)
            self._fail(wanted, Outcome.STORE_ERROR, self._trouble)
            return 0
        read_us = (time.perf_counter_ns() - begun_ns) // (1000 * len(wanted))
        for index, record in zip(wanted, records, strict=True):
            self._columns.fetch_us[index] = read_us
            self._push(index, pack, record)
        return sum(map(len, records))

    def _push(self, index: int, pack: str, record: bytes) -> None:
        sample_id = bytes.fromhex(self._request.ids[index])
        try:
            check_record(record, sample_id)
        except RecordError as error:
            why = f"pack {pack} has no good record of it at {self._request.offsets[index]}: {error}"
            self._fail([index], Outcome.NOT_STORED, why)
            return
        self._columns.outcomes[index] = Outcome.CACHED  # unless the cache refuses it
        header, payload = record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:]
        self._pusher.put(index, cache_key(sample_id), header, payload)

    def _fail(self, indices: list[int], outcome: Outcome, why: str) -> None:
        for index in indices:
            self._columns.fail(index, outcome, why)
