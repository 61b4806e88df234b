"""The cache's servers as one: a command goes to the node that has its key's slot.

Whether an address is a cluster's the server itself tells (``INFO cluster``), at the first command. A single
server is sent everything, at no further cost. In a cluster the commands of one call go to all nodes at once;
redirections are followed, a bounded number of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from superdl.super_wire.cache import CacheAddress, Node, key_slot, parse_slots
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError, SuperError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.cache import Credentials, SlotMap

__all__ = ["CacheNodes", "Command", "Master"]

Command: TypeAlias = "tuple[Any, ...]"

_TIMEOUT_S = 10.0
_SLOTS_TIMEOUT_S = 2.0
_MAX_ROUNDS = 6
_UNKNOWN_HOST = "127.0.0.1"  # of a node on a unix socket, where a slot map gives none
_LOGIN_ERRORS = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
_REFUSED_FOR_NOW = (redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError)


class Master(NamedTuple):
    """A server that holds records, and how many of a cluster's slots; 1 of 1 where it is alone."""

    node: Node
    slots: int


class _Destination(NamedTuple):
    node: Node
    asking: bool = False


class CacheNodes:
    """Clients of all servers behind one address, made as they are needed.

    Args:
        address: any node's, ``redis://``, ``rediss://`` or ``unix://``, without credentials. RESP2 is spoken
            whatever it asks for: every server knows that.
        credentials: the same for all nodes.

    Raises:
        ConfigError: the address or the certificates cannot be used.
    """

    def __init__(self, address: str, credentials: Credentials) -> None:
        self.address = address
        self._address = CacheAddress.parse(address)
        self._credentials = credentials
        if self._address.tls:
            credentials.tls_context()  # see now whether the files can be used
        self._first = Node(self._address.host or _UNKNOWN_HOST, self._address.port)
        self._clients = {self._first: self._client(self._address)}
        self._slots: SlotMap | None = None
        self._asked = False
        self._out_of_date = False
        self._silent: set[Node] = set()  # asked for slots last

    async def each(self, keys: Sequence[bytes], commands: Sequence[Command]) -> list[Any]:
        """The replies to commands, in order; what a server says against one stands in its place.

        ``keys`` say which node each command is for; commands are as redis-py takes them.

        Raises:
            CacheUnreachableError: a node does not answer, or not for now; nothing is known of any command.
            CacheError: a node refuses the connection.
        """
        if not await self._is_cluster():
            replies = await self._pipeline(_Destination(self._first), commands)
            if not any(isinstance(reply, redis.exceptions.AskError) for reply in replies):
                return replies
            await self._learn_slots()  # a cluster is there now
        replies = [None] * len(commands)
        destinations = {index: self._destination(key) for index, key in enumerate(keys)}
        for _ in range(_MAX_ROUNDS):
            replies, destinations = await self._round(commands, replies, destinations)
            if not destinations:
                return replies
        raise CacheUnreachableError(
            f"the cluster at {self.address} sends {len(destinations)} commands on from node to node"
        )

    async def one(self, key: bytes, *command: Any) -> Any:
        """The reply to one command; errors as of :meth:`each`, or the server refuses the command."""
        if not await self._is_cluster():
            with self.errors():
                client: Any = self._clients[self._first]
                return await client.execute_command(*command)
        (reply,) = self.checked(await self.each([key], [command]))
        return reply

    async def unlink(self, keys: Sequence[bytes]) -> None:
        """Delete keys, by one command where one server has them all, else by one each."""
        if await self._is_cluster():
            self.checked(await self.each(keys, [("UNLINK", key) for key in keys]))
        else:
            await self.one(keys[0], "UNLINK", *keys)

    async def masters(self, *, afresh: bool = False) -> list[Master]:
        """Who holds records, in a lasting order; ``afresh``: as the cluster says now."""
        if not await self._is_cluster() or self._slots is None:
            return [Master(self._first, 1)]
        if self._out_of_date or afresh:
            await self._learn_slots()
        counts = Counter(owner for owner in self._slots.owners if owner >= 0)
        return sorted(Master(node, counts[place]) for place, node in enumerate(self._slots.nodes))

    async def at(self, node: Node, *command: Any) -> Any:
        """The reply of one node to a command that has no key; ``CacheError`` as of :meth:`one`."""
        (reply,) = self.checked(await self._pipeline(_Destination(node), [command]))
        return reply

    def checked(self, replies: Sequence[Any]) -> Sequence[Any]:
        """Replies of which none is what a server says against a command; else a :class:`CacheError`."""
        for reply in replies:
            if isinstance(reply, Exception):
                with self.errors():
                    raise reply
        return replies

    async def close(self) -> None:
        """Close all connections."""
        while self._clients:
            await self._clients.popitem()[1].aclose()

    @contextlib.contextmanager
    def errors(self, node: Node | None = None) -> Iterator[None]:
        """Map redis-py's errors to ours; each names the address. A cancellation stays one.

        What it raises out of its own types, and what a reply of another shape than was asked for raises
        here, is a lost connection too: one garbled reply must not end a coordinator.
        """
        at = self.address
        if node is not None and node != self._first:
            at = str(self._address.node(node.host, node.port))
        try:
            yield
        except SuperError:
            raise
        except _REFUSED_FOR_NOW as error:
            raise CacheUnreachableError(f"the cache at {at} does not serve for now: {error}") from error
        except redis.exceptions.ResponseError as error:
            raise _refused(at, error) from error
        except (redis.exceptions.RedisError, OSError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # closing the connection failed, and hid the reason
            raise _lost(at, error) from error
        except Exception as error:
            raise CacheUnreachableError(
                f"the cache at {at} answers what is no reply: {type(error).__name__}: {error}"
            ) from error

    def _client(self, address: CacheAddress) -> redis.asyncio.Redis:
        given = self._credentials
        options: dict[str, Any] = {"host": address.host, "port": address.port}
        if address.path:
            options = {"unix_socket_path": address.path}
        if address.tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": given.ca_file or None,
                "ssl_certfile": given.cert_file or None,
                "ssl_keyfile": given.key_file or None,
                "ssl_min_version": ssl.TLSVersion.TLSv1_2,
                "ssl_check_hostname": True,  # redis-py's own default before 6.0 is not to
            }
        return redis.asyncio.Redis(
            **options,
            db=address.db,
            username=given.username or None,
            password=given.password or None,
            socket_connect_timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),  # once, for a connection that broke while it was idle
            protocol=2,
        )

    def _client_of(self, node: Node) -> redis.asyncio.Redis:
        if node not in self._clients:
            address = self._address.node(node.host, node.port)
            try:
                self._credentials.check_encrypted(address)
            except ConfigError as error:
                raise ConfigError(f"the cluster at {self.address} has a node elsewhere: {error}") from error
            self._clients[node] = self._client(address)
        return self._clients[node]

    async def _is_cluster(self) -> bool:
        if not self._asked:
            with self.errors():
                said: dict[str, Any] = await self._clients[self._first].info("cluster")
                is_cluster = bool(int(said["cluster_enabled"]))
            if is_cluster:
                await self._learn_slots()
            self._asked = True
        return self._slots is not None

    def _destination(self, key: bytes) -> _Destination:
        node = self._slots.node_of(key_slot(key)) if self._slots is not None else None
        if node is None:
            self._out_of_date = True
            raise CacheUnreachableError(f"no node of the cluster at {self.address} has slot {key_slot(key)}")
        return _Destination(node)

    async def _round(
        self, commands: Sequence[Command], replies: list[Any], destinations: dict[int, _Destination]
    ) -> tuple[list[Any], dict[int, _Destination]]:
        """Send what is left, all nodes at once; the replies, and what was sent elsewhere."""
        if self._out_of_date:
            await self._learn_slots()
        groups: dict[_Destination, list[int]] = {}
        for index, destination in destinations.items():
            groups.setdefault(destination, []).append(index)
        calls = [self._pipeline(to, [commands[index] for index in group]) for to, group in groups.items()]
        answers = await asyncio.gather(*calls, return_exceptions=True)  # none goes on behind our back
        left: dict[int, _Destination] = {}
        for (to, group), answer in zip(groups.items(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            for index, reply in zip(group, answer, strict=True):
                replies[index] = reply
                if isinstance(reply, redis.exceptions.AskError):  # MovedError is one, too
                    moved = isinstance(reply, redis.exceptions.MovedError)
                    self._out_of_date |= moved
                    left[index] = _Destination(Node(reply.host or to.node.host, reply.port), not moved)
                elif isinstance(reply, _REFUSED_FOR_NOW):
                    self._out_of_date = True
                    self.checked([reply])
        return replies, left

    async def _pipeline(self, to: _Destination, commands: Sequence[Command]) -> list[Any]:
        client = self._client_of(to.node)
        try:
            with self.errors(to.node):
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    if to.asking:
                        pipeline.execute_command("ASKING")
                    pipeline.execute_command(*command)
                replies: list[Any] = await pipeline.execute(raise_on_error=False)
        except (CacheUnreachableError, asyncio.CancelledError) as error:  # somebody may have lost patience
            self._out_of_date |= self._slots is not None and isinstance(error, CacheUnreachableError)
            self._silent.add(to.node)
            raise
        return replies[1::2] if to.asking else replies

    async def _learn_slots(self) -> None:
        """Ask one node after the other for the slot map, those that did not answer lately last.

        Raises:
            CacheError: none tells it.
        """
        known = self._slots.nodes if self._slots is not None else ()
        reason: CacheError | None = None
        for node in sorted({*known, self._first}, key=lambda node: (node in self._silent, node)):
            try:
                # A node that hangs must not keep the others from telling: the lock on them runs out.
                with self.errors(node):
                    async with asyncio.timeout(_SLOTS_TIMEOUT_S):
                        client: Any = self._client_of(node)
                        reply = await client.execute_command("CLUSTER", "SLOTS")
                    self._slots = parse_slots(reply, node)
            except CacheError as error:
                self._silent.add(node)
                reason = reason or error
            else:
                self._silent.discard(node)
                self._out_of_date = False
                return
        if reason is not None:
            raise reason


def _lost(at: str, error: BaseException) -> CacheError:
    # Over a unix socket redis-py hides the refusal of a login behind a ConnectionError.
    for reason in (error, error.__cause__, error.__context__):
        if isinstance(reason, _LOGIN_ERRORS):
            return _refused(at, reason)
        if isinstance(reason, ssl.SSLCertVerificationError):
            return CacheError(
                f"the certificate of the cache at {at} is not to be trusted: {reason.verify_message}; "
                "SUPER_CACHE_CA_FILE names the authority that it must come from"
            )
    return CacheUnreachableError(f"the cache at {at} does not answer: {error}")


def _refused(at: str, reason: BaseException) -> CacheError:
    remedy = ""
    if isinstance(reason, redis.exceptions.NoPermissionError):
        remedy = " (docs/cache.md has the rights that a coordinator's user needs)"
    elif isinstance(reason, _LOGIN_ERRORS):
        remedy = " (set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD where the coordinator runs)"
    return CacheError(f"the cache at {at} refuses: {reason}{remedy}")
