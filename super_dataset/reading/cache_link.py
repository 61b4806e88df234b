"""A reading thread's link to the cache. It queries all nodes concurrently."""

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

# Time limit for a connection that is only needed for a report or a note.
REPORT_TIMEOUT_S = 1.0
_SHUN_S = 30.0  # wait before retrying such a connection after it failed,
_SHUN_NODE_S = 3.0  # or before retrying a single node of a cluster
_MAX_OWED = 32


class CacheLink:
    """Connections to a single node or to all nodes of a cluster, and the expected record size.

    Each request is attempted once. If a node fails, the next attempt requests its samples again, using a new
    slot map. ``open_nodes`` is :class:`NodeConnections`, except in tests.
    """

    def __init__(
        self,
        record_bytes: int | None,
        open_nodes: Callable[[CacheAddress, Credentials], NodeConnections],
    ) -> None:
        self.pid = os.getpid()
        self.record_bytes = record_bytes  # expected length, if known
        self.uniform = True  # whether records of the last batch had one size
        self.warned_astray = False
        self._open_nodes = open_nodes
        self._nodes: NodeConnections | None = None
        self._cache = ""
        self._shunned_until_s: dict[Node | None, float] = {}

    def connect(self, cache: str, timeout_s: float) -> NodeConnections:
        """Connect to a cache at the address of a single node or any node of a cluster. Return its nodes.

        Raises ``CacheUnreachableError`` if the cache does not respond in time, ``CacheError`` if it rejects
        the connection, and ``ConfigError`` if TLS files are invalid.
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
        """Remember the size of the records, and whether it is uniform, for the next batch."""
        sizes = buffer.record_bytes[buffer.replies == int(ReplyKind.RECORD)]
        if len(sizes):
            first = int(sizes[0])
            alike = bool((sizes == first).all())
            self.record_bytes = first if alike else int(np.median(sizes))
            self.uniform = alike or len(buffer.own) <= len(sizes) // 2

    def request(self, batch: Batch) -> None:
        """Request all missing samples once. Set the batch's ``error`` if some could not be received."""
        batch.buffer.replies[batch.missing] = ReplyKind.NONE
        batch.error = None
        left_s = batch.deadline_s - batch.clock()
        try:
            nodes = self.connect(batch.ref.cache, left_s)
            if nodes.stale:  # after a move or the failure of a node
                nodes.renew()
                nodes.refresh(left_s)
            batch.error = _gather(nodes, batch, batch.missing, left_s)
        except CacheUnreachableError as error:
            self.drop()
            batch.error = error
        except BaseException:  # including Ctrl-C, since replies in flight will never be read
            self.drop()
            raise

    def report(self, batch: Batch, timeout_s: float, *, done: bool) -> None:
        """Send a read report without waiting for the reply. A lost report does no harm."""
        node = None
        connected = self._nodes is not None and bool(self._nodes.opened)
        if not connected and not batch.astray:
            # Unless all samples came from packs, request() has just failed to connect.
            if batch.straight < batch.buffer.size:
                return
            timeout_s = min(timeout_s, REPORT_TIMEOUT_S)
        try:
            if not connected and self._is_shunned(None, batch):
                return
            nodes = self.connect(batch.ref.cache, timeout_s)
            node = nodes.home
            if nodes.slots is not None:
                node = nodes.node_of(report_stream(batch.ref.job)) or node
            if node not in nodes.opened and self._is_shunned(node, batch):
                return
            connection = nodes.opened.get(node) or nodes.connection(node)
            if connection.owed >= _MAX_OWED:  # read the replies
                connection.converse()
                _check_late(nodes, connection, batch)
            connection.owed += 1  # before sending, or its reply could be taken for a sample
            connection.send(encode_command(*batch.report(done=done).command(batch.ref.job)))
        except CacheError as error:
            self._shunned_until_s[node] = batch.clock() + (_SHUN_S if node is None else _SHUN_NODE_S)
            if node is None or self._nodes is None:
                self.drop()
            else:  # other nodes are not affected
                self._nodes.drop(node)
                self._nodes.stale = True
            _LOG.debug("lost a read report: %s", error)
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
    error = None
    # Each round follows the previous round's redirections.
    for _ in range(MAX_ROUNDS):
        error = _request(nodes, batch, groups, asking, left_s) or error
        if not batch.buffer.errors or nodes.slots is None:
            return error
        groups, asking = _redirected(nodes, batch.buffer, groups)
        if not groups:
            return error
    count = sum(map(len, groups.values()))
    return CacheUnreachableError(
        f"the cluster at {nodes.address} is moving slots: it redirected this reader {MAX_ROUNDS} times for "
        f"{count} samples"
    )


def _by_node(
    nodes: NodeConnections, slots: SlotMap, keys: Sequence[bytes], offsets: Sequence[int]
) -> Mapping[Node, Sequence[int]]:
    by_owner = [*slots.nodes, nodes.home]
    owners = slots.owners
    groups: dict[Node, list[int]] = {}
    for offset in offsets:
        # A slot without a known owner has -1, the index of the last entry.
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
    # Query connected nodes before waiting for others to connect.
    for node in sorted(groups, key=nodes.opened.__contains__, reverse=True):
        offsets = groups[node]
        try:
            left_s = min(left_s, batch.deadline_s - batch.clock())
            connection = nodes.opened.get(node) or nodes.connection(node, left_s)
            connection.limit_wait(left_s)
            share = len(offsets) / total
            receiver = Receiver(connection, batch, offsets, part=share, asking=asking.intersection(offsets))
            receiver.send_requests()
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
    """Receive replies from all nodes concurrently, and return the errors of the nodes that failed."""
    failed: dict[Node, CacheUnreachableError] = {}
    active = dict(receivers)
    # For a single node, a blocking receive is cheaper than a poll plus a receive.
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
                reason = f"the cache at {receiver.connection.address} is sending too slowly"
                failed[node] = CacheUnreachableError(reason)
            break
    return failed


def _ready(active: Mapping[Node, Receiver], poll: select.poll, batch: Batch) -> list[Node]:
    # A poll does not see bytes in the connection's own buffer.
    pending = [node for node, receiver in active.items() if receiver.connection.pending]
    if pending:
        return pending
    by_descriptor = {receiver.connection.fileno(): node for node, receiver in active.items()}
    left_s = min(max(batch.deadline_s - batch.clock(), 0.0), IO_TIMEOUT_S)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(left_s * 1000)]


def _redirected(
    nodes: NodeConnections, buffer: BatchBuffer, groups: Mapping[Node, Sequence[int]]
) -> tuple[Mapping[Node, Sequence[int]], set[int]]:
    """Return the redirected samples, grouped by new node, and those that require ``ASKING``."""
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
    # Errors of earlier reports may say that slots have moved or that memory is full.
    late_errors = connection.late_errors
    moved = nodes.slots is not None and any(text.startswith("MOVED") for text in late_errors)
    nodes.stale = nodes.stale or moved
    batch.out_of_memory = batch.out_of_memory or any(map(is_for_memory, late_errors))
    late_errors.clear()
