"""Asks the cache which samples it has, by the headers of their records alone: no pixels travel.

It goes as a reader goes, with a reader's credentials, to one server or to all masters of a cluster; one
question for many samples. A reader's user needs ``GETRANGE`` for it, see docs/cache.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_wire.cache import (
    CacheAddress,
    Command,
    Credentials,
    ErrorReply,
    NodeConnections,
    exchange,
    is_passing,
    is_redirection,
)
from superdl.super_wire.errors import CacheError, CacheUnreachableError, RecordError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key, cache_keys, report_stream
from superdl.super_wire.record import HEADER_BYTES, RecordKind, Tombstone, parse_header, read_tombstone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_wire.cache import Reply
    from superdl.super_wire.read_report import ReadReport

__all__ = ["HeaderLink", "Seen"]

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

    def add(self, offset: int, header: bytes, sample_id: bytes) -> None:
        """Something is there that begins so."""
        try:
            told = parse_header(header, sample_id=sample_id)
        except RecordError:
            self.absent.append(offset)
            self.corrupt.append(offset)
            return
        if told.kind is RecordKind.TOMBSTONE:
            self.tombstones.append(offset)
        else:
            self.present[offset] = HEADER_BYTES + told.payload_bytes


class HeaderLink:
    """Connections to the cache's nodes, opened when they are needed; used by one thread.

    Args:
        cache: the address, as the coordinator tells it.
    """

    def __init__(self, cache: str) -> None:
        self._cache = cache
        self._nodes = NodeConnections(CacheAddress.parse(cache), Credentials.from_environment(os.environ))

    def look(self, sample_ids: bytes, offsets: Sequence[int]) -> Seen:
        """Which of the samples at ``offsets`` are there.

        Raises:
            CacheError: the cache refuses, for good.
        """
        seen, keys = Seen(), cache_keys(sample_ids)
        wanted = [Command.of(keys[offset], b"GETRANGE", keys[offset], b"0", _LAST) for offset in offsets]
        for offset, answer in zip(offsets, self._ask(wanted), strict=True):
            if isinstance(answer, CacheError):
                seen.trouble = str(answer)
            elif isinstance(answer, ErrorReply) and not answer.text.startswith("WRONGTYPE"):
                seen.trouble = self._heed(answer.text)
            elif not answer:
                seen.absent.append(offset)
            else:
                sample_id = sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES]
                seen.add(offset, answer if isinstance(answer, bytes) else b"", sample_id)
        return seen

    def tombstone(self, sample_id: bytes) -> Tombstone | None:
        """Why a sample failed; ``None`` if that is no longer to be read."""
        key = cache_key(sample_id)
        (answer,) = self._ask([Command.of(key, b"GET", key)])
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
        (answer,) = self._ask([Command.of(report_stream(job), *report.command(job))])
        if isinstance(answer, ErrorReply):
            self._heed(answer.text)

    def close(self) -> None:
        """Close all connections."""
        self._nodes.close()

    def _ask(self, commands: Sequence[Command]) -> list[Reply | CacheError]:
        """The cache's answers; an error that does not pass by itself is raised."""
        self._nodes.renew()
        answers = exchange(self._nodes, commands)
        for answer in answers:
            if isinstance(answer, CacheError) and not isinstance(answer, CacheUnreachableError):
                raise answer
        return answers

    def _heed(self, text: str) -> str:
        """An error reply that passes by itself, as a phrase.

        Raises:
            CacheError: it does not pass.
        """
        if is_redirection(text):
            return f"slots of the cluster are being moved ({text})"
        if is_passing(text):
            return text
        if text.startswith("NOPERM"):
            raise CacheError(
                f"the cache at {self._cache} refused: {text} (superdl warm needs GETRANGE on super:r1:* and "
                "XADD on super:n1:*: docs/cache.md has a reader's user)"
            )
        raise CacheError(f"the cache at {self._cache} refused: {text}")
