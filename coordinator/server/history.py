"""History of closed jobs, kept in the cache across restarts; only the newest are kept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from superdl.coordinator.cache.cache import Cache

__all__ = ["HISTORY_PAUSE_S", "JobHistory", "read_history"]

_log = logging.getLogger(__name__)

HISTORY_PAUSE_S = 2.0
_JOBS_MAX = 256
_BYTES_MAX = 2**20
_SOURCE_MAX = 512
_TIME_MAX = 1e11


class JobHistory:
    """The newest 256 jobs by name and time of opening. Open jobs are included, so that a killed coordinator
    leaves their last figures.

    Args:
        cache: the cache that keeps it; ``None``: it is not kept.
    """

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self.jobs: dict[tuple[str, float], pb.JobStats] = {}
        """Jobs in the order in which they were last noted."""
        self._changed = False

    def note(self, stats: pb.JobStats, opened_s: float, closed_s: float = 0.0) -> None:
        """Note the figures of a job that is open, or closes now; times are Unix time."""
        before = self.jobs.pop((stats.job, opened_s), stats)
        stats.opened_s, stats.closed_s = opened_s, closed_s
        stats.source = (stats.source or before.source)[:_SOURCE_MAX]
        if closed_s:  # a closed job's position is unknown
            stats.epoch, stats.position, stats.interval_s = before.epoch, before.position, before.interval_s
        self.jobs[stats.job, opened_s] = stats
        if len(self.jobs) > _JOBS_MAX:
            del self.jobs[next(iter(self.jobs))]
        self._changed = True

    async def load(self) -> None:
        """Load the history left by earlier coordinators of this cache."""
        if self._cache is not None:
            try:
                jobs = read_history(await self._cache.history())
                self.jobs = {(job.job, job.opened_s): job for job in jobs}
            except (CacheError, ValueError) as error:
                _log.warning("the history of jobs begins again, what the cache holds is none: %s", error)

    async def keep(self) -> None:
        """Save the history if it has changed."""
        if self._cache is not None and self._changed:
            self._changed = False
            try:
                await self._cache.keep_history(
                    pb.JobStatsList(history=self.jobs.values()).SerializeToString()
                )
            except CacheError:  # upkeep reports it
                self._changed = True


def read_history(told: bytes) -> list[pb.JobStats]:
    """Parse what :class:`JobHistory` wrote; ``ValueError`` for anything else."""
    if len(told) > _BYTES_MAX:
        raise ValueError(f"it has {len(told):,} bytes")
    try:
        jobs = list(pb.JobStatsList.FromString(told).history)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    times = [(job.opened_s, job.closed_s) for job in jobs]
    is_valid = [all(0 <= time_s < _TIME_MAX for time_s in span) for span in times]
    return [job for job, fits in zip(jobs, is_valid, strict=True) if job.job and fits][-_JOBS_MAX:]
