"""Cache streams that others append to and the coordinator empties: read reports and outcomes.

Entries are deleted once read, so every read starts at the beginning: there is no position to lose, or for a
forged id to move.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.coordinator.cache.nodes import string
from superdl.super_wire.cache import ProtocolDoubtError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.cache.nodes import CacheNodes, Words

__all__ = ["Streams"]

_log = logging.getLogger(__name__)

_EXPIRE_MS = 3_600_000
_ENTRIES_MAX = 16_384
_PIPELINE_KEYS = 1000
_ENTRY_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
_LAST_MS = 2**62  # of the 2**64 possible in an id: no clock gets there


class Streams:
    """A cache's streams. They expire unless renewed. Methods raise like :meth:`CacheNodes.checked`."""

    def __init__(self, nodes: CacheNodes) -> None:
        self._nodes = nodes

    async def begin(self, stream: bytes) -> None:
        """Create a stream, or empty it."""
        commands: list[Words] = [
            ("UNLINK", stream),  # a stream that has the largest id accepts no more entries
            # Create an empty stream: the added entry is trimmed at once.
            ("XADD", stream, "MAXLEN", 0, "*", b"x", b""),
            ("PEXPIRE", stream, _EXPIRE_MS),
        ]
        self._nodes.checked(await self._nodes.each([stream] * len(commands), commands))

    async def keep(self, streams: Sequence[bytes]) -> list[bool]:
        """Let streams expire an hour from now; return whether each exists."""
        exist: list[bool] = []
        for start in range(0, len(streams), _PIPELINE_KEYS):
            chunk = streams[start : start + _PIPELINE_KEYS]
            commands: list[Words] = [("PEXPIRE", stream, _EXPIRE_MS) for stream in chunk]
            exist += map(bool, self._nodes.checked(await self._nodes.each(chunk, commands)))
        return exist

    async def take(
        self, streams: Sequence[bytes], *, block_ms: int, count: int
    ) -> list[tuple[bytes, list[dict[bytes, bytes]]]]:
        """Take up to ``count`` of the oldest entries of each stream, all in one slot.

        Waits up to ``block_ms`` for the first. Entries are deleted; if that fails, they are returned again.
        A stream to which nothing can be added any more is created again.
        """
        count = max(1, min(count, _ENTRIES_MAX // len(streams)))
        read = "XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS"
        try:
            reply = await self._nodes.one(streams[0], *read, *streams, *[b"0-0"] * len(streams))
        except ProtocolDoubtError:
            # Entries that do not fit into a reply can only be dropped.
            for stream in streams:
                await self.begin(stream)
            raise
        with self._nodes.errors():
            taken = [_Taken.of(stream, entries) for stream, entries in reply or []]
            if not {batch.stream for batch in taken} <= {*streams}:
                raise ValueError("entries of a stream that was not asked for")
        if taken:
            deletions: list[Words] = [("XDEL", batch.stream, *batch.numbers) for batch in taken]
            self._nodes.checked(await self._nodes.each([batch.stream for batch in taken], deletions))
        for batch in taken:
            if int(batch.numbers[-1].partition(b"-")[0]) > _LAST_MS:
                _log.warning(
                    "the stream %s was given an id after which hardly any is left, and is begun again: a "
                    "reader's credentials may have been used to forge it",
                    batch.stream.decode(),
                    extra={"cause": "forged report"},
                )
                await self.begin(batch.stream)
        return [(batch.stream, batch.entries) for batch in taken]

    async def delete(self, stream: bytes) -> None:
        """Delete a stream."""
        await self._nodes.one(stream, "UNLINK", stream)


class _Taken(NamedTuple):
    """Entries read from a stream: their ids and their fields."""

    stream: bytes
    numbers: list[bytes]
    entries: list[dict[bytes, bytes]]

    @classmethod
    def of(cls, stream: Any, entries: Any) -> _Taken:
        numbers = [string(number) for number, _ in entries]
        if not numbers or not all(map(_ENTRY_ID.fullmatch, numbers)):
            raise ValueError(f"{numbers[:1]!r} instead of the ids of a stream's entries")
        all_words = [[*map(string, words or [])] for _, words in entries]  # None for a deleted entry
        fields = [dict(zip(words[::2], words[1::2], strict=True)) for words in all_words]
        return cls(string(stream), numbers, fields)
