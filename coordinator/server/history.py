"""What jobs did that are not open any more, also before a restart: kept in the cache, the newest of them."""

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
    """The newest 256 jobs by name and time of opening. Those that are open are in it too: of a coordinator
    that is killed, what it wrote last is left.

    Args:
        cache: where it is kept; ``None``: nowhere.
    """

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self.jobs: dict[tuple[str, float], pb.JobStats] = {}
        """Those that were noted last come last."""
        self._changed = False

    def note(self, stats: pb.JobStats, opened_s: float, closed_s: float = 0.0) -> None:
        """The figures of a job that is open, or closes now; times are Unix time."""
        before = self.jobs.pop((stats.job, opened_s), stats)
        stats.opened_s, stats.closed_s = opened_s, closed_s
        stats.source = (stats.source or before.source)[:_SOURCE_MAX]
        if closed_s:  # where it stood is not known any more
            stats.epoch, stats.position, stats.interval_s = before.epoch, before.position, before.interval_s
        self.jobs[stats.job, opened_s] = stats
        if len(self.jobs) > _JOBS_MAX:
            del self.jobs[next(iter(self.jobs))]
        self._changed = True

    async def load(self) -> None:
        """Read what earlier coordinators of this cache have left."""
        if self._cache is not None:
            try:
                found = read_history(await self._cache.history())
                self.jobs = {(one.job, one.opened_s): one for one in found}
            except (CacheError, ValueError) as error:
                _log.warning("the history of jobs begins again, what the cache holds is none: %s", error)

    async def keep(self) -> None:
        """Write it down, if it has changed."""
        if self._cache is not None and self._changed:
            self._changed = False
            try:
                await self._cache.keep_history(
                    pb.JobStatsList(history=self.jobs.values()).SerializeToString()
                )
            except CacheError:  # the upkeep tells people
                self._changed = True


def read_history(told: bytes) -> list[pb.JobStats]:
    """What :class:`JobHistory` wrote; ``ValueError`` for bytes that are none of it."""
    if len(told) > _BYTES_MAX:
        raise ValueError(f"it has {len(told):,} bytes")
    try:
        jobs = list(pb.JobStatsList.FromString(told).history)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    times = [(one.opened_s, one.closed_s) for one in jobs]
    good = [all(0 <= time_s < _TIME_MAX for time_s in both) for both in times]
    return [one for one, fits in zip(jobs, good, strict=True) if one.job and fits][-_JOBS_MAX:]
