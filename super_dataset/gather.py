"""The gather: pipelined GETs out, records straight into the batch buffer, a bounded amount of data under way.

It asks once for each sample it is given and reports nothing but what came; asking again, and when to stop, is
:mod:`super_dataset.reader`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from super_dataset.scatter import ReplyScatter
from super_wire.errors import CacheUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from super_dataset.buffer import BatchBuffer
    from super_dataset.connection import CacheConnection

__all__ = ["gather"]

_UNKNOWN_RECORD_BYTES = 2**20
_MAX_REQUESTS_UNDER_WAY = 1024


def gather(
    connection: CacheConnection,
    requests: Sequence[bytes],
    offsets: Sequence[int],
    buffer: BatchBuffer,
    *,
    in_flight_bytes: int,
    record_bytes: int | None,
    deadline_s: float,
    clock: Callable[[], float],
) -> None:
    """Ask for the samples at ``offsets`` of the batch and receive every reply into ``buffer``.

    Args:
        connection: used by nobody else meanwhile. If this function raises, it is of no use any more.
        requests: an encoded GET for each sample of the batch.
        offsets: which of them to send, ascending.
        buffer: what came before this function raised is noted in it.
        in_flight_bytes: bound on the replies asked for and not received yet; one is always under way.
        record_bytes: the expected length of a record, if one is known.
        deadline_s: when, by ``clock``, to give up.
        clock: monotonic seconds.

    Raises:
        CacheUnreachableError: the connection was lost, made no sense, or the deadline came.
    """
    scatter = ReplyScatter(buffer, offsets, skip=connection.owed)
    sent = 0
    try:
        while not scatter.finished:
            allowed = _allowed_under_way(buffer, in_flight_bytes, record_bytes)
            under_way = sent - scatter.answered
            # Ask for more when half of what is allowed has come: few sends, and the cache never runs dry.
            if sent < len(offsets) and 2 * under_way <= allowed:
                more = offsets[sent : sent + allowed - under_way]
                connection.send(b"".join([requests[offset] for offset in more]))
                sent += len(more)
                scatter.asked(len(more))
            scatter.received(connection.receive(scatter.buffers()))
            if clock() > deadline_s and not scatter.finished:
                msg = f"the cache at {connection.address} sends too slowly"
                raise CacheUnreachableError(msg)
    finally:
        scatter.settle()
    connection.owed = 0


def _allowed_under_way(buffer: BatchBuffer, in_flight_bytes: int, record_bytes: int | None) -> int:
    if buffer.item_bytes > 0:
        record_bytes = buffer.item_bytes
    return max(1, min(in_flight_bytes // (record_bytes or _UNKNOWN_RECORD_BYTES), _MAX_REQUESTS_UNDER_WAY))
