"""Redis Cluster as a client needs it: which slot a key has, which node a slot, and what redirections say.

All of it is pure. Replicas are passed over, since what was just written may not have reached them.
"""

from __future__ import annotations

import re
import reprlib
from array import array
from binascii import crc_hqx
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from superdl.super_wire.cache.resp import Reply

__all__ = ["SLOTS", "Node", "Redirection", "SlotMap", "key_slot", "parse_redirection", "parse_slots"]

SLOTS = 16384
"""Number of slots of every cluster."""

_MAX_PORT = 65535
_MAX_HOST = 253
# Python's resolver answers other texts with a UnicodeError or a ValueError of its own, at the first connect.
_HOST = re.compile(r"[\w:%-]{1,63}(\.[\w:%-]{1,63})*\.?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, eq=False)
class SlotMap:
    """Which master has which slot.

    ``nodes`` are the masters, in the order of their first slots; ``owners`` holds, for each of the
    :data:`SLOTS`, an index into them, or -1 where no master is known.
    """

    nodes: tuple[Node, ...]
    owners: array[int]

    def node_of(self, slot: int) -> Node | None:
        """The master of a slot, if one is known."""
        owner = self.owners[slot]
        return self.nodes[owner] if owner >= 0 else None


@dataclass(frozen=True, slots=True)
class Redirection:
    """A node's word that a slot's keys are asked for elsewhere: from now on, or (``ASK``) this once."""

    kind: Literal["MOVED", "ASK"]
    slot: int
    node: Node


def key_slot(key: bytes) -> int:
    """The slot of a key: CRC-16/XMODEM modulo 16384, of the hash tag alone if the key has one.

    The hash tag is what stands between the first ``{`` and the first ``}`` after it, if that is not empty.
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def parse_slots(reply: Reply, asked: Node) -> SlotMap:
    """The slot map out of an answer to ``CLUSTER SLOTS``.

    Args:
        reply: the answer.
        asked: the node that gave it. A node without a host of its own in the answer is reached at its host.

    Raises:
        ValueError: it is no such answer.
    """
    if not isinstance(reply, list) or len(reply) > SLOTS:  # an entry has a slot of its own
        raise ValueError(f"a slot map is an array of at most {SLOTS} entries; not {reprlib.repr(reply)}")
    places: dict[Node, int] = {}
    owners = array("h", [-1]) * SLOTS
    for item in reply:
        first, last, node = _range(item, asked)
        if node is not None:
            place = places.setdefault(node, len(places))
            owners[first : last + 1] = array("h", [place]) * (last + 1 - first)
    return SlotMap(tuple(places), owners)


def parse_redirection(text: str, asked: Node) -> Redirection | None:
    """What an error reply such as ``MOVED 3999 10.0.0.1:6381`` says; ``None`` if it is no redirection.

    Args:
        text: the error.
        asked: the node that gave it; a redirection without a host means its host.
    """
    kind, slot, place = (*text.split(" "), "", "", "")[:3]
    if kind not in ("MOVED", "ASK"):
        return None
    host, colon, port = place.rpartition(":")
    host = host.strip("[]")
    if not (colon and _is_number(slot, SLOTS - 1) and _is_number(port, _MAX_PORT)):
        return None
    if host and not _is_host(host):  # also "?", of a node that has no name
        return None
    return Redirection("MOVED" if kind == "MOVED" else "ASK", int(slot), Node(host or asked.host, int(port)))


def _range(item: Reply, asked: Node) -> tuple[int, int, Node | None]:
    """First and last slot of one entry, and its master, if the entry tells where that is."""
    match item:
        case [int(first), int(last), master, *_] if 0 <= first <= last < SLOTS:
            return first, last, _master(master, asked)
    raise ValueError(
        f"an entry of a slot map is [first, last, [host, port, ...], ...]; not {reprlib.repr(item)}"
    )


def _master(item: Reply, asked: Node) -> Node | None:
    match item:
        case [None | bytes() as host, int(port), *_] if 0 <= port <= _MAX_PORT:
            if host == b"?" or not port:  # it has no name, or does not listen in the way that we asked
                return None
            name = host.decode(errors="replace") if host else ""
            if not name or _is_host(name):
                return Node(name or asked.host, port)
    raise ValueError(f"a node of a slot map is [host, port, ...]; not {reprlib.repr(item)}")


def _is_host(text: str) -> bool:
    return len(text) <= _MAX_HOST and _HOST.fullmatch(text) is not None


def _is_number(text: str, limit: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(limit)) and int(text) <= limit
