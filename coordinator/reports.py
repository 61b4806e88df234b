"""Reading the jobs' report streams: each entry becomes an event of the core.

One XREAD waits on all streams at once; a stream of our own among them is rung when a job is added, so that
nobody waits for a timeout. A read costs as much for one entry as for many, and more with every stream, so a
pause follows each, in which entries gather. Entries come from the network: one that cannot be read is counted
and skipped. Streams expire unless they are kept, so that jobs of a coordinator that never comes back leave
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.events import BatchRead
from super_wire.keys import REPORT_PREFIX, report_stream
from super_wire.report import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.cache import Cache

__all__ = ["ReportReader"]

_log = logging.getLogger(__name__)

_BELL = REPORT_PREFIX + b"%bell"
_BLOCK_MS = 1000
_COUNT = 512
_KEEP_S = 3600.0
_KEEP_EVERY_S = 60.0
_PAUSE_S = 0.01
_PAUSE_PER_STREAM_S = 1e-5
_NUMBER_MAX = 2**48


class ReportReader:
    """Follows the report streams of all open jobs.

    Args:
        cache: where the streams are.
        emit: takes the events that came together.
    """

    def __init__(self, cache: Cache, emit: Callable[[list[BatchRead]], None]) -> None:
        self._cache = cache
        self._emit = emit
        self._positions: dict[bytes, bytes] = {_BELL: b"0-0"}
        self._kept_s = -_KEEP_EVERY_S
        self._pause_until_s = 0.0
        self.unreadable = 0

    async def follow(self, job: str) -> None:
        """Read a job's stream from now on; what was reported to an earlier coordinator is past."""
        stream = report_stream(job)
        if stream not in self._positions:
            last = await self._cache.empty_stream(stream, _KEEP_S)
            self._positions.setdefault(stream, last)  # another rank may have come first
            await self._cache.ring(_BELL)

    async def leave(self, job: str) -> None:
        """Stop reading a job's stream and delete it."""
        if self._positions.pop(report_stream(job), None) is not None:
            await self._cache.delete(report_stream(job))

    async def keep(self, now_s: float) -> None:
        """Keep the streams from expiring for an hour; does something once in a minute.

        Args:
            now_s: on any monotonic clock.
        """
        if now_s >= self._kept_s + _KEEP_EVERY_S:
            await self._cache.keep_streams(list(self._positions), _KEEP_S)
            self._kept_s = now_s

    def rewind(self) -> None:
        """The cache was emptied: whatever the streams hold now is new, even if its clock was set back."""
        self._positions = dict.fromkeys(self._positions, b"0-0")

    async def read_once(self) -> None:
        """Wait for entries, up to a second, and emit them; soon after the last time, wait a little before."""
        events: list[BatchRead] = []
        await asyncio.sleep(self._pause_until_s - time.monotonic())
        found = await self._cache.read_streams(dict(self._positions), block_ms=_BLOCK_MS, count=_COUNT)
        self._pause_until_s = time.monotonic() + _PAUSE_S + _PAUSE_PER_STREAM_S * len(self._positions)
        for stream, entries in found:
            if not entries or stream not in self._positions:
                continue
            self._positions[stream] = entries[-1][0]
            if stream == _BELL:
                continue
            job = stream.removeprefix(REPORT_PREFIX).decode()
            for _, entry in entries:
                try:
                    events.append(_event(job, ReadReport.from_fields(entry)))
                except ValueError as error:
                    self.unreadable += 1
                    _log.warning("a read report of job %s is skipped: %s", job, error)
        if events:
            self._emit(events)


def _event(job: str, report: ReadReport) -> BatchRead:
    largest = max(
        report.epoch, report.position, report.samples, report.read_us, report.wait_us, report.size_bytes
    )
    if largest > _NUMBER_MAX or report.hits > report.samples:
        msg = f"a read report's numbers contradict each other or are beyond reason: {report}"[:500]
        raise ValueError(msg)
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
    )
