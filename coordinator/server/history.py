"""What jobs did that are not open any more, also before a restart: kept in the cache, the newest of them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.cache.cache import Cache
    from superdl.coordinator.core import Job

__all__ = ["HISTORY_PAUSE_S", "JobHistory", "read_history"]

_log = logging.getLogger(__name__)

HISTORY_PAUSE_S = 2.0
_NOTED_EVERY_S = 10.0
_JOBS_MAX = 256
_BYTES_MAX = 2**20
_SOURCE_MAX = 512
_TIME_MAX = 1e11


class JobHistory:
    """The newest 256 jobs. Those that are open are in it too: of a coordinator that is killed, what it wrote
    last is left.

    Args:
        cache: where it is kept; ``None``: nowhere.
        clock: Unix time; a seam for tests.
    """

    def __init__(self, cache: Cache | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._cache, self._clock = cache, clock
        self._jobs: list[pb.JobStats] = []
        self._open: dict[str, tuple[pb.JobStats, float]] = {}
        """Those that are open, and when they were noted last."""
        self._changed = False

    def told(self) -> list[pb.JobStats]:
        """Those that are not open."""
        opened = {id(one) for one, _ in self._open.values()}
        return [one for one in self._jobs if id(one) not in opened]

    def is_due(self, job: Job) -> bool:
        """Whether an open job should be noted again."""
        return job.name not in self._open or self._clock() >= self._open[job.name][1] + _NOTED_EVERY_S

    def note(self, stats: pb.JobStats, *, closed: bool = False) -> None:
        """The figures of a job that is open, or closes now."""
        now_s, known = self._clock(), self._open.pop(stats.job, None)
        kept, before = known[0] if known else pb.JobStats(opened_s=now_s), pb.JobStats()
        before.CopyFrom(kept)
        kept.CopyFrom(stats)
        kept.opened_s, kept.source = before.opened_s, (stats.source or before.source)[:_SOURCE_MAX]
        if closed:  # where it stood is not known any more
            kept.epoch, kept.position, kept.interval_s = before.epoch, before.position, before.interval_s
            kept.closed_s = now_s
        else:
            self._open[stats.job] = kept, now_s
        if closed or known is None:
            others = [one for one in self._jobs if one is not kept]
            self._jobs = [*others[1 - _JOBS_MAX :], kept]
        self._changed = True

    async def load(self) -> None:
        """Read what earlier coordinators of this cache have left."""
        if self._cache is not None:
            try:
                self._jobs = read_history(await self._cache.history())
            except (CacheError, ValueError) as error:
                _log.warning("the history of jobs begins again, what the cache holds is none: %s", error)

    async def keep(self) -> None:
        """Write it down, if it has changed."""
        if self._cache is None or not self._changed:
            return
        self._changed = False
        try:
            await self._cache.keep_history(pb.JobStatsList(history=self._jobs).SerializeToString())
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
    return [one for one in jobs[-_JOBS_MAX:] if one.job and _is_time(one.opened_s, one.closed_s)]


def _is_time(*seconds: float) -> bool:
    return all(0 <= one < _TIME_MAX for one in seconds)
