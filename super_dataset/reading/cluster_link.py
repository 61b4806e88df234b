"""Reads from a Redis Cluster: every sample is asked of the node that has its slot, all nodes at once.

Redirections are followed within a read, a bounded number of times. What is lost with a node is for the next
attempt, which begins with a fresh slot map; the other nodes' samples arrive meanwhile.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from superdl.super_dataset.reading.buffer import Reply
from superdl.super_dataset.reading.gather import Share, gather, gather_all
from superdl.super_dataset.reading.nodes import learn_slots, ping
from superdl.super_dataset.reading.refusals import is_for_memory
from superdl.super_wire.cluster import Node, key_slot, parse_redirection
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from superdl.super_wire.keys import cache_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_dataset.reading.connection import CacheConnection
    from superdl.super_dataset.reading.gather import Wanted
    from superdl.super_dataset.reading.nodes import Nodes
    from superdl.super_wire.cluster import SlotMap

__all__ = ["MAX_REDIRECTIONS", "ClusterLink"]

MAX_REDIRECTIONS = 5
"""How often one sample is asked for elsewhere within one attempt of a read."""

_LOG = logging.getLogger("super_dataset")

_CONNECT_S = 3.0  # a node that cannot be reached must not hold up the others' samples for longer
_MOST_OWED = 32


class ClusterLink:
    """A connection to each node of a cluster that is needed, opened when it is.

    It outlives its connections: what it knows of the cluster finds the nodes that have taken over.

    Args:
        nodes: opens connections.
        first: one to ``nodes.home``.
        slots: the slot map that it told.
    """

    def __init__(self, nodes: Nodes, first: CacheConnection, slots: SlotMap) -> None:
        self._nodes = nodes
        self._slots = slots
        self._told_by = nodes.home
        self._stale = False
        self.out_of_memory = False
        self._open: dict[Node, CacheConnection] = {nodes.home: first}
        self._shunned_until_s: dict[Node, float] = {}
        self._forget_strangers()

    @property
    def connected(self) -> bool:
        """Whether there is an open connection, as far as this side knows."""
        return bool(self._open)

    def gather(
        self, wanted: Wanted, offsets: Sequence[int], *, left_s: float
    ) -> CacheUnreachableError | None:
        """See :class:`~superdl.super_dataset.reading.link.CacheLink`."""
        if self._stale:
            self._refresh(left_s)
        self.out_of_memory = False
        asked = self._by_node(wanted, offsets)
        asking: set[int] = set()
        trouble = None
        for _ in range(1 + MAX_REDIRECTIONS):
            trouble = self._ask(wanted, asked, asking, left_s) or trouble
            asked, asking = self._redirected(wanted.buffer, asked)
            if not asked:
                return trouble
        count = sum(map(len, asked.values()))
        return CacheUnreachableError(
            f"the cluster at {self._nodes.address} sent us from node to node {MAX_REDIRECTIONS} times for "
            f"{count} samples: its slots are being moved"
        )

    def report(self, stream: bytes, command: bytes) -> None:
        """See :class:`~superdl.super_dataset.reading.link.CacheLink`."""
        node = self._owner(key_slot(stream))
        if node not in self._open and time.monotonic() < self._shunned_until_s.get(node, 0.0):
            return
        try:
            connection = self._connection(node, _CONNECT_S)
            if connection.owed >= _MOST_OWED:
                connection.converse()
                self._heed(connection)
            connection.owed += 1  # first: an answer that nobody expects would be taken for a sample's
            connection.send(command)
        except CacheError as error:  # the others are none the worse for it
            self._drop(node)
            _LOG.debug("a read report was lost: %s", error)

    def ping(self) -> None:
        """See :class:`~superdl.super_dataset.reading.link.CacheLink`."""
        for node in self._slots.nodes or (self._nodes.home,):
            ping(self._connection(self._place(node), _CONNECT_S))

    def close(self) -> None:
        """See :class:`~superdl.super_dataset.reading.link.CacheLink`."""
        for node in list(self._open):
            self._drop(node)

    def _by_node(self, wanted: Wanted, offsets: Sequence[int]) -> dict[Node, list[int]]:
        keys = cache_keys(wanted.sample_ids)
        places = [self._place(node) for node in self._slots.nodes] + [self._nodes.home]
        owners = self._slots.owners
        found: dict[Node, list[int]] = {}
        for offset in offsets:
            # A slot without a known owner has owner -1: the last place.
            found.setdefault(places[owners[key_slot(keys[offset])]], []).append(offset)
        return found

    def _ask(
        self, wanted: Wanted, asked: Mapping[Node, list[int]], asking: set[int], left_s: float
    ) -> CacheUnreachableError | None:
        """Ask every node for its share; why some of it did not come, if that is so."""
        total = sum(map(len, asked.values()))
        shares: dict[Node, Share] = {}
        failed: list[tuple[Node, CacheUnreachableError]] = []
        # Who is connected is asked before anyone is waited for.
        for node in sorted(asked, key=lambda node: node not in self._open):
            offsets = asked[node]
            try:
                left_s = min(left_s, wanted.deadline_s - wanted.clock())
                connection = self._connection(node, left_s)
                connection.limit_wait(left_s)
                theirs = asking.intersection(offsets)
                share = Share(connection, wanted, offsets, part=len(offsets) / total, asking=theirs)
                share.ask()
                shares[node] = share
            except CacheUnreachableError as error:
                failed.append((node, error))
        failed += _receive(shares, wanted)
        for node, _ in failed:
            self._drop(node)
        for node in shares:
            if node in self._open:
                self._heed(self._open[node])
        self._stale = self._stale or bool(failed)
        return failed[-1][1] if failed else None

    def _redirected(
        self, buffer: BatchBuffer, asked: Mapping[Node, Sequence[int]]
    ) -> tuple[dict[Node, list[int]], set[int]]:
        """Where to ask for the samples whose nodes said to ask elsewhere, and which of them by ``ASK``."""
        found: dict[Node, list[int]] = {}
        asking: set[int] = set()
        if not buffer.errors:
            return found, asking
        for node, offsets in asked.items():
            for offset in offsets:
                text = buffer.errors.get(offset, "")
                redirection = parse_redirection(text, node)
                self._stale = self._stale or text.startswith(("MOVED", "CLUSTERDOWN"))
                if redirection is None:
                    continue
                del buffer.errors[offset]
                buffer.replies[offset] = Reply.NONE
                found.setdefault(self._place(redirection.node), []).append(offset)
                if redirection.kind == "ASK":
                    asking.add(offset)
        return {node: sorted(offsets) for node, offsets in found.items()}, asking

    def _refresh(self, left_s: float) -> None:
        """Have the slot map told anew by any node that answers, one with a connection first.

        Another one than the last time, if there is: who was cut off from the others knows no better.
        """
        until_s = time.monotonic() + left_s
        known = dict.fromkeys((self._nodes.home, *map(self._place, self._slots.nodes)))
        for node in sorted(known, key=lambda node: (node not in self._open, node == self._told_by)):
            try:
                slots = learn_slots(self._connection(node, until_s - time.monotonic()), node)
            except CacheError:  # the next one may know; if nobody does, the reading itself will tell
                self._drop(node)
                slots = None
            if slots is not None and slots.nodes:
                self._slots, self._told_by, self._stale = slots, node, False
                break
            if time.monotonic() > until_s:
                break
        self._forget_strangers()

    def _connection(self, node: Node, left_s: float) -> CacheConnection:
        connection = self._open.get(node)
        if connection is None:
            try:
                connection = self._nodes.open(node, timeout_s=min(left_s, _CONNECT_S))
            except CacheUnreachableError:
                self._shunned_until_s[node] = time.monotonic() + _CONNECT_S
                raise
            self._open[node] = connection
        return connection

    def _heed(self, connection: CacheConnection) -> None:
        """What became of earlier reports may tell that slots have moved."""
        self._stale = self._stale or any(text.startswith("MOVED") for text in connection.late_errors)
        self.out_of_memory = self.out_of_memory or any(map(is_for_memory, connection.late_errors))
        connection.late_errors.clear()

    def _owner(self, slot: int) -> Node:
        return self._place(self._slots.node_of(slot) or self._nodes.home)

    def _place(self, node: Node) -> Node:
        return node if node.host else self._nodes.home

    def _forget_strangers(self) -> None:
        """Close what the slot map has no use for."""
        members = {self._place(node) for node in self._slots.nodes} or {self._nodes.home}
        for node in [node for node in self._open if node not in members]:
            self._drop(node)

    def _drop(self, node: Node) -> None:
        connection = self._open.pop(node, None)
        if connection is not None:
            connection.close()


def _receive(shares: Mapping[Node, Share], wanted: Wanted) -> list[tuple[Node, CacheUnreachableError]]:
    if len(shares) == 1:  # a blocking receive is cheaper than a poll and one
        ((node, share),) = shares.items()
        try:
            gather(share, wanted)
        except CacheUnreachableError as error:
            return [(node, error)]
        return []
    names = {id(share): node for node, share in shares.items()}
    return [(names[id(share)], error) for share, error in gather_all(list(shares.values()), wanted)]
