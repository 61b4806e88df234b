"""Connections to the nodes of one cache, all opened alike, and what a node says of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_dataset.reading.connection import CacheConnection
from superdl.super_dataset.reading.refusals import is_passing, is_redirection, wants_credentials
from superdl.super_wire.cluster import Node, parse_slots
from superdl.super_wire.errors import CacheError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from superdl.super_wire.resp import ErrorReply

if TYPE_CHECKING:
    import ssl

    from superdl.super_wire.address import CacheAddress, Credentials
    from superdl.super_wire.cluster import SlotMap

__all__ = ["Nodes", "learn_slots", "ping"]


class Nodes:
    """How nodes are reached: as the one at ``address`` is, where a cluster says that they are."""

    def __init__(self, address: CacheAddress, credentials: Credentials) -> None:
        self.address = address
        self.home = Node(address.host, address.port)
        """The node that was named by the user; without a host if that is a unix socket."""
        self._credentials = credentials
        # Made once: reading the system's authorities takes longer than a handshake.
        self._context: ssl.SSLContext | None = credentials.tls_context() if address.tls else None

    def open(self, node: Node, *, timeout_s: float) -> CacheConnection:
        """A new connection; see :class:`~superdl.super_dataset.reading.connection.CacheConnection` for what
        it raises.
        """
        # A node without a host is one that knows no address of its own but the one at which it was asked.
        at_home = node == self.home or not node.host
        address = self.address if at_home else self.address.node(node.host, node.port)
        return CacheConnection(address, self._credentials, timeout_s=timeout_s, context=self._context)


def learn_slots(connection: CacheConnection, asked: Node) -> SlotMap | None:
    """The slot map as one node knows it; ``None`` if it is no cluster's, or does not tell us.

    Raises:
        CacheUnreachableError: it is not ready to say.
        CacheError: it wants credentials first, or says what is no slot map.
    """
    (answer,) = connection.converse((b"CLUSTER", b"SLOTS"))
    if isinstance(answer, ErrorReply):
        if is_passing(answer.text) or wants_credentials(answer.text):
            raise connection.refused(answer.text)
        return None
    try:
        return parse_slots(answer, asked)
    except ValueError as error:
        msg = f"the cache at {connection.address} answered CLUSTER SLOTS with something else: {error}"
        raise CacheError(msg) from error


def ping(connection: CacheConnection) -> None:
    """Ask for a record that no sample has: who may read records may do that.

    Raises:
        CacheUnreachableError: nobody answered, or not in time, or is not ready.
        CacheError: the cache refused.
    """
    (answer,) = connection.converse((b"GET", cache_key(bytes(ID_BYTES))))
    if isinstance(answer, ErrorReply) and not is_redirection(answer.text):
        raise connection.refused(answer.text)
