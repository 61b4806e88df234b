"""Asks the cache which samples it has, by the headers of their records alone: no pixels travel.

It goes as a reader goes, with a reader's credentials, to one server or to all masters of a cluster; one
question for many samples. A reader's user needs ``GETRANGE`` for it, see docs/cache.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_dataset.reading.nodes import Nodes, learn_slots
from superdl.super_dataset.reading.refusals import is_passing, is_redirection
from superdl.super_wire.address import CacheAddress, Credentials
from superdl.super_wire.cluster import Node, SlotMap, key_slot
from superdl.super_wire.errors import CacheError, CacheUnreachableError, RecordError
from superdl.super_wire.keys import cache_key, cache_keys, report_stream
from superdl.super_wire.record import (
    HEADER_BYTES,
    HEADER_DTYPE,
    MAGIC,
    RECORD_VERSION,
    Kind,
    Tombstone,
    id_prefixes,
    read_tombstone,
)
from superdl.super_wire.report import REPORT_STREAM_MAXLEN, ReadReport
from superdl.super_wire.resp import ErrorReply, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.connection import CacheConnection

__all__ = ["HeaderLink", "Seen"]

_CONNECT_S = 5.0
_LAST = b"%d" % (HEADER_BYTES - 1)


@dataclass(slots=True)
class Seen:
    """What became of asking for some samples, by their offsets.

    What is in none of these could not be asked for now; ``trouble`` says why.
    """

    present: dict[int, int] = field(default_factory=dict)
    """Offset: length of the record."""
    tombstones: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    corrupt: list[int] = field(default_factory=list)
    """A part of ``absent``: something is there that is no record."""
    trouble: str = ""


class HeaderLink:
    """Connections to the cache's nodes, opened when they are needed; used by one thread.

    Args:
        cache: the address, as the coordinator tells it.
    """

    def __init__(self, cache: str) -> None:
        address = CacheAddress.parse(cache)
        self._cache = cache
        self._nodes = Nodes(address, Credentials.from_environment(os.environ))
        self._open: dict[Node, CacheConnection] = {}
        self._slots: SlotMap | None = None
        self._asked_slots = False

    def look(self, sample_ids: bytes, offsets: Sequence[int]) -> Seen:
        """Which of the samples at ``offsets`` are there.

        Raises:
            CacheError: the cache refuses, for good.
        """
        seen, keys = Seen(), cache_keys(sample_ids)
        try:
            groups = self._by_node([keys[offset] for offset in offsets], offsets)
        except CacheUnreachableError as error:
            self.close()
            seen.trouble = str(error)
            return seen
        for node, mine in groups.items():
            commands = [(b"GETRANGE", keys[offset], b"0", _LAST) for offset in mine]
            try:
                answers = self._connection(node).converse(*commands)
            except CacheUnreachableError as error:
                self._drop(node)
                seen.trouble = str(error)
                continue
            self._sort(seen, sample_ids, mine, answers)
        return seen

    def tombstone(self, sample_id: bytes) -> Tombstone | None:
        """Why a sample failed; ``None`` if that is no longer to be read."""
        key = cache_key(sample_id)
        try:
            (node,) = self._by_node([key], [0])
            (answer,) = self._connection(node).converse((b"GET", key))
        except CacheUnreachableError:
            self.close()
            return None
        if not isinstance(answer, bytes):
            return None
        try:
            return read_tombstone(answer)
        except RecordError:
            return None

    def report(self, job: str, report: ReadReport) -> None:
        """Leave a read report; its loss is harmless, a refusal is not.

        Raises:
            CacheError: the cache refuses.
        """
        stream = report_stream(job)
        words = [word for pair in report.to_fields().items() for word in pair]
        bound = (b"MAXLEN", b"~", b"%d" % REPORT_STREAM_MAXLEN, b"*")
        try:
            (node,) = self._by_node([stream], [0])
            (answer,) = self._connection(node).converse((b"XADD", stream, *bound, *words))
        except CacheUnreachableError:
            self.close()
            return
        if isinstance(answer, ErrorReply):
            self._heed(answer.text)

    def close(self) -> None:
        """Close all connections, and forget which nodes there are."""
        for node in list(self._open):
            self._drop(node)
        self._asked_slots = False

    def _sort(self, seen: Seen, sample_ids: bytes, offsets: Sequence[int], answers: Sequence[Reply]) -> None:
        headers, found = [], []
        for offset, answer in zip(offsets, answers, strict=True):
            if isinstance(answer, ErrorReply):
                if answer.text.startswith("WRONGTYPE"):
                    seen.absent.append(offset)
                    seen.corrupt.append(offset)
                else:
                    seen.trouble = self._heed(answer.text)
            elif not isinstance(answer, bytes) or not answer:
                seen.absent.append(offset)
            elif len(answer) != HEADER_BYTES:
                seen.absent.append(offset)
                seen.corrupt.append(offset)
            else:
                headers.append(answer)
                found.append(offset)
        for offset, kind, size in zip(found, *_read(headers, id_prefixes(sample_ids)[found]), strict=True):
            if kind == Kind.DATA:
                seen.present[offset] = HEADER_BYTES + size
            elif kind == Kind.TOMBSTONE:
                seen.tombstones.append(offset)
            else:
                seen.absent.append(offset)
                seen.corrupt.append(offset)

    def _heed(self, text: str) -> str:
        """An error reply that passes by itself, as a phrase.

        Raises:
            CacheError: it does not pass.
        """
        if is_redirection(text):
            self._asked_slots = False
            return f"slots of the cluster are being moved ({text})"
        if is_passing(text):
            return text
        if text.startswith("NOPERM"):
            raise CacheError(
                f"the cache at {self._cache} refused: {text} (superdl warm needs GETRANGE on super:r1:* and "
                "XADD on super:n1:*: docs/cache.md has a reader's user)"
            )
        raise CacheError(f"the cache at {self._cache} refused: {text}")

    def _by_node(self, keys: Sequence[bytes], offsets: Sequence[int]) -> dict[Node, list[int]]:
        if not self._asked_slots:
            self._learn_slots()
        groups: dict[Node, list[int]] = {}
        for key, offset in zip(keys, offsets, strict=True):
            node = self._slots.node_of(key_slot(key)) if self._slots is not None else None
            groups.setdefault(node if node is not None and node.host else self._nodes.home, []).append(offset)
        return groups

    def _learn_slots(self) -> None:
        """Have the slot map told by any node that answers.

        Raises:
            CacheUnreachableError: none does.
        """
        home = self._nodes.home
        known = (home, *(self._slots.nodes if self._slots is not None else ()))
        reason: CacheUnreachableError | None = None
        for node in dict.fromkeys(node if node.host else home for node in known):
            try:
                self._slots = learn_slots(self._connection(node), node)
            except CacheUnreachableError as error:
                self._drop(node)
                reason = reason or error
            else:
                self._asked_slots = True
                return
        raise reason or CacheUnreachableError(f"the cache at {self._cache} has no nodes")

    def _connection(self, node: Node) -> CacheConnection:
        if node not in self._open:
            self._open[node] = self._nodes.open(node, timeout_s=_CONNECT_S)
        return self._open[node]

    def _drop(self, node: Node) -> None:
        connection = self._open.pop(node, None)
        self._asked_slots = False
        if connection is not None:
            connection.close()


def _read(headers: Sequence[bytes], prefixes: NDArray[np.uint64]) -> tuple[list[int], list[int]]:
    """Kinds, 0 for what is no record of ours or another sample's, and payload bytes."""
    table: NDArray[np.void] = np.frombuffer(b"".join(headers), dtype=HEADER_DTYPE)
    ours = (table["magic"] == MAGIC) & (table["version"] == RECORD_VERSION)
    ours &= table["id_prefix"] == prefixes
    return np.where(ours, table["kind"], 0).tolist(), table["payload_bytes"].tolist()
