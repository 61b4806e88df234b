"""Send commands to the nodes that own their keys, in parallel across nodes.

If a connection breaks, its commands are sent once more, so they must be safe to repeat: a GET,
a SET of a record (the same id always has the same bytes), or an XADD whose duplicates are
dropped. If a node is down, only its own commands fail.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from superdl.super_wire.cache.nodes import MAX_ROUNDS, Node, key_slot, parse_redirection
from superdl.super_wire.cache.resp import ErrorReply, encode_command, refusal, wants_credentials
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_wire.cache.connection import CacheConnection
    from superdl.super_wire.cache.nodes import NodeConnections
    from superdl.super_wire.cache.resp import Reply

# The cache's reply, which may be an error, or the reason for its absence.
Result: TypeAlias = "Reply | CacheError"
_GRACE_S = 2.0  # for healthy nodes, if another node has used up the timeout
_SLOTS_TIMEOUT_S = 5.0
_ASKING = encode_command(b"ASKING")


class Command(NamedTuple):
    """An encoded command for the node that owns ``key``."""

    key: bytes
    buffers: tuple[bytes | memoryview, ...]

    @classmethod
    def of(cls, key: bytes, *words: bytes) -> Command:
        """Encode a command."""
        return cls(key, (encode_command(*words),))


class _Destination(NamedTuple):
    node: Node
    asking: bool = False  # the slot is still migrating to the node


def exchange(nodes: NodeConnections, commands: Sequence[Command], *, timeout_s: float = 10.0) -> list[Result]:
    """Send commands and return the reply to each, or an error if no reply arrives."""
    return _Exchange(nodes, commands, timeout_s).run()


class _Exchange:
    """An exchange in rounds. All replies of a round are read before the next round begins."""

    def __init__(self, nodes: NodeConnections, commands: Sequence[Command], timeout_s: float) -> None:
        self._nodes = nodes
        self._commands = commands
        self._timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s
        self._results: list[Result] = [CacheUnreachableError("the command was not sent")] * len(commands)
        self._redirected: dict[int, _Destination] = {}
        self._failed: set[int] = set()  # the connection broke, so they may have been executed

    def run(self) -> list[Result]:
        remaining = list(range(len(self._commands)))
        for _ in range(MAX_ROUNDS):
            groups = self._group(remaining)
            self._redirected, self._failed = {}, set()
            sent = {to: self._send(to, group) for to, group in groups.items()}
            for to, connection in sent.items():
                if connection is not None:
                    self._receive(to, groups[to], connection)
            remaining = [*self._redirected, *filter(self._may_retry, self._failed)]
            if not remaining:
                break
            if self._failed and self._nodes.slots is None:
                # The connection to a single server broke. The second attempt has the full timeout.
                self._until_s = time.monotonic() + self._timeout_s
        return self._results

    def _group(self, remaining: list[int]) -> dict[_Destination, list[int]]:
        """Group the commands by destination. Commands for slots without a node fail."""
        nodes = self._nodes
        if nodes.stale:
            new_owner = next((to.node for to in self._redirected.values() if not to.asking), None)
            nodes.refresh(_SLOTS_TIMEOUT_S, first=new_owner)
        if nodes.slots is None:
            return {_Destination(nodes.home): remaining}
        destinations = {index: self._redirected.get(index) or self._destination(index) for index in remaining}
        # A newer map may have a node for these slots.
        if None in destinations.values():
            nodes.refresh(_SLOTS_TIMEOUT_S)
            destinations |= {
                index: self._destination(index) for index in remaining if destinations[index] is None
            }
        groups: dict[_Destination, list[int]] = {}
        for index, destination in destinations.items():
            if destination is None:
                slot = key_slot(self._commands[index].key)
                self._results[index] = CacheUnreachableError(
                    f"no node of the cluster at {nodes.address} serves slot {slot}"
                )
            else:
                groups.setdefault(destination, []).append(index)
        return groups

    def _send(self, to: _Destination, group: list[int]) -> CacheConnection | None:
        """Send commands and return the connection to read from, or ``None`` if sending fails."""
        try:
            connection = self._nodes.connection(to.node)
        except (CacheError, ConfigError) as error:  # ConfigError: not encrypted
            self._fail(group, error if isinstance(error, CacheError) else CacheError(str(error)))
            return None
        prefix = (_ASKING,) if to.asking else ()
        buffers = [buffer for index in group for buffer in (*prefix, *self._commands[index].buffers)]
        try:
            # Gathering payloads without a copy takes a sixth of redis-py's CPU time for a SET.
            connection.send_gathered(buffers, self._deadline_s())
        except CacheError as error:
            self._fail(group, error, to.node)
            return None
        return connection

    def _receive(self, to: _Destination, group: list[int], connection: CacheConnection) -> None:
        # Each ASKING has its own reply.
        count = 2 * len(group) if to.asking else len(group)
        try:
            replies = connection.replies(count, self._deadline_s())
        except CacheError as error:
            self._fail(group, error, to.node)
            return
        for index, reply in zip(group, replies[1::2] if to.asking else replies, strict=True):
            self._results[index] = reply
            if isinstance(reply, ErrorReply):
                self._handle_error(to.node, index, reply.text)

    def _handle_error(self, node: Node, index: int, text: str) -> None:
        """Handle an error reply, which may redirect the command to another node."""
        nodes = self._nodes
        if wants_credentials(text):
            self._results[index] = nodes.broken[node] = refusal(str(nodes.address), text)
            nodes.drop(node)
        if text.startswith("READONLY") and not nodes.was_lost(node):
            nodes.lose(node, text)  # a failover: the name may belong to another server by now
            self._failed.add(index)
            nodes.stale = True
        redirection = None if nodes.slots is None else parse_redirection(text, node)
        if redirection is not None:
            asking = redirection.kind == "ASK"
            self._redirected[index] = _Destination(redirection.node, asking)
            nodes.stale = nodes.stale or not asking

    def _fail(self, group: list[int], error: CacheError, lost: Node | None = None) -> None:
        if lost is not None:
            self._nodes.lose(lost, str(error))
        for index in group:
            self._results[index] = error
        self._failed.update(group)
        self._nodes.stale = True  # another node may have taken over their slots

    def _may_retry(self, index: int) -> bool:
        node = self._nodes.node_of(self._commands[index].key)
        return node is not None and node not in self._nodes.broken

    def _destination(self, index: int) -> _Destination | None:
        node = self._nodes.node_of(self._commands[index].key)
        return None if node is None else _Destination(node)

    def _deadline_s(self) -> float:
        return max(self._until_s, time.monotonic() + _GRACE_S)
