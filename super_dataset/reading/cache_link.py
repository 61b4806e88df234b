"""A reading thread's link to its cache, which queries all nodes at once."""

from __future__ import annotations

import logging
import os
import select
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_dataset.reading.receiver import Receiver
from superdl.super_wire.cache import (
    IO_TIMEOUT_S,
    MAX_ROUNDS,
    CacheAddress,
    Credentials,
    encode_command,
    is_for_memory,
    key_slot,
    parse_redirection,
)
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from superdl.super_wire.keys import cache_keys, report_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from superdl.super_dataset.reading.batch import Batch
    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.cache import CacheConnection, Node, NodeConnections, SlotMap

_LOG = logging.getLogger("superdl.super_dataset")

# Limit on the wait for a connection that is only needed for a report or a note.
REPORT_TIMEOUT_S = 1.0
_SHUN_S = 30.0  # no such connection is tried again within this time after it failed,
_SHUN_NODE_S = 3.0  # or within this time, to a node beside others that are connected
_MOST_OWED = 32


class CacheLink:
    """Connections to one node, or to all nodes of a cluster, and the expected size of records.

    It makes one attempt per request. Samples lost with a node are left to the next attempt, which begins with
    a new slot map. ``open_nodes`` is :class:`NodeConnections`, except in tests.
    """

    def __init__(
        self,
        record_bytes: int | None,
        open_nodes: Callable[[CacheAddress, Credentials], NodeConnections],
    ) -> None:
        self.pid = os.getpid()
        self.record_bytes = record_bytes  # expected length, if known
        self.uniform = True  # the last batch had one size
        self.warned_astray = False  # a reply for another sample has been logged
        self._open_nodes = open_nodes
        self._nodes: NodeConnections | None = None
        self._cache = ""
        self._shunned_until_s: dict[Node | None, float] = {}

    def connect(self, cache: str, timeout_s: float) -> NodeConnections:
        """Return the nodes of the cache at this address, which is a single node or any node of a cluster.

        Raises ``CacheUnreachableError`` if there is no answer in time, ``CacheError`` if the cache refuses,
        and ``ConfigError`` if TLS files are invalid.
        """
        if self._cache != cache:
            self.drop()
        if self._nodes is None:
            nodes = self._open_nodes(CacheAddress.parse(cache), Credentials.from_environment(os.environ))
            nodes.connect(timeout_s)
            self._nodes, self._cache = nodes, cache
        return self._nodes

    def drop(self) -> None:
        """Close all connections."""
        nodes, self._nodes = self._nodes, None
        if nodes is not None:
            nodes.close()

    def learn(self, buffer: BatchBuffer) -> None:
        """Remember the size of records for the next batch, and whether they are uniform."""
        sizes = buffer.record_bytes[buffer.replies == int(ReplyKind.RECORD)]
        if len(sizes):
            first = int(sizes[0])
            alike = bool((sizes == first).all())
            self.record_bytes = first if alike else int(np.median(sizes))
            self.uniform = alike or len(buffer.own) <= len(sizes) // 2

    def request(self, batch: Batch) -> None:
        """Request all missing samples. Set ``trouble`` to the error that kept some from arriving."""
        replies, offsets = batch.buffer.replies, batch.missing
        replies[offsets] = ReplyKind.NONE
        # An idle connection may be dead, because the cache closed it or was restarted: then another
        # attempt follows at once.
        was_open = self._nodes is not None and bool(self._nodes.opened)
        batch.trouble = self.gather(batch, offsets)
        if batch.trouble is not None and was_open and batch.clock() < batch.deadline_s:
            offsets = [offset for offset in offsets if replies[offset] == ReplyKind.NONE]
            if offsets:  # else the connection failed after all replies had arrived
                batch.trouble = self.gather(batch, offsets)

    def gather(self, batch: Batch, offsets: Sequence[int]) -> CacheUnreachableError | None:
        """Request samples (ascending) once. Return the error that kept some of them from arriving."""
        left_s = batch.deadline_s - batch.clock()
        try:
            nodes = self.connect(batch.ref.cache, left_s)
            if nodes.stale:  # also after a node failed
                nodes.renew()
                nodes.refresh(left_s)
            return _gather(nodes, batch, offsets, left_s)
        except CacheUnreachableError as error:
            self.drop()
            return error
        except BaseException:  # also on Ctrl-C: replies in flight will never be read
            self.drop()
            raise

    def report(self, batch: Batch, timeout_s: float, *, done: bool) -> None:
        """Send a read report without waiting for the reply. Losing it is harmless."""
        node = None
        connected = self._nodes is not None and bool(self._nodes.opened)
        if not connected and not batch.astray:
            # Unless all samples came from packs, gather() has just failed to connect.
            if batch.straight < batch.buffer.size:
                return
            timeout_s = min(timeout_s, REPORT_TIMEOUT_S)
        try:
            if not connected and self._is_shunned(None, batch):
                return
            nodes = self.connect(batch.ref.cache, timeout_s)
            if nodes.slots is None:
                node = nodes.home
            else:
                node = nodes.node_of(report_stream(batch.ref.job)) or nodes.home
            if node not in nodes.opened and self._is_shunned(node, batch):
                return
            connection = nodes.opened.get(node) or nodes.connection(node)
            # Limits the number of unread replies.
            if connection.owed >= _MOST_OWED:
                connection.converse()
                _check_late(nodes, connection, batch)
            connection.owed += 1  # first: its reply must not be taken for a sample's
            connection.send(encode_command(*batch.report(done=done).command(batch.ref.job)))
        except CacheError as error:
            self._shunned_until_s[node] = batch.clock() + (_SHUN_S if node is None else _SHUN_NODE_S)
            if node is None or self._nodes is None:
                self.drop()
            else:  # the other nodes are not affected
                self._nodes.drop(node)
                self._nodes.stale = True
            _LOG.debug("a read report was lost: %s", error)
        except BaseException:
            self.drop()
            raise

    def _is_shunned(self, node: Node | None, batch: Batch) -> bool:
        return batch.clock() < self._shunned_until_s.get(node, -np.inf)


def _gather(
    nodes: NodeConnections, batch: Batch, offsets: Sequence[int], left_s: float
) -> CacheUnreachableError | None:
    batch.out_of_memory = False
    groups: Mapping[Node, Sequence[int]] = {nodes.home: offsets}
    if nodes.slots is not None:
        groups = _by_node(nodes, nodes.slots, cache_keys(batch.ref.sample_ids), offsets)
    asking: set[int] = set()
    trouble = None
    # Each round follows the redirections of the one before.
    for _ in range(MAX_ROUNDS):
        trouble = _request(nodes, batch, groups, asking, left_s) or trouble
        if not batch.buffer.errors or nodes.slots is None:
            return trouble
        groups, asking = _redirected(nodes, batch.buffer, groups)
        if not groups:
            return trouble
    count = sum(map(len, groups.values()))
    return CacheUnreachableError(
        f"the cluster at {nodes.address} redirected this reader {MAX_ROUNDS} times for {count} samples: "
        "its slots are being moved"
    )


def _by_node(
    nodes: NodeConnections, slots: SlotMap, keys: Sequence[bytes], offsets: Sequence[int]
) -> Mapping[Node, Sequence[int]]:
    by_owner = [*slots.nodes, nodes.home]
    owners = slots.owners
    groups: dict[Node, list[int]] = {}
    for offset in offsets:
        # A slot without a known owner has owner -1, the last entry.
        groups.setdefault(by_owner[owners[key_slot(keys[offset])]], []).append(offset)
    return groups


def _request(
    nodes: NodeConnections,
    batch: Batch,
    groups: Mapping[Node, Sequence[int]],
    asking: set[int],
    left_s: float,
) -> CacheUnreachableError | None:
    total = sum(map(len, groups.values()))
    receivers: dict[Node, Receiver] = {}
    failed: dict[Node, CacheUnreachableError] = {}
    # Query connected nodes before waiting for any other.
    for node in sorted(groups, key=nodes.opened.__contains__, reverse=True):
        offsets = groups[node]
        try:
            left_s = min(left_s, batch.deadline_s - batch.clock())
            connection = nodes.opened.get(node) or nodes.connection(node, left_s)
            connection.limit_wait(left_s)
            share = len(offsets) / total
            receiver = Receiver(connection, batch, offsets, part=share, asking=asking.intersection(offsets))
            receiver.ask()
            receivers[node] = receiver
        except CacheUnreachableError as error:
            failed[node] = error
    try:
        failed |= _receive(receivers, batch)
    finally:
        for receiver in receivers.values():
            receiver.settle()
    for node in failed:
        nodes.drop(node)
    for node, receiver in receivers.items():
        if receiver.connection.late_errors and node not in failed:
            _check_late(nodes, receiver.connection, batch)
    nodes.stale = nodes.stale or bool(failed)
    return next(reversed(failed.values())) if failed else None


def _receive(receivers: Mapping[Node, Receiver], batch: Batch) -> dict[Node, CacheUnreachableError]:
    """Receive from several nodes at once. Return the errors of those that failed."""
    failed: dict[Node, CacheUnreachableError] = {}
    active = dict(receivers)
    # One blocking receive is cheaper than a poll plus a receive.
    poll = select.poll() if len(active) > 1 else None
    if poll is not None:
        for receiver in active.values():
            poll.register(receiver.connection, select.POLLIN)
    while active:
        ready = list(active) if poll is None else _ready(active, poll, batch)
        for node in ready:
            receiver = active[node]
            try:
                receiver.receive(once=poll is not None)
                if not receiver.finished:
                    continue
            except CacheUnreachableError as error:
                failed[node] = error
            del active[node]
            if poll is not None:
                poll.unregister(receiver.connection)
        if active and (not ready or batch.clock() > batch.deadline_s):
            for node, receiver in active.items():
                text = f"the cache at {receiver.connection.address} is sending too slowly"
                failed[node] = CacheUnreachableError(text)
            break
    return failed


def _ready(active: Mapping[Node, Receiver], poll: select.poll, batch: Batch) -> list[Node]:
    # The socket would not signal bytes in the connection's own buffer.
    pending = [node for node, receiver in active.items() if receiver.connection.pending]
    if pending:
        return pending
    by_descriptor = {receiver.connection.fileno(): node for node, receiver in active.items()}
    left_s = min(max(batch.deadline_s - batch.clock(), 0.0), IO_TIMEOUT_S)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(left_s * 1000)]


def _redirected(
    nodes: NodeConnections, buffer: BatchBuffer, groups: Mapping[Node, Sequence[int]]
) -> tuple[Mapping[Node, Sequence[int]], set[int]]:
    """Return redirected samples by their new node, and those that need an ``ASK``."""
    redirected: dict[Node, list[int]] = {}
    asking: set[int] = set()
    for node, offsets in groups.items():
        for offset in offsets:
            text = buffer.errors.get(offset, "")
            redirection = parse_redirection(text, node)
            nodes.stale = nodes.stale or text.startswith(("MOVED", "CLUSTERDOWN"))
            if redirection is None:
                continue
            del buffer.errors[offset]
            buffer.replies[offset] = ReplyKind.NONE
            redirected.setdefault(redirection.node, []).append(offset)
            if redirection.kind == "ASK":
                asking.add(offset)
    return {node: sorted(offsets) for node, offsets in redirected.items()}, asking


def _check_late(nodes: NodeConnections, connection: CacheConnection, batch: Batch) -> None:
    # Errors of earlier reports may show that slots have moved, or that memory is full.
    late_errors = connection.late_errors
    moved = nodes.slots is not None and any(text.startswith("MOVED") for text in late_errors)
    nodes.stale = nodes.stale or moved
    batch.out_of_memory = batch.out_of_memory or any(map(is_for_memory, late_errors))
    late_errors.clear()
