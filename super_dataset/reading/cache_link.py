"""A reading thread's link to its cache: each sample is requested from its node, from all nodes at once.

A link makes one attempt for each request. It follows redirections within a read, a bounded number of times.
Samples lost with a node are left to the next attempt, which begins with a fresh slot map.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_dataset.reading.gather import Share, gather, gather_all
from superdl.super_wire.cache import MAX_ROUNDS, NodeConnections, is_for_memory, key_slot, parse_redirection
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from superdl.super_wire.keys import cache_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_dataset.reading.gather import Wanted
    from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials, Node

__all__ = ["CacheLink", "open_link"]

_LOG = logging.getLogger("superdl.super_dataset")

_SHUN_S = 3.0  # an unreachable node is not tried for a report alone within this time
_MOST_OWED = 32


def open_link(address: CacheAddress, credentials: Credentials, *, timeout_s: float) -> CacheLink:
    """Connect to the cache at ``address``, a single node or any of a cluster, and discover its nodes.

    Raises:
        CacheUnreachableError: no answer, or not in time.
        CacheError: the cache refused credentials, certificate or database.
        ConfigError: the files configured for TLS cannot be used.
    """
    nodes = NodeConnections(address, credentials)
    nodes.connect(timeout_s)
    return CacheLink(nodes)


class CacheLink:
    """Connections to one node, or to the nodes of a cluster; see the module docstring.

    ``out_of_memory``: whether the cache refused the last report for lack of memory, as far as it has replied.
    """

    def __init__(self, nodes: NodeConnections) -> None:
        self.nodes = nodes
        self.out_of_memory = False
        self._shunned_until_s: dict[Node, float] = {}

    @property
    def connected(self) -> bool:
        """Return whether a connection is open, as far as this side knows."""
        return self.nodes.connected

    def gather(
        self, wanted: Wanted, offsets: Sequence[int], *, left_s: float
    ) -> CacheUnreachableError | None:
        """Request the samples at ``offsets`` (ascending) once; replies go to ``wanted.buffer``.

        Return an error that kept some of them from coming, if any. ``left_s`` is the time until the deadline.

        Raises:
            CacheError: the cache refused.
        """
        self.nodes.renew()
        if self.nodes.stale:
            self.nodes.refresh(left_s)
        self.out_of_memory = False
        groups = self._by_node(wanted, offsets)
        asking: set[int] = set()
        trouble = None
        for _ in range(MAX_ROUNDS):
            trouble = self._ask(wanted, groups, asking, left_s) or trouble
            groups, asking = self._redirected(wanted.buffer, groups)
            if not groups:
                return trouble
        count = sum(map(len, groups.values()))
        return CacheUnreachableError(
            f"the cluster at {self.nodes.address} sent us from node to node {MAX_ROUNDS} times for "
            f"{count} samples: its slots are being moved"
        )

    def report(self, stream: bytes, command: bytes) -> None:
        """Send a command that writes to ``stream``, without awaiting the reply."""
        node = self.nodes.node_of(stream) or self.nodes.home
        if not self.nodes.is_open(node) and time.monotonic() < self._shunned_until_s.get(node, 0.0):
            return
        try:
            connection = self.nodes.connection(node)
            if connection.owed >= _MOST_OWED:
                connection.converse()
                self._heed(connection)
            connection.owed += 1  # first: its reply must not be taken for a sample's
            connection.send(command)
        except CacheError as error:  # the other nodes are not affected
            self._shunned_until_s[node] = time.monotonic() + _SHUN_S
            self.nodes.drop(node)
            _LOG.debug("a read report was lost: %s", error)

    def close(self) -> None:
        """Close all connections."""
        self.nodes.close()

    def _by_node(self, wanted: Wanted, offsets: Sequence[int]) -> dict[Node, list[int]]:
        nodes = self.nodes
        if nodes.slots is None:
            return {nodes.home: list(offsets)}
        keys = cache_keys(wanted.sample_ids)
        places = [*map(nodes.place, nodes.slots.nodes), nodes.home]
        owners = nodes.slots.owners
        groups: dict[Node, list[int]] = {}
        for offset in offsets:
            # A slot without a known owner has owner -1, the last place.
            groups.setdefault(places[owners[key_slot(keys[offset])]], []).append(offset)
        return groups

    def _ask(
        self, wanted: Wanted, asked: Mapping[Node, list[int]], asking: set[int], left_s: float
    ) -> CacheUnreachableError | None:
        """Request its share from every node; return the error that kept back some, if any."""
        nodes = self.nodes
        total = sum(map(len, asked.values()))
        shares: dict[Node, Share] = {}
        failed: list[tuple[Node, CacheUnreachableError]] = []
        # Nodes with a connection are asked before waiting for any other.
        for node in sorted(asked, key=lambda node: not nodes.is_open(node)):
            offsets = asked[node]
            try:
                left_s = min(left_s, wanted.deadline_s - wanted.clock())
                connection = nodes.connection(node, left_s)
                connection.limit_wait(left_s)
                need_asking = asking.intersection(offsets)
                share = Share(connection, wanted, offsets, part=len(offsets) / total, asking=need_asking)
                share.ask()
                shares[node] = share
            except CacheUnreachableError as error:
                failed.append((node, error))
        failed += _receive(shares, wanted)
        for node, _ in failed:
            nodes.drop(node)
        for node, share in shares.items():
            if nodes.is_open(node):
                self._heed(share.connection)
        nodes.stale = nodes.stale or bool(failed)
        return failed[-1][1] if failed else None

    def _redirected(
        self, buffer: BatchBuffer, asked: Mapping[Node, Sequence[int]]
    ) -> tuple[dict[Node, list[int]], set[int]]:
        """Return the new nodes of redirected samples, and those that need an ``ASK``."""
        groups: dict[Node, list[int]] = {}
        asking: set[int] = set()
        if not buffer.errors or self.nodes.slots is None:
            return groups, asking
        for node, offsets in asked.items():
            for offset in offsets:
                text = buffer.errors.get(offset, "")
                redirection = parse_redirection(text, node)
                self.nodes.stale = self.nodes.stale or text.startswith(("MOVED", "CLUSTERDOWN"))
                if redirection is None:
                    continue
                del buffer.errors[offset]
                buffer.replies[offset] = ReplyKind.NONE
                groups.setdefault(self.nodes.place(redirection.node), []).append(offset)
                if redirection.kind == "ASK":
                    asking.add(offset)
        return {node: sorted(offsets) for node, offsets in groups.items()}, asking

    def _heed(self, connection: CacheConnection) -> None:
        """Check replies to earlier reports, whose errors may show that slots have moved."""
        late_errors = connection.late_errors
        if not late_errors:
            return
        moved = self.nodes.slots is not None and any(text.startswith("MOVED") for text in late_errors)
        self.nodes.stale = self.nodes.stale or moved
        self.out_of_memory = self.out_of_memory or any(map(is_for_memory, late_errors))
        late_errors.clear()


def _receive(shares: Mapping[Node, Share], wanted: Wanted) -> list[tuple[Node, CacheUnreachableError]]:
    if len(shares) == 1:  # one blocking receive is cheaper than a poll plus a receive
        ((node, share),) = shares.items()
        try:
            gather(share, wanted)
        except CacheUnreachableError as error:
            return [(node, error)]
        return []
    names = {id(share): node for node, share in shares.items()}
    return [(names[id(share)], error) for share, error in gather_all(list(shares.values()), wanted)]
