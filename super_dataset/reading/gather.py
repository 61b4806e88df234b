"""The gather: pipelined GETs out, records straight into the batch buffer, a bounded amount of data under way.

It asks once for each sample it is given, at one node or at several at once.
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

_ASKING = encode_command(b"ASKING")  # goes before a GET where a node of a cluster has answered ``ASK``
_UNKNOWN_RECORD_BYTES = 2**20
_MAX_REQUESTS_UNDER_WAY = 1024


def encode_gets(sample_ids: bytes) -> list[bytes]:
    """A GET for each of the concatenated sample ids."""
    keys = cache_keys(sample_ids)
    if not keys:
        return []
    head = b"*2\r\n$3\r\nGET\r\n$%d\r\n" % len(keys[0])
    return [head + key + CRLF for key in keys]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a batch wants of the cache, and within which bounds."""

    requests: Sequence[bytes]  # an encoded GET for each sample of the batch
    sample_ids: bytes  # theirs, concatenated
    buffer: BatchBuffer  # what comes is noted in it, also what came before an error
    in_flight_bytes: int  # bound on the replies asked for and not received; each node has at least one
    record_bytes: int | None  # the expected length of a record, if one is known
    deadline_s: float  # when, by ``clock``, to give up
    clock: Callable[[], float]  # monotonic seconds

    def allowed_under_way(self) -> int:
        """How many requests the bound allows, by what is known of the records' length so far."""
        record_bytes = self.buffer.item_bytes if self.buffer.item_bytes > 0 else self.record_bytes
        return max(
            1, min(self.in_flight_bytes // (record_bytes or _UNKNOWN_RECORD_BYTES), _MAX_REQUESTS_UNDER_WAY)
        )


class Share:
    """What one node is asked for: the samples at ``offsets``, ascending, of the batch that is ``wanted``.

    If a method raises, the connection is of no use any more. ``part``: of all that is allowed under way, what
    this node may have. ``asking``: which of the samples are asked for by an ``ASK``.
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
        """Whether all has been answered."""
        return self._scatter.finished

    def ask(self) -> None:
        """Send more requests once half of what is allowed has come: few sends, and no cache runs dry."""
        sent, offsets = self._sent, self.offsets
        if sent == len(offsets):
            return
        allowed = max(1, int(self._wanted.allowed_under_way() * self._part))
        under_way = sent - self._scatter.answered
        if 2 * under_way > allowed:
            return
        requests, asking = self._wanted.requests, self._asking
        more = offsets[sent : sent + allowed - under_way]
        if asking:
            parts = [(_ASKING if offset in asking else b"") + requests[offset] for offset in more]
        else:
            parts = [requests[offset] for offset in more]
        self.connection.send(b"".join(parts))
        self._sent += len(more)
        self._scatter.asked(len(more))

    def begin(self) -> None:
        """Ask, and take what may be here already: the socket would not tell of it."""
        self.ask()
        if self.connection.pending:
            self.receive_what_came()

    def receive(self) -> None:
        """Wait for bytes and put them where they belong."""
        scatter = self._scatter
        scatter.received(self.connection.receive(scatter.buffers()))

    def receive_what_came(self) -> None:
        """The same for all that has come, without waiting for more than the first bytes."""
        scatter, connection = self._scatter, self.connection
        scatter.received(connection.receive_some(scatter.buffers()))
        while connection.pending and not scatter.finished:
            scatter.received(connection.receive_some(scatter.buffers()))

    def settle(self) -> None:
        """Note what has come; called once, whatever happened."""
        self._scatter.settle()
        if self._scatter.finished:
            self.connection.owed = 0
        self.connection.late_errors += self._scatter.skipped_errors


def gather(share: Share, wanted: Wanted) -> None:
    """Ask one node for its share and receive every reply.

    Raises:
        CacheUnreachableError: the connection was lost, made no sense, or the deadline came.
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
    """Ask several nodes at once and receive from each as it sends; those that failed, and why."""
    failed: list[tuple[Share, CacheUnreachableError]] = []
    going: dict[int, Share] = {}
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
        del going[share.connection.fileno()]

    try:
        for share in shares:
            poll.register(share.connection, select.POLLIN)
            going[share.connection.fileno()] = share
        for share in shares:
            step(share, share.begin)
        while going:
            left_s = min(max(wanted.deadline_s - wanted.clock(), 0.0), IO_TIMEOUT_S)
            ready = poll.poll(left_s * 1000)
            for descriptor, _ in ready:
                share = going[descriptor]
                step(share, share.receive_what_came)
            if not ready or wanted.clock() > wanted.deadline_s:
                failed += [(share, _too_slow(share)) for share in going.values()]
                break
    finally:
        for share in shares:
            share.settle()
    return failed


def _too_slow(share: Share) -> CacheUnreachableError:
    return CacheUnreachableError(f"the cache at {share.connection.address} sends too slowly")
