"""Read report streams in the cache. Readers append to them, and the coordinator drains them."""

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
from superdl.super_wire.read_reports import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.coordinator.cache.nodes import CacheNodes, Words

_log = logging.getLogger(__name__)

# Streams expire unless renewed, in case the coordinator never returns.
_EXPIRE_MS = 3_600_000
_RENEW_EVERY_S = 60.0
_ENTRIES_MAX = 16_384
_PIPELINE_KEYS = 1000
_ENTRY_ID = re.compile(rb"[0-9]{1,20}-[0-9]{1,20}")
_LAST_MS = 2**62  # of at most 2**64 in an id, and far beyond any clock

_REPORTS_BLOCK_MS = 200  # short, so that the reports of a newly opened job are read soon
_REPORTS = 512
_REPORTS_PAUSE_S, _PAUSE_PER_STREAM_S = 0.01, 1e-5
_CATCH_UP_READS = 16
_CATCH_UP_S = 0.4  # less than a sampler's timeout for the call
_NUMBER_MAX = 2**48


class ReportReader:
    """Reads the report streams of all open jobs, and passes batches of events to ``emit``.

    Methods raise the same errors as :meth:`CacheNodes.checked`.
    """

    def __init__(self, nodes: CacheNodes, emit: Callable[[list[BatchRead]], None]) -> None:
        self._nodes = nodes
        self._emit = emit
        self._jobs = set[str]()
        self._reading = asyncio.Lock()
        self._renewed_s = -_RENEW_EVERY_S
        self.unreadable = 0

    @property
    def jobs(self) -> list[str]:
        """Return the jobs whose streams are being read."""
        return list(self._jobs)

    async def follow(self, job: str) -> None:
        """Start reading a job's stream. Reports for an earlier coordinator are discarded."""
        if job not in self._jobs:
            await self._empty(report_stream(job))
            self._jobs.add(job)

    async def leave(self, job: str) -> None:
        """Stop reading a job's stream and delete it."""
        if job in self._jobs:
            self._jobs.discard(job)
            stream = report_stream(job)
            await self._nodes.call(stream, "UNLINK", stream)

    async def renew(self, now_s: float) -> None:
        """Renew the streams' expiry, at most once a minute. ``now_s`` is monotonic time."""
        if now_s < self._renewed_s + _RENEW_EVERY_S:
            return
        streams = [*map(report_stream, self._jobs)]
        for start in range(0, len(streams), _PIPELINE_KEYS):
            chunk = streams[start : start + _PIPELINE_KEYS]
            commands: list[Words] = [("PEXPIRE", stream, _EXPIRE_MS) for stream in chunk]
            self._nodes.checked(await self._nodes.each(chunk, commands))
        self._renewed_s = now_s

    async def read_once(self) -> None:
        """Wait briefly for entries and emit any that arrive."""
        jobs = self.jobs
        if not jobs:
            await asyncio.sleep(_REPORTS_BLOCK_MS / 1000)
            return
        await self._read(jobs, _REPORTS_BLOCK_MS)
        # Let entries accumulate, because a read takes as long for one as for many.
        await asyncio.sleep(_REPORTS_PAUSE_S + _PAUSE_PER_STREAM_S * len(jobs))

    async def catch_up(self, job: str) -> None:
        """Emit the remaining entries of a closing job's stream, but do not wait for a failing cache."""

        async def read() -> None:
            reads = 0
            with contextlib.suppress(CacheError):  # upkeep logs it
                while job in self._jobs and reads < _CATCH_UP_READS:
                    reads += 1
                    # After a full read, there may be more entries.
                    if await self._read([job], 1) < _REPORTS:
                        return

        # On a timeout, the task continues in the background.
        await asyncio.wait([asyncio.create_task(read())], timeout=_CATCH_UP_S)

    async def _read(self, jobs: list[str], block_ms: int) -> int:
        events: list[BatchRead] = []
        count = 0
        async with self._reading:  # otherwise two calls could read the same entry
            for batch in await self._pop([*map(report_stream, jobs)], block_ms):
                job = batch.stream.removeprefix(REPORT_PREFIX).decode()
                count += len(batch.entries)
                if job in self._jobs:  # it may have been closed during the read
                    events += self._events(job, batch.entries)
        if events:
            self._emit(events)
        return count

    async def _pop(self, streams: Sequence[bytes], block_ms: int) -> list[_StreamEntries]:
        """Remove and return the oldest entries of each stream, waiting up to ``block_ms`` for the first.

        All streams share a cluster slot. If entries cannot be deleted, the next call returns them again.
        """
        count = max(1, min(_REPORTS, _ENTRIES_MAX // len(streams)))
        # Always read from the beginning, because a forged id could move a stored position.
        read = "XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS"
        try:
            reply = await self._nodes.call(streams[0], *read, *streams, *[b"0-0"] * len(streams))
        except ProtocolDoubtError:
            # Entries that do not fit into a reply can only be dropped.
            for stream in streams:
                await self._empty(stream)
            raise
        with self._nodes.errors():
            batches = [_StreamEntries.of(stream, entries) for stream, entries in reply or []]
            if not {batch.stream for batch in batches} <= {*streams}:
                raise ValueError("the reply contains entries from a stream that was not requested")
        if batches:
            deletions: list[Words] = [("XDEL", batch.stream, *batch.ids) for batch in batches]
            self._nodes.checked(await self._nodes.each([batch.stream for batch in batches], deletions))
        for batch in batches:
            if int(batch.ids[-1].partition(b"-")[0]) > _LAST_MS:
                _log.warning(
                    "resetting the stream %s: the id of its last entry leaves no room for more. The entry "
                    "may have been forged with a reader's credentials",
                    batch.stream.decode(),
                    extra={"cause": "forged report"},
                )
                await self._empty(batch.stream)
        return batches

    async def _empty(self, stream: bytes) -> None:
        """Create an empty stream, replacing any existing one."""
        commands: list[Words] = [
            ("UNLINK", stream),  # a stream with the largest id accepts no more entries
            ("XADD", stream, "MAXLEN", 0, "*", b"x", b""),
            ("PEXPIRE", stream, _EXPIRE_MS),
        ]
        self._nodes.checked(await self._nodes.each([stream] * len(commands), commands))

    def _events(self, job: str, entries: list[dict[bytes, bytes]]) -> list[BatchRead]:
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


class _StreamEntries(NamedTuple):
    stream: bytes
    ids: list[bytes]
    entries: list[dict[bytes, bytes]]

    @classmethod
    def of(cls, stream: Any, entries: Any) -> _StreamEntries:
        ids = [string(entry_id) for entry_id, _ in entries]
        if not ids or not all(map(_ENTRY_ID.fullmatch, ids)):
            raise ValueError(f"expected stream entry ids, got {ids[:1]!r}")
        all_words = [[*map(string, words or [])] for _, words in entries]  # None for a deleted entry
        fields = [dict(zip(words[::2], words[1::2], strict=True)) for words in all_words]
        return cls(string(stream), ids, fields)


def _check(report: ReadReport) -> None:
    """Raise ``ValueError`` if the numbers are implausible, because entries may be forged."""
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
