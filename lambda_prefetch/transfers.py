"""Transfer records between the store and the cache (*restore* and *save*), checking each record."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.push import ByteBudget, Pusher, cache_connections
from superdl.lambda_prefetch.store import PackSaver, error_text, request_store
from superdl.super_wire.cache import MAX_BULK_BYTES, Command, ErrorReply, exchange
from superdl.super_wire.errors import (
    CacheError,
    RecordError,
    StoreFormatError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, parse_header
from superdl.super_wire.request import Outcome
from superdl.super_wire.store import check_record, is_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.lambda_prefetch.invocation import Invocation
    from superdl.super_wire.cache import NodeConnections
    from superdl.super_wire.request import PrefetchRequest
    from superdl.super_wire.store import PackMeta, Store

_RESTORED_BYTES = 16 * 2**20  # limit for each read
_DIRECTORY_THREADS = 2  # a disk reads ahead; a shared filesystem answers in 1 ms
_S3_THREADS = 16

_SLICE_BYTES = 8 * 2**20  # half of a connection's limit for a reply
_SAVED_BYTES = 4 * 2**20  # limit for records that are read together
_FIRST_RECORDS, _MOST_RECORDS = 4, 64
_TIMEOUT_S = 15.0


def restore(invocation: Invocation) -> None:
    """Read and push the records at a request's locations. Missing or invalid ones are ``not_stored``."""
    request, settings = invocation.request, invocation.settings
    try:
        store = request_store(invocation, writing=False)
    except Exception as error:  # noqa: BLE001  # reported; the coordinator decodes meanwhile
        invocation.store_trouble = error_text(error)
        invocation.fail_all(range(request.count), Outcome.STORE_ERROR, invocation.store_trouble)
        return
    # Invocations in a process may share the store and its request count.
    pieces, requests_before = list(_pieces(request)), store.requests
    threads = min(len(pieces), _S3_THREADS if is_bucket(request.store) else _DIRECTORY_THREADS)
    with Pusher(request.cache, settings) as pusher, ThreadPoolExecutor(threads, "super-restore") as pool:
        reader = _Reader(invocation, store, pusher)
        invocation.store_bytes = sum(pool.map(reader.restore, *zip(*pieces, strict=True)))
    invocation.settle(pusher.results)
    invocation.store_requests = store.requests - requests_before


def _pieces(request: PrefetchRequest) -> Iterator[tuple[str, list[int]]]:
    """Yield groups of samples to read together, each with its pack."""
    # Sorted by offset, a disk reads ahead and neighbours share a request to S3.
    order = sorted(range(request.count), key=lambda index: (request.pack_of[index], request.offsets[index]))
    piece: list[int] = []
    last, size_bytes = "", 0
    for index in order:
        pack, length = request.packs[request.pack_of[index]], request.lengths[index]
        if piece and (pack != last or size_bytes + length > _RESTORED_BYTES):
            yield last, piece
            piece, size_bytes = [], 0
        piece.append(index)
        last, size_bytes = pack, size_bytes + length
    yield last, piece


class _Reader:
    """A thread-safe reader that holds at most ``fetch_bytes``, or one larger piece, until they are pushed."""

    def __init__(self, invocation: Invocation, store: Store, pusher: Pusher) -> None:
        self._invocation, self._request = invocation, invocation.request
        self._store, self._pusher = store, pusher
        self._budget = ByteBudget(invocation.settings.fetch_bytes)
        self._store_error = ""

    def restore(self, pack: str, indices: list[int]) -> int:
        """Restore some samples of a pack. Return the number of bytes read."""
        indices = [index for index in indices if self._has_valid_location(index)]
        size_bytes = sum(self._request.lengths[index] for index in indices)
        if not indices or not self._can_begin(indices):
            return 0
        self._budget.acquire(size_bytes)
        try:
            return self._read(pack, indices)
        finally:
            self._budget.release(size_bytes)

    def _has_valid_location(self, index: int) -> bool:
        offset, length = self._request.offsets[index], self._request.lengths[index]
        is_valid = HEADER_BYTES <= length <= MAX_BULK_BYTES and offset < 2**62
        if not is_valid:
            self._invocation.fail(
                index, Outcome.NOT_STORED, f"a record cannot be {length} bytes long at offset {offset}"
            )
        return is_valid

    def _can_begin(self, indices: list[int]) -> bool:
        fail_all = self._invocation.fail_all
        if self._store_error:
            fail_all(indices, Outcome.STORE_ERROR, f"skipped because the store failed: {self._store_error}")
        elif self._pusher.broken:
            message = f"skipped because the cache accepts no records: {self._pusher.broken}"
            fail_all(indices, Outcome.CACHE_ERROR, message)
        elif self._invocation.expired():
            fail_all(indices, Outcome.EXPIRED, "the request expired before this sample was read")
        else:
            return True
        return False

    def _read(self, pack: str, indices: list[int]) -> int:
        began_ns = time.perf_counter_ns()
        spans = [(self._request.offsets[index], self._request.lengths[index]) for index in indices]
        try:
            records = self._store.read_many(pack, spans)
        except (StoreGoneError, StoreFormatError, StoreRefusedError) as error:
            # S3 refuses access to a missing pack, too, if listing is not permitted.
            self._invocation.fail_all(indices, Outcome.NOT_STORED, error_text(error))
            return 0
        except Exception as error:  # noqa: BLE001  # reported; the coordinator decodes meanwhile
            # Skip a store that does not respond for the rest of this invocation.
            self._store_error = self._invocation.store_trouble = error_text(error)
            self._invocation.fail_all(indices, Outcome.STORE_ERROR, self._store_error)
            return 0
        read_us = (time.perf_counter_ns() - began_ns) // (1000 * len(indices))
        for index, record in zip(indices, records, strict=True):
            self._invocation.fetch_us[index] = read_us
            self._push(index, pack, record)
        return sum(map(len, records))

    def _push(self, index: int, pack: str, record: bytes) -> None:
        sample_id = self._invocation.sample_id(index)
        try:
            check_record(record, sample_id)
        except RecordError as error:
            message = f"pack {pack} contains no valid record at {self._request.offsets[index]}: {error}"
            self._invocation.fail(index, Outcome.NOT_STORED, message)
            return
        self._invocation.outcomes[index] = Outcome.CACHED  # unless the cache refuses it
        header, payload = record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:]
        self._pusher.put(index, cache_key(sample_id), header, payload)


def save(invocation: Invocation, meta: PackMeta | None) -> None:
    """Write a request's cached records to a pack, or nothing if ``meta`` is ``None``."""
    request = invocation.request
    if meta is None:
        invocation.store_trouble = (
            f"{request.store}: this function does not write packs (SUPER_STORE_READ_ONLY)"
        )
        return
    with (
        cache_connections(request.cache, invocation.settings) as nodes,
        PackSaver(invocation, meta, pace=None) as saver,  # a slow disk delays no reader
    ):
        at, count = 0, _FIRST_RECORDS
        while at < request.count and not invocation.store_trouble and not invocation.expired():
            indices = range(at, min(at + count, request.count))
            longest = _save_some(indices, invocation, nodes, saver)
            # Assume that the next records are as long as the longest of these.
            at, count = indices.stop, max(1, min(_MOST_RECORDS, _SAVED_BYTES // max(longest, 1)))


def _save_some(indices: range, invocation: Invocation, nodes: NodeConnections, saver: PackSaver) -> int:
    """Read some records and write the valid ones. Return the length of the longest record."""
    ids = [invocation.sample_id(index) for index in indices]
    began_ns, longest = time.perf_counter_ns(), 0
    replies = exchange(nodes, [_slice(sample_id, 0) for sample_id in ids], timeout_s=_TIMEOUT_S)
    for index, sample_id, reply in zip(indices, ids, replies, strict=True):
        try:
            record = _complete(_bytes_of(reply), sample_id, nodes)
            check_record(record, sample_id)
        except CacheError as error:
            invocation.fail(index, Outcome.CACHE_ERROR, f"the cache did not return the record: {error}")
        except RecordError as error:
            invocation.fail(index, Outcome.NOT_CACHED, f"the cache contains no valid record: {error}")
        else:
            longest = max(longest, len(record))
            invocation.outcomes[index], invocation.record_bytes[index] = Outcome.CACHED, len(record)
            saver.add(index, record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:])
    invocation.push_us[indices.start] = (time.perf_counter_ns() - began_ns) // 1000
    return longest


def _slice(sample_id: bytes, start: int) -> Command:
    key = cache_key(sample_id)
    return Command.of(key, b"GETRANGE", key, b"%d" % start, b"%d" % (start + _SLICE_BYTES - 1))


def _complete(first: bytes, sample_id: bytes, nodes: NodeConnections) -> bytes:
    """Return a complete record, given its first slice. Reading in slices limits memory use."""
    parts, size = [first], len(first)
    total_bytes = HEADER_BYTES + parse_header(first, sample_id=sample_id).payload_bytes
    while len(parts[-1]) == _SLICE_BYTES and size < total_bytes:
        (reply,) = exchange(nodes, [_slice(sample_id, size)], timeout_s=_TIMEOUT_S)
        parts.append(_bytes_of(reply))
        size += len(parts[-1])
    return b"".join(parts)


def _bytes_of(reply: object) -> bytes:
    if isinstance(reply, CacheError):
        raise reply
    if isinstance(reply, ErrorReply) and not reply.text.startswith("WRONGTYPE"):
        raise CacheError(reply.text)
    return reply if isinstance(reply, bytes) else b""
