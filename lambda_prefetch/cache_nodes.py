"""The cache as one, however many nodes it has: records go to the node that has their slot.

Whether a cache is a cluster its first node tells, when it is connected to. A single node is sent everything,
at no further cost. In a cluster redirections are followed, a bounded number of times, and a node that is down
fails its own records alone. Connections are :mod:`superdl.lambda_prefetch.cache_connection`'s, threads and
what an invocation is :mod:`superdl.lambda_prefetch.push`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.cache_connection import EXCHANGE_TIMEOUT_S, CacheConnection, WrongPasswordError
from superdl.lambda_prefetch.cache_secret import cache_secret
from superdl.super_wire.address import CacheAddress
from superdl.super_wire.cluster import Node, key_slot, parse_redirection, parse_slots
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from superdl.super_wire.resp import ErrorReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.lambda_prefetch.cache_connection import CacheRecord
    from superdl.super_wire.address import Credentials
    from superdl.super_wire.cluster import Redirection, SlotMap
    from superdl.super_wire.resp import Reply

__all__ = ["CacheNodes"]

_MAX_ROUNDS = 6
"""How often what was redirected, or lost with a connection, is sent again within one exchange."""

_MAP_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 5.0
_GRACE_S = 2.0  # for nodes that are well, when another one has used the exchange's time up
_UNKNOWN_HOST = "127.0.0.1"  # of a node on a unix socket, where a slot map gives none


class CacheNodes:
    """Connections to all nodes of a cache, opened as they are needed.

    Args:
        url: any node's address, never with credentials.
        credentials: the same for all nodes.
        secret: the name of the secret that has user and password, if they are not among the credentials.

    Raises:
        ConfigError: the address is none, or the certificates cannot be used.
        CacheUnreachableError: nobody answers there.
        CacheError: the cache refuses, for example the credentials; or the secret cannot be read.
    """

    def __init__(self, url: str, credentials: Credentials, secret: str = "") -> None:
        self.url = url
        self._address = CacheAddress.parse(url)
        self._secret = cache_secret(secret) if secret else None
        self._credentials = self._secret.credentials(credentials) if self._secret else credentials
        self._tls = credentials.tls_context() if self._address.tls else None
        self._first = Node(self._address.host or _UNKNOWN_HOST, self._address.port)
        connection = self._connected(self._address)
        self._connections = {self._first: connection}
        self._broken: dict[Node, str] = {}
        self._reopened: set[Node] = set()
        try:
            self._slots = None if self._address.db else self._asked_slots(self._first, connection)
        except BaseException:
            connection.close()
            raise

    def renew(self) -> None:
        """Another invocation begins: nodes that broke in the last one may be tried again."""
        self._broken.clear()
        self._reopened.clear()

    def close(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.popitem()[1].close()

    def store(self, records: Sequence[CacheRecord]) -> list[str]:
        """SET every record at its node and wait for all acknowledgements.

        Returns:
            For each record the empty text if it was acknowledged, else the reason, in the cache's own words
            where it gave one.

        Raises:
            CacheUnreachableError: the only node, or every node of the cluster, does not answer.
            CacheError: the only node answered something that is no answer to a SET.
        """
        if self._slots is None:
            return self._connections[self._first].store(records)
        if self._broken and self._broken.keys() >= set(self._slots.nodes):
            raise CacheUnreachableError("; ".join(self._broken.values()))
        return _Exchange(self, records).run()

    def ask(self, key: bytes, *words: bytes) -> Reply:
        """The answer to one small command at the node that has ``key``; an error that it answers is returned.

        Redirections are followed. In a cluster a command whose connection breaks is sent once more, so it
        must be one that may be repeated.

        Raises:
            CacheUnreachableError: no node that has the key answers.
            CacheError: the answer is not of the Redis protocol.
        """
        if self._slots is None:
            return self._connections[self._first].ask(*words, timeout_s=_ASK_TIMEOUT_S)
        redirected: Redirection | None = None
        why = ""
        for _ in range(_MAX_ROUNDS):
            node = redirected.node if redirected else self.node_of(key)
            asking = redirected is not None and redirected.kind == "ASK"
            try:
                reply = self._asked_at(node, key, words, asking=asking)
            except CacheError as error:
                why, redirected = str(error), None
                if node is None or self.why_broken(node):
                    break
                self.learn_slots()
                continue
            redirected = (
                parse_redirection(reply.text, node) if isinstance(reply, ErrorReply) and node else None
            )
            if redirected is None:
                return reply
            why = f"it was sent on to {redirected.node}"
            if redirected.kind == "MOVED":
                self.learn_slots(redirected.node)
        msg = f"the cluster at {self.url} does not take a {words[0].decode()}: {why}"
        raise CacheUnreachableError(msg)

    def _asked_at(self, node: Node | None, key: bytes, words: tuple[bytes, ...], *, asking: bool) -> Reply:
        """The answer of one node; a connection that fails is dropped."""
        if node is None:
            msg = f"no node of the cluster at {self.url} has slot {key_slot(key)}"
            raise CacheUnreachableError(msg)
        if why := self.why_broken(node):
            raise CacheUnreachableError(why)
        connection = self.connection(node)
        try:
            if asking:
                connection.ask(b"ASKING", timeout_s=_ASK_TIMEOUT_S)
            return connection.ask(*words, timeout_s=_ASK_TIMEOUT_S)
        except CacheError as error:
            self.drop(node, connection, str(error))
            raise

    def node_of(self, key: bytes) -> Node | None:
        """The node that has a key's slot, as far as is known."""
        return self._slots.node_of(key_slot(key)) if self._slots is not None else None

    def why_broken(self, node: Node) -> str:
        """Why a node is not tried any more in this invocation; empty if it is."""
        return self._broken.get(node, "")

    def connection(self, node: Node) -> CacheConnection:
        """The connection to a node of the cluster, opened if need be.

        Raises:
            CacheError: it cannot be opened, and is not tried again in this invocation.
        """
        if node not in self._connections:
            address = self._address.node(node.host, node.port)
            try:
                self._connections[node] = self._connected(address)
            except CacheError as error:
                self._broken[node] = str(error)
                raise
            except ConfigError as error:  # it is beyond loopback, and the way there is not encrypted
                self._broken[node] = str(error)
                raise CacheError(str(error)) from error
        return self._connections[node]

    def _connected(self, address: CacheAddress) -> CacheConnection:
        """A new connection; where the password comes from a secret, it may have changed since."""
        try:
            return CacheConnection(address, self._credentials, self._tls)
        except WrongPasswordError:
            renewed = self._secret.renewed(self._credentials) if self._secret else None
            if renewed is None:
                raise
        self._credentials = renewed
        return CacheConnection(address, renewed, self._tls)

    def drop(self, node: Node, connection: CacheConnection, why: str) -> None:
        """Close a connection that failed; the node gets another one, once per invocation."""
        connection.close()
        if self._connections.get(node) is connection:
            del self._connections[node]
            if node in self._reopened:
                self._broken[node] = why
            self._reopened.add(node)

    def learn_slots(self, named: Node | None = None) -> None:
        """Ask the nodes, one after the other, for the slot map until one tells it; else the old one stays.

        To be called only while no answer is outstanding.

        Args:
            named: the node to ask first.
        """
        known = self._slots.nodes if self._slots is not None else ()
        nodes = dict.fromkeys([*([named] if named else []), *self._connections, *known, self._first])
        for node in nodes:
            slots = None if node in self._broken else self._told_slots(node)
            if slots is not None:
                self._slots = slots
                for gone in self._connections.keys() - set(slots.nodes) - {node}:
                    self._connections.pop(gone).close()
                return

    def _told_slots(self, node: Node) -> SlotMap | None:
        """The slot map as a node tells it, if it does."""
        try:
            connection = self.connection(node)
        except CacheError:
            return None
        try:
            return self._asked_slots(node, connection)
        except CacheError as error:
            self.drop(node, connection, str(error))
            return None

    def _asked_slots(self, node: Node, connection: CacheConnection) -> SlotMap | None:
        """The slot map; ``None`` if this is no cluster, or may not be asked."""
        reply = connection.ask(b"CLUSTER", b"SLOTS", timeout_s=_MAP_TIMEOUT_S)
        if isinstance(reply, ErrorReply):
            return None
        try:
            return parse_slots(reply, node)
        except ValueError as error:
            msg = f"the cache at {connection.address} tells no slots: {error}"
            raise CacheError(msg) from error


class _Exchange:
    """Records on their way to their nodes, in rounds; every answer of a round is taken before the next."""

    def __init__(self, nodes: CacheNodes, records: Sequence[CacheRecord]) -> None:
        self._nodes = nodes
        self._records = records
        self._deadline = time.monotonic() + EXCHANGE_TIMEOUT_S
        self._refusals = ["it was not sent"] * len(records)
        self._redirected: dict[int, tuple[Node, bool]] = {}  # to whom, and whether by ASK
        self._failed: set[int] = set()  # with their connection, which says nothing of them
        self._slots_are_old = False

    def run(self) -> list[str]:
        """What became of each record, as :meth:`CacheNodes.store` tells it."""
        left = list(range(len(self._records)))
        for _ in range(_MAX_ROUNDS):
            groups = self._grouped(left)
            self._redirected, self._failed = {}, set()
            sent = {to: self._send(*to, group) for to, group in groups.items()}
            for to, group in groups.items():
                connection = sent[to]
                if connection is not None:
                    self._take_answers(*to, group, connection)
            if self._slots_are_old:
                named = next((node for node, _ in self._redirected.values()), None)
                self._nodes.learn_slots(named)
                self._slots_are_old = False
            left = [*self._redirected, *filter(self._may_go_again, self._failed)]
            if not left:
                break
        return self._refusals

    def _grouped(self, left: list[int]) -> dict[tuple[Node, bool], list[int]]:
        """The records by node and whether it must be ASKed; those that no node has are refused."""
        places = {index: self._redirected.get(index) or (self._node_of(index), False) for index in left}
        if any(node is None for node, _ in places.values()):
            self._nodes.learn_slots()
            places |= {index: (self._node_of(index), False) for index in left if places[index][0] is None}
        groups: dict[tuple[Node, bool], list[int]] = {}
        for index, (node, asking) in places.items():
            if node is None:
                slot = key_slot(self._records[index][0])
                self._refusals[index] = f"no node of the cluster at {self._nodes.url} has slot {slot}"
            else:
                groups.setdefault((node, asking), []).append(index)
        return groups

    def _send(self, node: Node, asking: bool, group: list[int]) -> CacheConnection | None:  # noqa: FBT001  # half of a key
        """The connection by which the records are on their way, if they are."""
        why = self._nodes.why_broken(node)
        if why:
            self._fail(group, why)
            return None
        try:
            connection = self._nodes.connection(node)
        except CacheError as error:
            self._fail(group, str(error))
            return None
        try:
            connection.send([self._records[index] for index in group], self._until(), asking=asking)
        except CacheError as error:
            self._nodes.drop(node, connection, str(error))
            self._fail(group, str(error))
            return None
        return connection

    def _take_answers(
        self,
        node: Node,
        asking: bool,  # noqa: FBT001  # half of a key
        group: list[int],
        connection: CacheConnection,
    ) -> None:
        try:
            answers = connection.answers(len(group), self._until(), asking=asking)
        except CacheError as error:
            self._nodes.drop(node, connection, str(error))
            self._fail(group, str(error))
            return
        for index, answer in zip(group, answers, strict=True):
            self._refusals[index] = answer
            redirection = parse_redirection(answer, node) if answer else None
            if redirection is not None:
                self._redirected[index] = (redirection.node, redirection.kind == "ASK")
                self._slots_are_old |= redirection.kind == "MOVED"

    def _fail(self, group: list[int], why: str) -> None:
        for index in group:
            self._refusals[index] = why
        self._failed.update(group)
        self._slots_are_old = True  # perhaps another node has their slots by now

    def _may_go_again(self, index: int) -> bool:
        """A SET may be repeated: equal ids, equal bytes."""
        node = self._node_of(index)
        return node is not None and not self._nodes.why_broken(node)

    def _node_of(self, index: int) -> Node | None:
        return self._nodes.node_of(self._records[index][0])

    def _until(self) -> float:
        return max(self._deadline, time.monotonic() + _GRACE_S)
