"""The cache's servers, asked by the client that readers and functions have: in threads, since it blocks.

While a call lasts, it has a thread and connections of its own. Which node has a key, redirections, and a
second attempt where a connection breaks are :mod:`superdl.super_wire.cache`'s.
"""

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

__all__ = ["CacheNodes", "Master", "Words", "string"]

Words: TypeAlias = "tuple[bytes | str | int, ...]"
"""A command."""

_CALLS_MAX = 64
_TIMEOUT_S = 10.0
_SLOTS_TIMEOUT_S = 5.0

_Value = TypeVar("_Value")


class Master(NamedTuple):
    """A server that holds records, and how many of a cluster's slots; 1 of 1 where it is alone."""

    node: Node
    slots: int


class CacheNodes:
    """All servers behind one address; used from one event loop.

    Args:
        address: any node's, without credentials.
        credentials: the same for all nodes.

    Raises:
        ConfigError: the address or the certificates cannot be used.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._address, self._credentials = CacheAddress.parse(address), credentials
        self._threads = CallingThreads(_CALLS_MAX, "super-cache")
        self._idle = [NodeConnections(self._address, credentials)]
        self._closed = False
        self._slots: tuple[SlotMap | None] | None = None
        """Who has which slot, as it was told last: a new connection need not ask a node that may hang."""

    async def each(self, keys: Sequence[bytes], commands: Sequence[Words]) -> list[Any]:
        """What the cache answers to each command, or why it does not; ``keys`` say which node each is for.

        Commands may be sent twice.
        """
        sent = [Command.of(key, *map(_as_bytes, words)) for key, words in zip(keys, commands, strict=True)]
        return await self._run(lambda nodes: exchange(nodes, sent, timeout_s=_TIMEOUT_S))

    async def one(self, key: bytes, *words: bytes | str | int) -> Any:
        """The reply to one command; raises as :meth:`checked`."""
        (reply,) = self.checked(await self.each([key], [words]))
        return reply

    async def unlink(self, keys: Sequence[bytes]) -> None:
        """Delete keys, by one command where one server is known to have them all."""
        commands: list[Words] = [("UNLINK", *keys)]
        if self._slots != (None,):
            commands = [("UNLINK", key) for key in keys]
        self.checked(await self.each(keys[: len(commands)], commands))

    def checked(self, answers: Sequence[Any]) -> Sequence[Any]:
        """Answers of which each is a reply.

        Raises:
            CacheUnreachableError: a node does not answer, or not for now; nothing is known of any command.
            CacheError: a node refuses a command, or the connection.
        """
        for answer in answers:
            if isinstance(answer, CacheError):
                raise answer
            if isinstance(answer, ErrorReply):
                raise refusal(self.address, answer.text)
        return answers

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """A reply of another shape than was asked for is a lost connection, as one is that is no reply: it
        must not end a coordinator.
        """
        try:
            yield
        except SuperError:
            raise
        except Exception as error:
            raise CacheUnreachableError(
                f"the cache at {self.address} answers what is no reply: {type(error).__name__}: {error}"
            ) from error

    async def masters(self, *, afresh: bool = False) -> list[Master]:
        """Who holds records, in a lasting order; ``afresh``: as the cluster says now."""

        def look(nodes: NodeConnections) -> list[Master]:
            if nodes.stale or (afresh and nodes.slots is not None):
                nodes.refresh(_SLOTS_TIMEOUT_S)
            if nodes.slots is None:
                return [Master(nodes.home, 1)]
            counts = Counter(owner for owner in nodes.slots.owners if owner >= 0)
            places = enumerate(nodes.slots.nodes)
            return sorted(Master(nodes.place(node), counts[place]) for place, node in places)

        return await self._run(look)

    async def at(self, node: Node, *commands: Words) -> list[Any]:
        """The replies of one node to commands that have no key; raises as :meth:`checked`."""
        sent = [[*map(_as_bytes, words)] for words in commands]

        def ask(nodes: NodeConnections) -> list[Any]:
            try:
                return nodes.connection(node).converse(*sent, timeout_s=_TIMEOUT_S)
            except CacheUnreachableError as error:  # a connection may have broken while it was idle
                nodes.lose(node, str(error))
            return nodes.connection(node).converse(*sent, timeout_s=_TIMEOUT_S)

        return [*self.checked(await self._run(ask))]

    async def close(self) -> None:
        """Close all connections, and give up what is under way: its connections are closed when it ends."""
        self._closed = True
        self._threads.close(CacheUnreachableError(f"the connection to {self.address} is closed"))
        while self._idle:
            self._idle.pop().close()

    async def _run(self, work: Callable[[NodeConnections], _Value]) -> _Value:
        def call() -> _Value:
            nodes = self._taken()
            try:
                return work(nodes)
            except BaseException:
                nodes.close()  # replies to this call may still come
                raise
            finally:
                self._give_back(nodes)

        return await self._threads.run(call)

    def _taken(self) -> NodeConnections:
        try:
            nodes = self._idle.pop()
        except IndexError:
            nodes = NodeConnections(self._address, self._credentials)
            if self._slots is not None:
                (nodes.slots,), nodes.stale = self._slots, False
        nodes.renew()
        return nodes

    def _give_back(self, nodes: NodeConnections) -> None:
        if not nodes.stale:
            self._slots = (nodes.slots,)
        if self._closed:
            nodes.close()
        else:
            self._idle.append(nodes)


def string(reply: Any) -> bytes:
    """A reply that must be a string; ``TypeError`` if it is something else."""
    if not isinstance(reply, bytes):
        raise TypeError(f"{str(reply)[:40]!r} instead of a string")
    return reply


def _as_bytes(word: bytes | str | int) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
