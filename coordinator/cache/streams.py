"""Streams of read reports in the cache. Readers append to them, and the coordinator empties them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.coordinator.cache.nodes import string
from superdl.coordinator.core import BatchRead
from superdl.super_wire.cache import ProtocolDoubtError
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import REPORT_PREFIX, report_stream
from superdl.super_wire.stream_entries import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.coordinator.cache.nodes import CacheNodes, Words

_log = logging.getLogger(__name__)

# Streams expire unless renewed, so that a coordinator that never returns leaves nothing behind.
_EXPIRE_MS = 3_600_000
_ENTRIES_MAX = 16_384
_PIPELINE_KEYS = 1000
_ENTRY_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
_LAST_MS = 2**62  # of at most 2**64 in an id, and far beyond any clock

# A fifth of a second, so that the reports of a newly opened job are read soon.
_REPORTS_BLOCK_MS, _REPORTS = 200, 512
_REPORTS_PAUSE_S, _PAUSE_PER_STREAM_S = 0.01, 1e-5
_CATCH_UP_READS = 16
_CATCH_UP_S = 0.4  # less than a sampler's timeout for the call
_KEEP_EVERY_S = 60.0
_NUMBER_MAX = 2**48


class Streams:
    """The streams of a cache. Methods raise the errors of :meth:`CacheNodes.checked`."""

    def __init__(self, nodes: CacheNodes) -> None:
        self._nodes = nodes

    async def begin(self, stream: bytes) -> None:
        """Create a stream, or empty an existing one."""
        commands: list[Words] = [
            ("UNLINK", stream),  # a stream with the largest id accepts no more entries
            # Create an empty stream, by adding an entry that is trimmed at once.
            ("XADD", stream, "MAXLEN", 0, "*", b"x", b""),
            ("PEXPIRE", stream, _EXPIRE_MS),
        ]
        self._nodes.checked(await self._nodes.each([stream] * len(commands), commands))

    async def keep(self, streams: Sequence[bytes]) -> list[bool]:
        """Set streams to expire in an hour. Return whether each exists."""
        exist: list[bool] = []
        for start in range(0, len(streams), _PIPELINE_KEYS):
            chunk = streams[start : start + _PIPELINE_KEYS]
            commands: list[Words] = [("PEXPIRE", stream, _EXPIRE_MS) for stream in chunk]
            exist += map(bool, self._nodes.checked(await self._nodes.each(chunk, commands)))
        return exist

    async def take(
        self, streams: Sequence[bytes], *, block_ms: int, count: int
    ) -> list[tuple[bytes, list[dict[bytes, bytes]]]]:
        """Take up to ``count`` oldest entries of each stream, waiting up to ``block_ms`` for the first.

        All streams are in one slot. Entries are deleted. If that fails, they are returned again.
        """
        count = max(1, min(count, _ENTRIES_MAX // len(streams)))
        # Read from the beginning, because entries are deleted once read. So there is no position that could
        # be lost, or moved by a forged id. One XREAD waits for all streams.
        read = "XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS"
        try:
            reply = await self._nodes.call(streams[0], *read, *streams, *[b"0-0"] * len(streams))
        except ProtocolDoubtError:
            # Entries that do not fit into a reply can only be dropped.
            for stream in streams:
                await self.begin(stream)
            raise
        with self._nodes.errors():
            taken = [_Taken.of(stream, entries) for stream, entries in reply or []]
            if not {batch.stream for batch in taken} <= {*streams}:
                raise ValueError("the reply contains entries from a stream that was not requested")
        if taken:
            deletions: list[Words] = [("XDEL", batch.stream, *batch.numbers) for batch in taken]
            self._nodes.checked(await self._nodes.each([batch.stream for batch in taken], deletions))
        for batch in taken:
            if int(batch.numbers[-1].partition(b"-")[0]) > _LAST_MS:
                _log.warning(
                    "resetting the stream %s, because the id of its last entry leaves hardly any room for "
                    "more: the entry may have been forged with a reader's credentials",
                    batch.stream.decode(),
                    extra={"cause": "forged report"},
                )
                await self.begin(batch.stream)
        return [(batch.stream, batch.entries) for batch in taken]

    async def delete(self, stream: bytes) -> None:
        """Delete a stream."""
        await self._nodes.call(stream, "UNLINK", stream)


class _Taken(NamedTuple):
    stream: bytes
    numbers: list[bytes]
    entries: list[dict[bytes, bytes]]

    @classmethod
    def of(cls, stream: Any, entries: Any) -> _Taken:
        numbers = [string(number) for number, _ in entries]
        if not numbers or not all(map(_ENTRY_ID.fullmatch, numbers)):
            raise ValueError(f"expected the ids of a stream's entries, got {numbers[:1]!r}")
        all_words = [[*map(string, words or [])] for _, words in entries]  # None for a deleted entry
        fields = [dict(zip(words[::2], words[1::2], strict=True)) for words in all_words]
        return cls(string(stream), numbers, fields)


class ReportReader:
    """A reader of the report streams of all open jobs. ``emit`` is called with batches of events."""

    def __init__(self, streams: Streams, emit: Callable[[list[BatchRead]], None]) -> None:
        self._streams = streams
        self._emit = emit
        self._jobs = set[str]()
        self._taking = asyncio.Lock()
        self._kept_s = -_KEEP_EVERY_S
        self.unreadable = 0

    @property
    def jobs(self) -> list[str]:
        """Return the jobs whose streams are read."""
        return list(self._jobs)

    async def follow(self, job: str) -> None:
        """Start reading a job's stream. Reports for an earlier coordinator are discarded."""
        if job not in self._jobs:
            await self._streams.begin(report_stream(job))
            self._jobs.add(job)

    async def leave(self, job: str) -> None:
        """Stop reading a job's stream and delete it."""
        if job in self._jobs:
            self._jobs.discard(job)
            await self._streams.delete(report_stream(job))

    async def keep(self, now_s: float) -> None:
        """Renew the expiry of the streams, at most once a minute. ``now_s`` is monotonic time."""
        if now_s >= self._kept_s + _KEEP_EVERY_S:
            await self._streams.keep([*map(report_stream, self._jobs)])
            self._kept_s = now_s

    async def read_once(self) -> None:
        """Wait briefly for entries, and emit them."""
        jobs = self.jobs
        if not jobs:
            await asyncio.sleep(_REPORTS_BLOCK_MS / 1000)
            return
        await self._take(jobs, _REPORTS_BLOCK_MS)
        # A read takes as long for one entry as for many, so let entries accumulate.
        await asyncio.sleep(_REPORTS_PAUSE_S + _PAUSE_PER_STREAM_S * len(jobs))

    async def catch_up(self, job: str) -> None:
        """Emit the rest of a closing job's stream, but do not wait for a failing cache."""

        async def read() -> None:
            reads = 0
            with contextlib.suppress(CacheError):  # upkeep logs it
                while job in self._jobs and reads < _CATCH_UP_READS:
                    reads += 1
                    # After a full read, there may be more entries.
                    if await self._take([job], 1) < _REPORTS:
                        return

        # The task continues after the timeout and ends later.
        await asyncio.wait([asyncio.create_task(read())], timeout=_CATCH_UP_S)

    async def _take(self, jobs: list[str], block_ms: int) -> int:
        events: list[BatchRead] = []
        count = 0
        streams = [*map(report_stream, jobs)]
        async with self._taking:  # otherwise both readers could get an entry
            for stream, entries in await self._streams.take(streams, block_ms=block_ms, count=_REPORTS):
                job = stream.removeprefix(REPORT_PREFIX).decode()
                count += len(entries)
                # The job may have been closed during the read.
                if job in self._jobs:
                    events += self._read(job, entries)
        if events:
            self._emit(events)
        return count

    def _read(self, job: str, entries: list[dict[bytes, bytes]]) -> list[BatchRead]:
        events = []
        for entry in entries:
            try:
                report = ReadReport.from_fields(entry)
                _check(report)
                events.append(BatchRead(job, report))
            except ValueError as error:
                self.unreadable += 1
                about = {"cause": "unreadable report"}
                _log.warning("skipping a read report of job %s: %s", job, error, extra=about)
        return events


def _check(report: ReadReport) -> None:
    """Raise ``ValueError`` for absurd numbers, because entries may be forged."""
    numbers = (
        report.epoch,
        report.position,
        report.samples,
        report.read_us,
        report.wait_us,
        report.size_bytes,
    )
    if max(numbers) > _NUMBER_MAX or not report.straight <= report.hits <= report.samples:
        raise ValueError(f"its numbers contradict each other or are implausibly large: {report}"[:500])
