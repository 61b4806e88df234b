"""Reading the jobs' report streams: each entry becomes an event of the core.

One XREAD waits on all streams at once, for a fifth of a second, so that a job that was just opened is soon
heard. A read costs as much for one entry as for many, and more with every stream, so a pause follows each, in
which entries gather. Entries come from whoever has a reader's credentials: one that cannot be read is counted
and skipped. An entry's id far ahead of the cache's clock would be the last that we read of its stream, and
the largest id would let no other follow: such a stream is deleted and begun again. Streams expire unless they
are kept, so that jobs of a coordinator that never comes back leave nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import BatchRead
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import REPORT_PREFIX, report_stream
from superdl.super_wire.read_report import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.cache.cache import Cache

__all__ = ["ReportReader"]

_log = logging.getLogger(__name__)

_BLOCK_MS = 200
_COUNT = 512
_CATCH_UP_READS = 16
_CATCH_UP_S = 0.4  # less than a sampler waits for the call
_KEEP_S = 3600.0
_KEEP_EVERY_S = 60.0
_PAUSE_S = 0.01
_PAUSE_PER_STREAM_S = 1e-5
_NUMBER_MAX = 2**48
_AHEAD_MS = 60_000
_FAR_MS = 2**62  # of the 2**64 that an id can tell: no clock is there
_START = b"0-0"


@dataclass(slots=True)
class _Followed:
    """How far a stream has been read.

    ``clock_ms`` is the cache's clock less our own when the stream was begun; ``None`` after the cache was
    emptied, since its clock may be another.
    """

    position: bytes = _START
    clock_ms: int | None = None

    @classmethod
    def begun(cls, first: bytes) -> _Followed:
        """A stream whose entries come after ``first``, which was made just now."""
        return cls(first, _number(first)[0] - _now_ms())

    def believes(self, numbers: list[bytes]) -> bool:
        """Whether these ids can be of entries that were added since the last look."""
        ids = [_number(self.position), *map(_number, numbers)]
        latest_ms = _FAR_MS if self.clock_ms is None else self.clock_ms + _now_ms() + _AHEAD_MS
        return ids == sorted(set(ids)) and ids[-1][0] <= latest_ms


class ReportReader:
    """Follows the report streams of all open jobs.

    Args:
        cache: where the streams are.
        emit: takes the events that came together.
    """

    def __init__(self, cache: Cache, emit: Callable[[list[BatchRead]], None]) -> None:
        self._cache = cache
        self._emit = emit
        self._followed: dict[str, _Followed] = {}
        self._kept_s = -_KEEP_EVERY_S
        self.unreadable = 0
        """How many entries could not be read."""

    @property
    def jobs(self) -> list[str]:
        """Those whose streams are read."""
        return list(self._followed)

    async def follow(self, job: str) -> None:
        """Read a job's stream from now on; what was reported to an earlier coordinator is past."""
        if job not in self._followed:
            begun = _Followed.begun(await self._cache.empty_stream(report_stream(job), _KEEP_S))
            self._followed.setdefault(job, begun)  # another rank may have come first

    async def leave(self, job: str) -> None:
        """Stop reading a job's stream and delete it."""
        if self._followed.pop(job, None) is not None:
            await self._cache.delete(report_stream(job))

    async def keep(self, now_s: float) -> None:
        """Keep the streams from expiring for an hour; does something once in a minute.

        Args:
            now_s: on any monotonic clock.
        """
        if now_s >= self._kept_s + _KEEP_EVERY_S:
            await self._cache.keep_streams([*map(report_stream, self._followed)], _KEEP_S)
            self._kept_s = now_s

    def rewind(self) -> None:
        """The cache was emptied: whatever the streams hold now is new, even if its clock was set back."""
        self._followed = {job: _Followed() for job in self._followed}

    async def read_once(self) -> None:
        """Wait for entries a while, emit them, and give the next a moment to gather."""
        jobs = self.jobs
        if not jobs:
            await asyncio.sleep(_BLOCK_MS / 1000)
            return
        await self._take(jobs, _BLOCK_MS)
        await asyncio.sleep(_PAUSE_S + _PAUSE_PER_STREAM_S * len(jobs))

    async def catch_up(self, job: str) -> None:
        """Emit what a job's stream holds now, since the job closes; do not wait for a cache in trouble."""

        async def read() -> None:
            reads = 0
            with contextlib.suppress(CacheError):  # the upkeep logs it
                while job in self._followed and reads < _CATCH_UP_READS:
                    reads += 1
                    if await self._take([job], 1) < _COUNT:
                        return

        await asyncio.wait([asyncio.create_task(read())], timeout=_CATCH_UP_S)

    async def _take(self, jobs: list[str], block_ms: int) -> int:
        """Emit the new entries of some streams; how many there were."""
        events: list[BatchRead] = []
        count = 0
        positions = {report_stream(job): self._followed[job].position for job in jobs}
        for stream, entries in await self._cache.read_streams(positions, block_ms=block_ms, count=_COUNT):
            job = stream.removeprefix(REPORT_PREFIX).decode()
            followed = self._followed.get(job)
            count += len(entries)
            if followed is None or not entries or followed.position != positions[stream]:
                continue
            numbers = [number for number, _ in entries]
            if followed.believes(numbers):
                followed.position = numbers[-1]
                events += self._read(job, entries)
            else:
                await self._begin_again(job, numbers[-1])
        if events:
            self._emit(events)
        return count

    def _read(self, job: str, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[BatchRead]:
        events = []
        for _, entry in entries:
            try:
                events.append(_event(job, ReadReport.from_fields(entry)))
            except ValueError as error:
                self.unreadable += 1
                about = {"cause": "unreadable report"}
                _log.warning("a read report of job %s is skipped: %s", job, error, extra=about)
        return events

    async def _begin_again(self, job: str, number: bytes) -> None:
        _log.warning(
            "the read reports of job %s have the id %s, which no reader of ours gave: the stream is begun "
            "again. A reader's credentials may have been used to forge it, or the cache's clock has jumped",
            job,
            number.decode(),
            extra={"cause": "forged report"},
        )
        begun = _Followed.begun(await self._cache.empty_stream(report_stream(job), _KEEP_S))
        if job in self._followed:
            self._followed[job] = begun
        else:  # it was left meanwhile
            await self._cache.delete(report_stream(job))


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def _number(number: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = number.partition(b"-")
    return int(milliseconds), int(sequence)


def _event(job: str, report: ReadReport) -> BatchRead:
    numbers = (
        report.epoch,
        report.position,
        report.samples,
        report.read_us,
        report.wait_us,
        report.size_bytes,
    )
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
