"""Saving of records: from the cache into a pack of the store. Nothing is fetched or decoded.

The counterpart of :mod:`superdl.lambda_prefetch.restoring`, for records of functions that do not see the
store. Records are read a few at a time, long ones in slices, so that memory stays bounded. Each record's
header, id and hash are checked. Records that the cache no longer has intact are reported and left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.caches import keep_cache, take_cache
from superdl.lambda_prefetch.results import ResultColumns
from superdl.lambda_prefetch.store import PackSaver
from superdl.super_wire.cache import Command, ErrorReply, exchange
from superdl.super_wire.errors import CacheError, RecordError
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, parse_header
from superdl.super_wire.request import Outcome
from superdl.super_wire.store import check_record

if TYPE_CHECKING:
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import NodeConnections
    from superdl.super_wire.request import PrefetchRequest
    from superdl.super_wire.store import PackMeta

__all__ = ["save"]

_SLICE_BYTES = 8 * 2**20  # half of a connection's limit for one reply
_PIECE_BYTES = 4 * 2**20
_FIRST_RECORDS, _MOST_RECORDS = 4, 64
_TIMEOUT_S = 15.0


def save(
    request: PrefetchRequest, settings: FunctionSettings, meta: PackMeta | None, *, expires_at: float
) -> ResultColumns:
    """Write a pack of a request's cached records; return the outcome of each sample.

    ``meta`` is what they have in common; ``None`` if this function must write nothing. ``expires_at`` is Unix
    time in seconds: no record is read after it.
    """
    columns = ResultColumns(request)
    if meta is None:
        columns.store_trouble = f"{request.store}: this function writes no packs (SUPER_STORE_READ_ONLY)"
        return columns
    nodes = take_cache(request.cache, settings)
    # No pace: a slow disk may take its time, since no reader waits for a save.
    with PackSaver(request, meta, settings, columns, expires_at=expires_at, pace=None) as saver:
        at, count = 0, _FIRST_RECORDS
        while at < len(request.ids) and not columns.store_trouble and time.time() < expires_at:
            indices = range(at, min(at + count, len(request.ids)))
            longest = _save_some(indices, request, nodes, columns, saver)
            # As many as fill a piece if all are as long as the longest so far.
            at, count = indices.stop, max(1, min(_MOST_RECORDS, _PIECE_BYTES // max(longest, 1)))
    if nodes.all_broken:
        nodes.close()
    else:
        keep_cache(request.cache, nodes)
    return columns


def _save_some(
    indices: range,
    request: PrefetchRequest,
    nodes: NodeConnections,
    columns: ResultColumns,
    saver: PackSaver,
) -> int:
    """Read some records and write the good ones; return the length of the longest."""
    ids = [bytes.fromhex(request.ids[index]) for index in indices]
    begun_ns, longest = time.perf_counter_ns(), 0
    answers = exchange(nodes, [_slice(sample_id, 0) for sample_id in ids], timeout_s=_TIMEOUT_S)
    for index, sample_id, answer in zip(indices, ids, answers, strict=True):
        try:
            record = _whole(answer, sample_id, nodes)
            check_record(record, sample_id)
        except CacheError as error:
            columns.fail(index, Outcome.CACHE_ERROR, f"the cache did not tell it: {error}")
        except RecordError as error:
            columns.fail(index, Outcome.NOT_CACHED, f"the cache has no good record of it: {error}")
        else:
            longest = max(longest, len(record))
            columns.outcomes[index], columns.record_bytes[index] = Outcome.CACHED, len(record)
            saver.add(index, record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:])
    columns.push_us[indices.start] = (time.perf_counter_ns() - begun_ns) // 1000
    return longest


def _slice(sample_id: bytes, start: int) -> Command:
    """Return the command for a slice of a record; the reply is empty without one."""
    key = cache_key(sample_id)
    return Command.of(key, b"GETRANGE", key, b"%d" % start, b"%d" % (start + _SLICE_BYTES - 1))


def _whole(answer: object, sample_id: bytes, nodes: NodeConnections) -> bytes:
    """Return a record as long as its header declares, or as much as is cached; ``answer`` is its first slice.

    Raises:
        CacheError: the cache did not answer, or refused.
        RecordError: it is not a record of that sample.
    """
    record = _bytes(answer)
    parts, size = [record], len(record)
    total_bytes = HEADER_BYTES + parse_header(record, sample_id=sample_id).payload_bytes
    while len(parts[-1]) == _SLICE_BYTES and size < total_bytes:
        (answer,) = exchange(nodes, [_slice(sample_id, size)], timeout_s=_TIMEOUT_S)
        parts.append(_bytes(answer))
        size += len(parts[-1])
    return b"".join(parts)


def _bytes(answer: object) -> bytes:
    if isinstance(answer, CacheError):
        raise answer
    if isinstance(answer, ErrorReply) and not answer.text.startswith("WRONGTYPE"):
        raise CacheError(answer.text)
    return answer if isinstance(answer, bytes) else b""
