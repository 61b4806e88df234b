"""The gather: sends pipelined GETs and receives records straight into the batch buffer, within a bound.

It makes one attempt for each sample, at one node or at several at once.
"""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_dataset.reading.scatter import ReplyScatter
from superdl.super_wire.cache import CRLF, IO_TIMEOUT_S, encode_command
from superdl.super_wire.errors import CacheUnreachableError
from superdl.super_wire.keys import cache_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.cache import CacheConnection

__all__ = ["Share", "Wanted", "encode_gets", "gather", "gather_all"]

_ASKING = encode_command(b"ASKING")  # precedes a GET after a cluster node has replied ``ASK``
_UNKNOWN_RECORD_BYTES = 2**20
_MAX_REQUESTS_UNDER_WAY = 1024


def encode_gets(sample_ids: bytes) -> list[bytes]:
    """Encode a GET for each of the concatenated sample ids."""
    keys = cache_keys(sample_ids)
    if not keys:
        return []
    head = b"*2\r\n$3\r\nGET\r\n$%d\r\n" % len(keys[0])
    return [head + key + CRLF for key in keys]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A batch's request to the cache, and its bounds."""

    requests: Sequence[bytes]  # an encoded GET for each sample of the batch
    sample_ids: bytes  # of these samples, concatenated
    buffer: BatchBuffer  # receives the replies, also those before an error
    in_flight_bytes: int  # bound on replies requested but not received; each node may have at least one
    record_bytes: int | None  # the expected length of a record, if known
    deadline_s: float  # when to give up, on ``clock``
    clock: Callable[[], float]  # monotonic seconds

    def allowed_under_way(self) -> int:
        """Return how many requests the bound allows, from the known length of records."""
        record_bytes = self.buffer.item_bytes if self.buffer.item_bytes > 0 else self.record_bytes
        return max(
            1, min(self.in_flight_bytes // (record_bytes or _UNKNOWN_RECORD_BYTES), _MAX_REQUESTS_UNDER_WAY)
        )


class Share:
    """One node's share: the samples at ``offsets`` (ascending) of the batch ``wanted``.

    If a method raises, the connection is no longer usable. ``part``: this node's part of the requests allowed
    under way. ``asking``: samples to request with an ``ASKING``.
    """

    def __init__(
        self,
        connection: CacheConnection,
        wanted: Wanted,
        offsets: Sequence[int],
        *,
        part: float = 1.0,
        asking: Collection[int] = (),
    ) -> None:
        self.connection = connection
        self.offsets = offsets
        self._wanted = wanted
        self._part = part
        self._asking = asking
        self._scatter = ReplyScatter(wanted.buffer, offsets, skip=connection.owed, asking=asking)
        self._sent = 0

    @property
    def finished(self) -> bool:
        """Return whether everything has been answered."""
        return self._scatter.finished

    def ask(self) -> None:
        """Send more requests once half of the allowed ones are answered, so that sends are few."""
        sent, offsets = self._sent, self.offsets
        if sent == len(offsets):
            return
        allowed = max(1, int(self._wanted.allowed_under_way() * self._part))
        under_way = sent - self._scatter.answered
        if 2 * under_way > allowed:
            return
        requests, asking = self._wanted.requests, self._asking
        upcoming = offsets[sent : sent + allowed - under_way]
        if asking:
            parts = [(_ASKING if offset in asking else b"") + requests[offset] for offset in upcoming]
        else:
            parts = [requests[offset] for offset in upcoming]
        self.connection.send(b"".join(parts))
        self._sent += len(upcoming)
        self._scatter.asked(len(upcoming))

    def begin(self) -> None:
        """Send requests, and take bytes already received."""
        self.ask()
        # The socket would not signal bytes in the connection's own buffer.
        if self.connection.pending:
            self.receive_what_came()

    def receive(self) -> None:
        """Wait for bytes and put them where they belong."""
        scatter = self._scatter
        scatter.received(self.connection.receive(scatter.buffers()))

    def receive_what_came(self) -> None:
        """Put all bytes that have come where they belong, waiting only for the first."""
        scatter, connection = self._scatter, self.connection
        scatter.received(connection.receive_some(scatter.buffers()))
        while connection.pending and not scatter.finished:
            scatter.received(connection.receive_some(scatter.buffers()))

    def settle(self) -> None:
        """Record what has come; called once, whatever happened."""
        self._scatter.settle()
        if self._scatter.finished:
            self.connection.owed = 0
        self.connection.late_errors += self._scatter.skipped_errors


def gather(share: Share, wanted: Wanted) -> None:
    """Request a share from one node and receive every reply.

    Raises:
        CacheUnreachableError: the connection was lost, replies were invalid, or the deadline passed.
    """
    try:
        while not share.finished:
            share.ask()
            share.receive()
            if wanted.clock() > wanted.deadline_s and not share.finished:
                raise _too_slow(share)
    finally:
        share.settle()


def gather_all(shares: Sequence[Share], wanted: Wanted) -> list[tuple[Share, CacheUnreachableError]]:
    """Receive shares from several nodes at once; return failed ones with reasons."""
    failed: list[tuple[Share, CacheUnreachableError]] = []
    active: dict[int, Share] = {}
    poll = select.poll()

    def step(share: Share, work: Callable[[], None]) -> None:
        try:
            work()
            if not share.finished:
                share.ask()
                return
        except CacheUnreachableError as error:
            failed.append((share, error))
        poll.unregister(share.connection)
        del active[share.connection.fileno()]

    try:
        for share in shares:
            poll.register(share.connection, select.POLLIN)
            active[share.connection.fileno()] = share
        for share in shares:
            step(share, share.begin)
        while active:
            left_s = min(max(wanted.deadline_s - wanted.clock(), 0.0), IO_TIMEOUT_S)
            ready = poll.poll(left_s * 1000)
            for descriptor, _ in ready:
                share = active[descriptor]
                step(share, share.receive_what_came)
            if not ready or wanted.clock() > wanted.deadline_s:
                failed += [(share, _too_slow(share)) for share in active.values()]
                break
    finally:
        for share in shares:
            share.settle()
    return failed


def _too_slow(share: Share) -> CacheUnreachableError:
    return CacheUnreachableError(f"the cache at {share.connection.address} sends too slowly")
