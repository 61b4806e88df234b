"""Access to the cache servers. The client blocks, so each call runs in a thread with its own connections."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from superdl.super_wire.cache import (
    CacheAddress,
    Command,
    ErrorReply,
    Node,
    NodeConnections,
    exchange,
    refusal,
)
from superdl.super_wire.cancelling import CallingThreads
from superdl.super_wire.errors import CacheError, CacheUnreachableError, SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.super_wire.cache import Credentials, SlotMap

Words: TypeAlias = "tuple[bytes | str | int, ...]"

_CALLS_MAX = 64
_TIMEOUT_S = 10.0
_SLOTS_TIMEOUT_S = 5.0

_Value = TypeVar("_Value")


class Master(NamedTuple):
    """A server that holds records, and its cluster slot count (1 for a single server)."""

    node: Node
    slots: int


class CacheNodes:
    """All cache servers, found through the address of any node. Use it on a single event loop.

    Raises ``ConfigError`` if the address or the certificates cannot be used.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._address, self._credentials = CacheAddress.parse(address), credentials
        self._threads = CallingThreads(_CALLS_MAX, "super-cache")
        self._idle = [NodeConnections(self._address, credentials)]
        self._closed = False
        # The latest slot map, because a node may hang when queried for it
        self._slots: tuple[SlotMap | None] | None = None

    async def each(self, keys: Sequence[bytes], commands: Sequence[Words]) -> list[Any]:
        """Send each command, possibly twice, to the node of its key. Return a reply or an error for each."""
        sent = [Command.of(key, *map(_as_bytes, words)) for key, words in zip(keys, commands, strict=True)]
        return await self._run(lambda nodes: exchange(nodes, sent, timeout_s=_TIMEOUT_S))

    async def call(self, key: bytes, *words: bytes | str | int) -> Any:
        """Send a command and return its reply. Raises the same errors as :meth:`checked`."""
        (reply,) = self.checked(await self.each([key], [words]))
        return reply

    async def unlink(self, keys: Sequence[bytes]) -> None:
        """Delete keys, in one command if there is only one server."""
        commands: list[Words] = [("UNLINK", *keys)]
        if self._slots != (None,):  # a cluster refuses commands with keys of several slots
            commands = [("UNLINK", key) for key in keys]
        self.checked(await self.each(keys[: len(commands)], commands))

    def checked(self, replies: Sequence[Any]) -> Sequence[Any]:
        """Return the replies, or raise the first error among them.

        Raises:
            CacheUnreachableError: a node did not respond. The commands may or may not have been executed.
            CacheError: a node rejected a command or the connection.
        """
        for reply in replies:
            if isinstance(reply, CacheError):
                raise reply
            if isinstance(reply, ErrorReply):
                raise refusal(self.address, reply.text)
        return replies

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors from parsing a reply to ``CacheUnreachableError``."""
        try:
            yield
        except SuperError:
            raise
        except Exception as error:
            raise CacheUnreachableError(
                f"the cache at {self.address} sent an invalid reply ({type(error).__name__}: {error})"
            ) from error

    async def masters(self, *, refresh: bool = False) -> list[Master]:
        """Return the servers that hold records, in a stable order. ``refresh`` queries the cluster first."""

        def look(nodes: NodeConnections) -> list[Master]:
            if nodes.stale or (refresh and nodes.slots is not None):
                nodes.refresh(_SLOTS_TIMEOUT_S)
            if nodes.slots is None:
                return [Master(nodes.home, 1)]
            # Owners below 0 are slots without a node.
            counts = Counter(owner for owner in nodes.slots.owners if owner >= 0)
            return sorted(Master(node, counts[index]) for index, node in enumerate(nodes.slots.nodes))

        return await self._run(look)

    async def at(self, node: Node, *commands: Words) -> list[Any]:
        """Send keyless commands to a node and return its replies. Raises what :meth:`checked` raises."""
        sent = [[*map(_as_bytes, words)] for words in commands]

        def send(nodes: NodeConnections) -> list[Any]:
            try:
                return nodes.connection(node).converse(*sent, timeout_s=_TIMEOUT_S)
            except CacheUnreachableError as error:  # the connection may have broken while idle
                nodes.lose(node, str(error))
            return nodes.connection(node).converse(*sent, timeout_s=_TIMEOUT_S)

        return [*self.checked(await self._run(send))]

    async def close(self) -> None:
        """Close all connections. Those of running calls close when the calls finish."""
        self._closed = True
        self._threads.close(CacheUnreachableError(f"the connection to {self.address} is closed"))
        while self._idle:
            self._idle.pop().close()

    async def _run(self, work: Callable[[NodeConnections], _Value]) -> _Value:
        def call() -> _Value:
            try:
                nodes = self._idle.pop()
            except IndexError:
                nodes = NodeConnections(self._address, self._credentials)
                if self._slots is not None:
                    (nodes.slots,), nodes.stale = self._slots, False
            nodes.renew()
            try:
                return work(nodes)
            except BaseException:
                nodes.close()  # replies to this call may arrive later
                raise
            finally:
                if not nodes.stale:
                    self._slots = (nodes.slots,)
                if self._closed:  # while the call ran
                    nodes.close()
                else:
                    self._idle.append(nodes)

        return await self._threads.run(call)


def string(reply: Any) -> bytes:
    """Check that a reply is a string and return it. Raises ``TypeError`` otherwise."""
    if not isinstance(reply, bytes):
        raise TypeError(f"expected a string, got {str(reply)[:40]!r}")
    return reply


def _as_bytes(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
