"""The nodes of one cache: the slot of a key, the node of a slot, and the open connections."""

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

# How often a command may be sent within an exchange, including redirections.
MAX_ROUNDS = 6
CONNECT_TIMEOUT_S = 5.0
_NODE_CONNECT_S = 3.0  # an unreachable node must not delay the others for longer
_SLOTS_TIMEOUT_S = 5.0
SLOTS = 16384
_MAX_PORT = 65535
_MAX_HOST = 253
# For other texts Python's resolver raises UnicodeError or ValueError, at the first connect.
_HOST = re.compile(r"[\w:%-]{1,63}(\.[\w:%-]{1,63})*\.?", re.ASCII)


class Node(NamedTuple):
    """The address on which a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class SlotMap:
    """The masters, in the order of their first slots, and for each slot the index of its master, or -1."""

    # No replicas: the latest writes may not have reached them.
    nodes: tuple[Node, ...]
    owners: array[int]

    def node_of(self, slot: int) -> Node | None:
        """Return the master of a slot, or ``None`` if it is unknown."""
        owner = self.owners[slot]
        return self.nodes[owner] if owner >= 0 else None


class Redirection(NamedTuple):
    """A redirection of a slot to another node, permanently or (``ASK``) only for one command."""

    kind: Literal["MOVED", "ASK"]
    slot: int
    node: Node


def key_slot(key: bytes) -> int:
    """Return a key's slot: CRC-16/XMODEM modulo 16384, over the hash tag only if the key has one."""
    # The tag is the text between the first { and the first } after it, if not empty.
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def parse_slots(reply: Reply, sender: Node) -> SlotMap:
    """Parse the reply of ``sender`` to ``CLUSTER SLOTS``. Raises ``ValueError`` if it is invalid."""
    if not isinstance(reply, list) or len(reply) > SLOTS:  # each entry has at least one slot
        raise ValueError(f"a slot map must be an array of at most {SLOTS} entries, not {reprlib.repr(reply)}")
    indices: dict[Node, int] = {}
    # 16 bits suffice, since there are no more masters than slots.
    owners = array("h", [-1]) * SLOTS
    for item in reply:
        first, last, node = _range(item, sender)
        if node is not None:
            index = indices.setdefault(node, len(indices))
            owners[first : last + 1] = array("h", [index]) * (last + 1 - first)
    return SlotMap(tuple(indices), owners)


def parse_redirection(text: str, sender: Node) -> Redirection | None:
    """Parse an error of ``sender`` such as ``MOVED 3999 10.0.0.1:6381``, or return ``None``."""
    kind, slot, address = (*text.split(" "), "", "", "")[:3]
    if kind not in ("MOVED", "ASK"):
        return None
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not (colon and _is_number(slot, SLOTS - 1) and _is_number(port, _MAX_PORT)):
        return None
    if host and not _is_host(host):  # such as "?", for a node without a name
        return None
    return Redirection("MOVED" if kind == "MOVED" else "ASK", int(slot), Node(host or sender.host, int(port)))


def _range(item: Reply, sender: Node) -> tuple[int, int, Node | None]:
    """Return the first and last slot of an entry, and its master if that has an address."""
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
                # No host means the host of the node that answered.
                return Node(name or sender.host, port)
    raise ValueError(f"a node in a slot map must be [host, port, ...], not {reprlib.repr(item)}")


def _is_host(text: str) -> bool:
    return len(text) <= _MAX_HOST and _HOST.fullmatch(text) is not None


def _is_number(text: str, limit: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(limit)) and int(text) <= limit


class NodeConnections:
    """Connections to the nodes of one cache, opened on demand, and the slot map.

    Not thread-safe. ``renewed`` is called with the refused credentials and the cache's error.
    It returns new credentials, which are tried once, or raises.
    """

    def __init__(
        self,
        address: CacheAddress,
        credentials: Credentials,
        renewed: Callable[[Credentials, WrongPasswordError], Credentials] | None = None,
    ) -> None:
        self.address = address
        # The node that the user configured. It has no host for a unix socket.
        self.home = Node(address.host, address.port)
        # None for a single server, and until the first slot map arrives.
        self.slots: SlotMap | None = None
        # The slot map must be refreshed before it is used.
        self.stale = True
        # Nodes that are not retried until renew(), with the reasons.
        self.broken: dict[Node, SuperError] = {}
        self._lost_once: set[Node] = set()
        # The open connections, as far as this side knows.
        self.opened: dict[Node, CacheConnection] = {}
        self._map_source = self.home
        self._credentials = credentials
        self._renewed = renewed
        # Created once: reading the system's CA certificates takes longer than a handshake.
        self._context: ssl.SSLContext | None = credentials.tls_context() if address.tls else None

    @property
    def all_broken(self) -> str:
        """The reasons why no node is tried before :meth:`renew`, or an empty string if some node still is."""
        known = {self.home} if self.slots is None else set(map(self.connection_node, self.slots.nodes))
        return "; ".join(map(str, self.broken.values())) if self.broken.keys() >= known else ""

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connect to the configured node and discover the others. Raises as ``CacheConnection`` does."""
        connection = self.connection(self.home, timeout_s)
        try:
            self.slots, self.stale = _query_slots(connection, self.home, timeout_s), False
        except BaseException:
            self.drop(self.home)
            raise
        self._close_unknown()

    def connection(self, node: Node, timeout_s: float = CONNECT_TIMEOUT_S) -> CacheConnection:
        """Return the connection to a node, opening it if needed. A broken node is not retried before
        :meth:`renew`.
        """
        if node in self.opened:
            return self.opened[node]
        if node in self.broken:
            # Raise a new instance, because an error that is raised repeatedly collects tracebacks.
            raise type(self.broken[node])(str(self.broken[node]))
        at_home = node == self.home or not node.host
        address = self.address if at_home else self.address.node(node.host, node.port)
        limit_s = timeout_s if self.slots is None else min(timeout_s, _NODE_CONNECT_S)
        try:
            self.opened[node] = self._connect(address, limit_s)
        except (CacheError, ConfigError) as error:
            self.broken[node] = error
            raise
        return self.opened[node]

    def node_of(self, key: bytes) -> Node | None:
        """Return the node that owns a key, or ``None`` if it is unknown."""
        if self.slots is None:
            return self.home
        node = self.slots.node_of(key_slot(key))
        return None if node is None else self.connection_node(node)

    def connection_node(self, node: Node) -> Node:
        """Return the key of a node's connection. A node without a host is the home node."""
        return node if node.host else self.home

    def refresh(self, timeout_s: float, *, first: Node | None = None) -> None:
        """Request the slot map from one node after another, for at most ``timeout_s`` in total.

        If no node sends a map, the old one is kept. ``first`` is the first node to try.
        """
        until_s = time.monotonic() + timeout_s
        known = dict.fromkeys((self.home, *map(self.connection_node, self.slots.nodes if self.slots else ())))
        # Ask the node that sent the current map last: if it was cut off, its map is still outdated.
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
                # The next node may know. If none does, the exchange reports it.
                self.lose(node, str(error))
                continue
            # Keep a known map rather than an empty one.
            if (slots is not None and slots.nodes) or self.slots is None:
                self.slots, self._map_source, self.stale = slots, node, False
                break
        self._close_unknown()

    def ping(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Check that every node answers, by reading a record that does not exist, or raise
        :class:`CacheError`.
        """
        for node in (self.slots.nodes if self.slots else ()) or (self.home,):
            connection = self.connection(self.connection_node(node), timeout_s)
            (answer,) = connection.converse((b"GET", cache_key(bytes(ID_BYTES))))
            if isinstance(answer, ErrorReply) and not is_redirection(answer.text):
                raise refusal(connection.address, answer.text)

    def lose(self, node: Node, why: str) -> None:
        """Close a failed connection. One more connection to the node is allowed before :meth:`renew`."""
        self.drop(node)
        if node in self._lost_once:
            self.broken.setdefault(node, CacheUnreachableError(why))
        self._lost_once.add(node)

    def was_lost(self, node: Node) -> bool:
        """Return whether a connection to a node has failed since the last :meth:`renew`."""
        return node in self._lost_once

    def renew(self) -> None:
        """Allow connections to broken nodes again."""
        self.broken.clear()
        self._lost_once.clear()

    def drop(self, node: Node) -> None:
        """Close the connection to a node, if there is one."""
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
            if self._renewed is None:
                raise
            self._credentials = self._renewed(self._credentials, error)
        return CacheConnection(address, self._credentials, timeout_s=timeout_s, context=self._context)

    def _close_unknown(self) -> None:
        """Close the connections to nodes that are not in the slot map."""
        if self.slots is None:
            return
        members = set(map(self.connection_node, self.slots.nodes)) or {self.home}
        for node in [node for node in self.opened if node not in members]:
            self.drop(node)


def _query_slots(connection: CacheConnection, node: Node, timeout_s: float) -> SlotMap | None:
    """Return a node's slot map, or ``None`` if it is not in a cluster or refuses the command."""
    (answer,) = connection.converse((b"CLUSTER", b"SLOTS"), timeout_s=timeout_s)
    if isinstance(answer, ErrorReply):
        if is_passing(answer.text) or wants_credentials(answer.text):
            raise refusal(connection.address, answer.text)
        # Without cluster support or permission, treat it as a single node that owns every key.
        return None
    try:
        return parse_slots(answer, node)
    except ValueError as error:
        raise CacheError(
            f"the cache at {connection.address} sent an invalid reply to CLUSTER SLOTS: {error}"
        ) from error
