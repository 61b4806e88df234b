"""Reads the jobs' report streams and turns each entry into an event of the core.

One XREAD waits on all streams at once, for a fifth of a second, so that a newly opened job is heard soon. A
read costs the same for one entry as for many, and more with every stream, so entries gather in a pause after
each read. Entries come from anyone with a reader's credentials: unreadable ones are counted and skipped.
Streams expire unless renewed, so that a coordinator that never comes back leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import BatchRead
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import REPORT_PREFIX, report_stream
from superdl.super_wire.stream_entries import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.cache.cache import Cache

__all__ = ["ReportReader"]

_log = logging.getLogger(__name__)

_BLOCK_MS = 200
_COUNT = 512
_CATCH_UP_READS = 16
_CATCH_UP_S = 0.4  # less than a sampler waits for the call
_KEEP_EVERY_S = 60.0
_PAUSE_S = 0.01
_PAUSE_PER_STREAM_S = 1e-5
_NUMBER_MAX = 2**48


class ReportReader:
    """Follows the report streams of all open jobs.

    Args:
        cache: holds the streams.
        emit: receives each batch of events.
    """

    def __init__(self, cache: Cache, emit: Callable[[list[BatchRead]], None]) -> None:
        self._cache = cache
        self._emit = emit
        self._jobs = set[str]()
        self._taking = asyncio.Lock()
        self._kept_s = -_KEEP_EVERY_S
        self.unreadable = 0
        """Number of entries that could not be read."""

    @property
    def jobs(self) -> list[str]:
        """The jobs whose streams are read."""
        return list(self._jobs)

    async def follow(self, job: str) -> None:
        """Read a job's stream from now on. Reports to an earlier coordinator are discarded."""
        if job not in self._jobs:
            await self._cache.streams.begin(report_stream(job))
            self._jobs.add(job)

    async def leave(self, job: str) -> None:
        """Stop reading a job's stream and delete it."""
        if job in self._jobs:
            self._jobs.discard(job)
            await self._cache.streams.delete(report_stream(job))

    async def keep(self, now_s: float) -> None:
        """Renew the streams' expiry of an hour, at most once a minute.

        Args:
            now_s: on any monotonic clock.
        """
        if now_s >= self._kept_s + _KEEP_EVERY_S:
            await self._cache.streams.keep([*map(report_stream, self._jobs)])
            self._kept_s = now_s

    async def read_once(self) -> None:
        """Wait a moment for entries and emit them, then pause so that the next ones gather."""
        jobs = self.jobs
        if not jobs:
            await asyncio.sleep(_BLOCK_MS / 1000)
            return
        await self._take(jobs, _BLOCK_MS)
        await asyncio.sleep(_PAUSE_S + _PAUSE_PER_STREAM_S * len(jobs))

    async def catch_up(self, job: str) -> None:
        """Emit the rest of a closing job's stream; do not wait for a cache in trouble."""

        async def read() -> None:
            reads = 0
            with contextlib.suppress(CacheError):  # the upkeep logs it
                while job in self._jobs and reads < _CATCH_UP_READS:
                    reads += 1
                    # A full read may have left entries behind.
                    if await self._take([job], 1) < _COUNT:
                        return

        # After the timeout, the task still runs, and ends on its own.
        await asyncio.wait([asyncio.create_task(read())], timeout=_CATCH_UP_S)

    async def _take(self, jobs: list[str], block_ms: int) -> int:
        """Emit the new entries of some streams; return their number."""
        events: list[BatchRead] = []
        count = 0
        streams = [*map(report_stream, jobs)]
        async with self._taking:  # else both readers would get an entry
            for stream, entries in await self._cache.streams.take(streams, block_ms=block_ms, count=_COUNT):
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
                events.append(_event(job, ReadReport.from_fields(entry)))
            except ValueError as error:
                self.unreadable += 1
                about = {"cause": "unreadable report"}
                _log.warning("a read report of job %s is skipped: %s", job, error, extra=about)
        return events


def _event(job: str, report: ReadReport) -> BatchRead:
    numbers = (
        report.epoch,
        report.position,
        report.samples,
        report.read_us,
        report.wait_us,
        report.size_bytes,
    )
    # Entries may be forged: keep absurd numbers from the core.
    if max(numbers) > _NUMBER_MAX or not report.straight <= report.hits <= report.samples:
        raise ValueError(
            f"a read report's numbers contradict each other or are beyond reason: {report}"[:500]
        )
    return BatchRead(
        job=job,
        rank=report.rank,
        epoch=report.epoch,
        position=report.position,
        samples=report.samples,
        hits=report.hits,
        missed=np.array(report.missed, dtype=np.int64),
        corrupt=np.array(report.corrupt, dtype=np.int64),
        done=bool(report.done),
        read_us=report.read_us,
        wait_us=report.wait_us,
        size_bytes=report.size_bytes,
        straight=report.straight,
    )
