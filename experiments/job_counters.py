"""A job's counters, as the coordinator or a loader tells them, cut into the laps of a run's passes.

Plain values and what is asked of who has them; what a step and a pass measure is in `experiments.records`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from superdl.super_wire.errors import CoordinatorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["JobCounters", "JobMeter", "JobStats", "JobStatsSource", "RankSums", "ToldStall", "added"]

_log = logging.getLogger(__name__)


class JobStats(Protocol):
    """A job's counters since it was opened, as the coordinator tells them; seconds are sums."""

    @property
    def invocations(self) -> int:
        """Function invocations that were asked for."""

    @property
    def fetch_s(self) -> float:
        """Seconds of fetching from the source."""

    @property
    def decode_s(self) -> float:
        """Seconds of decoding."""

    @property
    def push_s(self) -> float:
        """Seconds of writing to the cache."""

    @property
    def samples_produced(self) -> int:
        """Samples that functions put into the cache."""

    @property
    def samples_failed(self) -> int:
        """Samples that functions could not produce."""

    @property
    def cache_hits(self) -> int:
        """Samples that readers found at their first look."""

    @property
    def cache_misses(self) -> int:
        """Samples that they did not find."""

    @property
    def samples_reused(self) -> int:
        """Samples that were resident when planned."""

    @property
    def retries(self) -> int:
        """Samples that were asked for again."""

    @property
    def gb_s(self) -> float:
        """Memory times duration of the invocations, in GB-seconds."""

    @property
    def source_requests(self) -> int:
        """GETs of objects."""

    @property
    def source_bytes(self) -> int:
        """Bytes of objects fetched."""

    @property
    def record_bytes(self) -> int:
        """Bytes put into the cache."""

    @property
    def read_bytes(self) -> int:
        """Bytes read out of it."""

    @property
    def usd(self) -> float:
        """The job's share of what was spent, in US dollars."""

    @property
    def status_calls(self) -> int:
        """Calls for pages of the plan, each the status check of its batches, by this process."""

    @property
    def status_s(self) -> float:
        """Seconds that those calls took, in a thread of their own."""

    @property
    def status_cpu_s(self) -> float:
        """CPU seconds of that thread in them."""

    @property
    def status_wait_s(self) -> float:
        """Seconds that the loop waited for a page."""

    @property
    def recent_stalls(self) -> Sequence[ToldStall]:
        """The newest batches that readers waited for, oldest first."""


class ToldStall(Protocol):
    """A batch that a reader waited for, by its place in the loader's plan, and why."""

    @property
    def rank(self) -> int:
        """Whose batch it was."""

    @property
    def epoch(self) -> int:
        """The loader's epoch."""

    @property
    def position(self) -> int:
        """Which batch of the rank's epoch, from 0."""

    @property
    def cause(self) -> str:
        """Why; `coordinator.core.stalls` has the causes."""


class JobStatsSource(Protocol):
    """Whatever can tell a job's counters: a sampler, or a loader that decodes by itself."""

    def job_stats(self) -> JobStats:
        """Return the counters as they are now."""


@dataclass(frozen=True, slots=True)
class JobCounters:
    """One reading of a job's counters, or the difference of two."""

    invocations: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    push_s: float = 0.0
    samples_produced: int = 0
    samples_failed: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    samples_reused: int = 0
    retries: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    source_bytes: int = 0
    record_bytes: int = 0
    read_bytes: int = 0
    usd: float = 0.0
    status_calls: int = 0
    status_s: float = 0.0
    status_cpu_s: float = 0.0
    status_wait_s: float = 0.0

    @property
    def recent_stalls(self) -> Sequence[ToldStall]:
        """None: a loader that decodes by itself has nobody who could tell."""
        return ()

    @classmethod
    def read(cls, stats: JobStats) -> JobCounters:
        """Copy the counters out of what a source gave."""
        return cls(**{item.name: getattr(stats, item.name) for item in fields(cls)})

    def since(self, earlier: JobCounters) -> JobCounters:
        """Return what was counted after ``earlier``.

        A counter that went down was reset (the coordinator was restarted): then all of it is new, which is
        how Prometheus treats counters. Not so ``usd``, a share, which falls when other jobs use the samples
        that it is for: it was reset if anything else was.
        """
        changes = {}
        for item in fields(self):
            now, before = getattr(self, item.name), getattr(earlier, item.name)
            changes[item.name] = now - before if now >= before else now
        was_reset = any(
            getattr(self, item.name) < getattr(earlier, item.name)
            for item in fields(self)
            if item.name != "usd"
        )
        changes["usd"] = self.usd if was_reset else self.usd - earlier.usd
        return JobCounters(**changes)

    def over_ranks(self, ranks: RankSums) -> JobCounters:
        """Return the sums of what each rank counted for itself."""
        names = [item.name for item in fields(self)]
        sums = ranks.sums([float(getattr(self, name)) for name in names])
        kinds = {name: type(getattr(self, name)) for name in names}
        return JobCounters(**{name: kinds[name](value) for name, value in zip(names, sums, strict=True)})


def added(counters: Iterable[JobCounters]) -> JobCounters:
    """All of them together."""
    parts = list(counters)
    return JobCounters(
        **{item.name: sum(getattr(one, item.name) for one in parts) for item in fields(JobCounters)}
    )


class RankSums(Protocol):
    """The ranks of a run, which add values up; `experiments.training.ranks.Ranks` is it."""

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value, summed over ranks."""

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of each value."""


class JobMeter:
    """Cuts a job's running counters into laps, each of which begins where the last one ended.

    The first lap begins with the job, whose counters start at zero: it has what is produced ahead of the
    first epoch.
    """

    def __init__(self, source: JobStatsSource) -> None:
        """Meter the job of ``source``."""
        self._source = source
        self._last = JobCounters()

    def lap(self) -> JobCounters | None:
        """Return what was counted since the last lap.

        None if the coordinator did not answer: a training run does not end for want of a statistic. The next
        lap then covers both.
        """
        try:
            now = JobCounters.read(self._source.job_stats())
        except CoordinatorError as error:
            _log.warning("the coordinator gave no job statistics: %s", error)
            return None
        lap, self._last = now.since(self._last), now
        return lap
