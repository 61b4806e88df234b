"""What one reading thread has to its cache: a connection to one node, or to each node of a cluster.

Which of the two it is, the cache says when it is asked for its slot map; a server without cluster support,
or one that does not let this user ask, is a single node. A link asks once for what it is given; retries in
time are :mod:`superdl.super_dataset.reading.reader`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from superdl.super_dataset.reading.cluster_link import ClusterLink
from superdl.super_dataset.reading.gather import Share, gather
from superdl.super_dataset.reading.nodes import Nodes, learn_slots, ping
from superdl.super_dataset.reading.refusals import is_for_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_dataset.reading.connection import CacheConnection
    from superdl.super_dataset.reading.gather import Wanted
    from superdl.super_wire.address import CacheAddress, Credentials
    from superdl.super_wire.errors import CacheUnreachableError

__all__ = ["CacheLink", "NodeLink", "OpenLink", "open_link"]


class CacheLink(Protocol):
    """What a reader asks of either kind."""

    @property
    def connected(self) -> bool:
        """Whether there is an open connection, as far as this side knows."""

    @property
    def out_of_memory(self) -> bool:
        """Whether the cache refused the last report for want of memory, as far as it has answered."""

    def gather(
        self, wanted: Wanted, offsets: Sequence[int], *, left_s: float
    ) -> CacheUnreachableError | None:
        """Ask once for the samples at ``offsets``.

        What comes is in ``wanted.buffer``; an error that is returned kept some of it from coming.

        Args:
            wanted: the batch.
            offsets: ascending.
            left_s: seconds until the batch's deadline.

        Raises:
            CacheUnreachableError: the link is of no use any more.
            CacheError: the cache refused.
        """

    def report(self, stream: bytes, command: bytes) -> None:
        """Send a command that writes to ``stream``, and do not wait for the answer; its loss is no harm.

        Raises:
            CacheError: the link is of no use any more.
        """

    def ping(self) -> None:
        """Ask every node for a record that does not exist.

        Raises:
            CacheUnreachableError: a node did not answer.
            CacheError: a node refused.
        """

    def close(self) -> None:
        """Close all connections."""


class OpenLink(Protocol):
    """Opens a link, as :func:`open_link` does."""

    def __call__(self, address: CacheAddress, credentials: Credentials, *, timeout_s: float) -> CacheLink:
        """See :func:`open_link`."""


class NodeLink:
    """One node, over one connection."""

    def __init__(self, connection: CacheConnection) -> None:
        self.connection = connection
        self.out_of_memory = False

    @property
    def connected(self) -> bool:
        """True: whoever finds the connection broken closes the link."""
        return True

    def gather(self, wanted: Wanted, offsets: Sequence[int], *, left_s: float) -> None:  # a lost link raises
        """See :class:`CacheLink`."""
        self.connection.limit_wait(left_s)
        gather(Share(self.connection, wanted, offsets), wanted)
        self.out_of_memory = any(map(is_for_memory, self.connection.late_errors))
        self.connection.late_errors.clear()

    def report(self, stream: bytes, command: bytes) -> None:  # noqa: ARG002 # there is one node for all
        """See :class:`CacheLink`."""
        self.connection.owed += 1  # first: an answer that nobody expects would be taken for a sample's
        self.connection.send(command)

    def ping(self) -> None:
        """See :class:`CacheLink`."""
        ping(self.connection)

    def close(self) -> None:
        """See :class:`CacheLink`."""
        self.connection.close()


def open_link(address: CacheAddress, credentials: Credentials, *, timeout_s: float) -> CacheLink:
    """Connect to the cache at ``address``, and learn which nodes it has.

    Args:
        address: a single node, or any of a cluster.
        credentials: the same for all nodes.
        timeout_s: bound of the connect and of each wait, in seconds.

    Raises:
        CacheUnreachableError: nobody answered, or not in time.
        CacheError: the cache refused credentials, certificate or database.
        ConfigError: the files named for TLS cannot be used.
    """
    nodes = Nodes(address, credentials)
    first = nodes.open(nodes.home, timeout_s=timeout_s)
    try:
        slots = learn_slots(first, nodes.home)
    except BaseException:
        first.close()
        raise
    return NodeLink(first) if slots is None else ClusterLink(nodes, first, slots)
