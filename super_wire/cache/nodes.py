"""A cache's nodes: the slots that each owns, and the connections to them."""

from __future__ import annotations

import re
import reprlib
import time
from array import array
from binascii import crc_hqx
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from superdl.super_wire.cache.connection import CacheConnection
from superdl.super_wire.cache.resp import (
    ErrorReply,
    WrongPasswordError,
    is_passing,
    is_redirection,
    refusal,
    wants_credentials,
)
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from superdl.super_wire.cache.address import CacheAddress, Credentials
    from superdl.super_wire.cache.resp import Reply
    from superdl.super_wire.errors import SuperError

# Attempts for a command within an exchange, including redirections.
MAX_ROUNDS = 6
CONNECT_TIMEOUT_S = 5.0
_NODE_CONNECT_S = 3.0  # the maximum time for which an unreachable node delays the others
_SLOTS_TIMEOUT_S = 5.0
SLOTS = 16384
_MAX_PORT = 65535
_MAX_HOST = 253
# For other texts, Python's resolver would raise UnicodeError or ValueError.
_HOST = re.compile(r"[\w:%-]{1,63}(\.[\w:%-]{1,63})*\.?", re.ASCII)


class Node(NamedTuple):
    """The address on which a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class SlotMap:
    """The masters, ordered by their first slots, and the index of each slot's master (-1 if unknown)."""

    # Replicas are excluded, because the latest writes may not have reached them.
    nodes: tuple[Node, ...]
    owners: array[int]

    def node_of(self, slot: int) -> Node | None:
        """Return a slot's master, or ``None`` if it is unknown."""
        owner = self.owners[slot]
        return self.nodes[owner] if owner >= 0 else None


class Redirection(NamedTuple):
    """A redirection to another node, for all commands to a slot (``MOVED``) or a single one (``ASK``)."""

    kind: Literal["MOVED", "ASK"]
    node: Node


def key_slot(key: bytes) -> int:
    """Return a key's slot: CRC-16/XMODEM modulo 16384 of its hash tag, or of the key if it has none."""
    # The tag is the text between the first { and the next }, unless it is empty.
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def parse_slots(reply: Reply, sender: Node) -> SlotMap:
    """Parse a reply to ``CLUSTER SLOTS``. Raises ``ValueError`` if it is invalid."""
    if not isinstance(reply, list) or len(reply) > SLOTS:  # each entry has at least one slot
        raise ValueError(f"a slot map must be an array of at most {SLOTS} entries, not {reprlib.repr(reply)}")
    indices: dict[Node, int] = {}
    # 16 bits are enough, because there are at most as many masters as slots.
    owners = array("h", [-1]) * SLOTS
    for item in reply:
        first, last, node = _range(item, sender)
        if node is not None:
            index = indices.setdefault(node, len(indices))
            owners[first : last + 1] = array("h", [index]) * (last + 1 - first)
    return SlotMap(tuple(indices), owners)


def parse_redirection(text: str, sender: Node) -> Redirection | None:
    """Parse an error such as ``MOVED 3999 10.0.0.1:6381``. Returns ``None`` for other errors."""
    kind, slot, address = (*text.split(" "), "", "", "")[:3]
    if kind not in ("MOVED", "ASK"):
        return None
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not (colon and _is_number(slot, SLOTS - 1) and _is_number(port, _MAX_PORT)):
        return None
    if host and not _is_host(host):  # such as "?", for a node without a name
        return None
    return Redirection("MOVED" if kind == "MOVED" else "ASK", _node_at(host, int(port), sender))


def _node_at(host: str, port: int, sender: Node) -> Node:
    # No host means the sender's. If the sender is at a unix socket, it has none, and is the node itself.
    return Node(host or sender.host, port) if host or sender.host else sender


def _range(item: Reply, sender: Node) -> tuple[int, int, Node | None]:
    """Return an entry's first and last slot, and its master, or ``None`` if the master has no address."""
    match item:
        case [int(first), int(last), master, *_] if 0 <= first <= last < SLOTS:
            return first, last, _master(master, sender)
    raise ValueError(
        f"an entry of a slot map must be [first, last, [host, port, ...], ...], not {reprlib.repr(item)}"
    )


def _master(item: Reply, sender: Node) -> Node | None:
    match item:
        case [None | bytes() as host, int(port), *_] if 0 <= port <= _MAX_PORT:
            if host == b"?" or not port:  # it has no name, or no port of the required kind (TLS or plain)
                return None
            name = host.decode(errors="replace") if host else ""
            if not name or _is_host(name):
                return _node_at(name, port, sender)
    raise ValueError(f"a node in a slot map must be [host, port, ...], not {reprlib.repr(item)}")


def _is_host(text: str) -> bool:
    return len(text) <= _MAX_HOST and _HOST.fullmatch(text) is not None


def _is_number(text: str, limit: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(limit)) and int(text) <= limit


class NodeConnections:
    """Connections to a cache's nodes, opened on demand, and the cache's slot map. Not thread-safe.

    ``renew_credentials`` is called with the refused credentials and the cache's error. It returns new
    credentials, which are tried once, or raises an exception.
    """

    def __init__(
        self,
        address: CacheAddress,
        credentials: Credentials,
        renew_credentials: Callable[[Credentials, WrongPasswordError], Credentials] | None = None,
    ) -> None:
        self.address = address
        # The configured node. At a unix socket, it has no host.
        self.home = Node(address.host, address.port)
        # None for a single server, and until the first slot map arrives.
        self.slots: SlotMap | None = None
        # Whether the slot map must be refreshed before use.
        self.stale = True
        # Nodes that are not tried again before renew(), with the reasons.
        self.broken: dict[Node, SuperError] = {}
        self._lost_once: set[Node] = set()
        # Open connections. The peer may have closed them.
        self.opened: dict[Node, CacheConnection] = {}
        self._map_source = self.home
        self._credentials = credentials
        self._renew_credentials = renew_credentials
        # Created once, because loading the system's CA certificates takes longer than a handshake.
        self._context: ssl.SSLContext | None = credentials.tls_context() if address.tls else None

    @property
    def all_broken(self) -> str:
        """The errors of all nodes if every node is broken, otherwise an empty string."""
        known = {self.home} if self.slots is None else set(self.slots.nodes)
        return "; ".join(map(str, self.broken.values())) if self.broken.keys() >= known else ""

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect to the configured node and discover the others. Raises ``CacheConnection``'s errors."""
        connection = self.connection(self.home, timeout_s)
        try:
            self.slots, self.stale = _query_slots(connection, self.home, timeout_s), False
        except BaseException:
            self.drop(self.home)
            raise
        self._close_unknown()

    def connection(self, node: Node, timeout_s: float = CONNECT_TIMEOUT_S) -> CacheConnection:
        """Return the connection to a node, opening it if necessary. Raises a broken node's error."""
        if node in self.opened:
            return self.opened[node]
        if node in self.broken:
            # Raise a new instance, because an error that is raised repeatedly collects tracebacks.
            raise type(self.broken[node])(str(self.broken[node]))
        address = self.address if node == self.home else self.address.node(node.host, node.port)
        limit_s = timeout_s if self.slots is None else min(timeout_s, _NODE_CONNECT_S)
        try:
            self.opened[node] = self._connect(address, limit_s)
        except (CacheError, ConfigError) as error:
            self.broken[node] = error
            raise
        return self.opened[node]

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that owns a key, or ``None`` if it is unknown."""
        return self.home if self.slots is None else self.slots.node_of(key_slot(key))

    def refresh(self, timeout_s: float, *, first: Node | None = None) -> None:
        """Request the slot map from each node in turn, starting with ``first``, for at most ``timeout_s``.

        If no node sends a map, the old one is kept.
        """
        until_s = time.monotonic() + timeout_s
        known = dict.fromkeys((self.home, *(self.slots.nodes if self.slots else ())))
        # Ask the sender of the current map last: if it was cut off, its map is still outdated.
        order = sorted(known, key=lambda node: (node not in self.opened, node == self._map_source))
        for node in dict.fromkeys((first, *order) if first is not None else order):
            left_s = until_s - time.monotonic()
            if node in self.broken:
                continue
            if left_s <= 0:
                break
            try:
                slots = _query_slots(self.connection(node, left_s), node, min(left_s, _SLOTS_TIMEOUT_S))
            except (CacheError, ConfigError) as error:
                # If no other node sends a map either, the exchange reports that.
                self.lose(node, str(error))
                continue
            # Keep a known map rather than an empty one.
            if (slots is not None and slots.nodes) or self.slots is None:
                self.slots, self._map_source, self.stale = slots, node, False
                break
        self._close_unknown()

    def ping(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Read a nonexistent record from every node. Raises :class:`CacheError` if a read fails."""
        for node in (self.slots.nodes if self.slots else ()) or (self.home,):
            connection = self.connection(node, timeout_s)
            (reply,) = connection.converse((b"GET", cache_key(bytes(ID_BYTES))))
            if isinstance(reply, ErrorReply) and not is_redirection(reply.text):
                raise refusal(connection.address, reply.text)

    def lose(self, node: Node, reason: str) -> None:
        """Close a failed connection. The node can be reconnected only once before the next :meth:`renew`."""
        self.drop(node)
        if node in self._lost_once:
            self.broken.setdefault(node, CacheUnreachableError(reason))
        self._lost_once.add(node)

    def was_lost(self, node: Node) -> bool:
        """Return whether a connection to a node has failed since the last :meth:`renew`."""
        return node in self._lost_once

    def renew(self) -> None:
        """Allow connections to broken nodes again."""
        self.broken.clear()
        self._lost_once.clear()

    def drop(self, node: Node) -> None:
        """Close the connection to a node, if any."""
        connection = self.opened.pop(node, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for node in list(self.opened):
            self.drop(node)

    def _connect(self, address: CacheAddress, timeout_s: float) -> CacheConnection:
        try:
            return CacheConnection(address, self._credentials, timeout_s=timeout_s, context=self._context)
        except WrongPasswordError as error:
            if self._renew_credentials is None:
                raise
            self._credentials = self._renew_credentials(self._credentials, error)
        return CacheConnection(address, self._credentials, timeout_s=timeout_s, context=self._context)

    def _close_unknown(self) -> None:
        if self.slots is None:
            return
        members = set(self.slots.nodes) or {self.home}
        for node in [node for node in self.opened if node not in members]:
            self.drop(node)


def _query_slots(connection: CacheConnection, node: Node, timeout_s: float) -> SlotMap | None:
    """Return a node's slot map, or ``None`` if the node is not in a cluster or refuses the command."""
    (reply,) = connection.converse((b"CLUSTER", b"SLOTS"), timeout_s=timeout_s)
    if isinstance(reply, ErrorReply):
        if is_passing(reply.text) or wants_credentials(reply.text):
            raise refusal(connection.address, reply.text)
        # Without cluster support or permission, treat it as a single node that owns every key.
        return None
    try:
        return parse_slots(reply, node)
    except ValueError as error:
        raise CacheError(
            f"the cache at {connection.address} sent an invalid reply to CLUSTER SLOTS: {error}"
        ) from error
