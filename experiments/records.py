"""What a run measures: a record per step, a summary per pass and per epoch, the job's counters in between.

Plain values only, so that reports need no torch. Taking the measurements is left to `experiments.training`,
writing them to `experiments.report` and the listeners.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

from super_wire.errors import CoordinatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.stalls import StallSummary

__all__ = [
    "EpochSummary",
    "JobCounters",
    "JobMeter",
    "JobStats",
    "JobStatsSource",
    "PassSummary",
    "PassTotals",
    "RankSums",
    "StepRecord",
    "ToldStall",
]

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


class RankSums(Protocol):
    """The ranks of a run, which add values up; `experiments.ranks.Ranks` is it."""

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


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a pass.

    ``wait_s`` is the trainer blocked on the loader, ``read_s`` a worker reading the cache, ``compute_s`` the
    step on the device. ``fetch_s`` and ``decode_s`` are what the batch's samples once cost to produce, maybe
    long ago. ``finished_at_s`` is a Unix timestamp. ``accuracy`` is top-1; ``top5_accuracy`` is None for a
    model of five classes or fewer, which is never wrong by it. The GPU's figures are those of the last sample
    before the step was given out; None where there is none. ``plan_epoch`` and ``position`` are the batch's
    place in the loader's plan, where it has one.
    """

    epoch: int
    split: str
    step: int
    batch_id: str
    samples: int
    wait_s: float
    read_s: float
    fetch_s: float
    decode_s: float
    compute_s: float
    total_s: float
    hits: int
    misses: int
    size_bytes: int
    loss: float
    accuracy: float
    finished_at_s: float
    top5_accuracy: float | None = None
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    plan_epoch: int | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pass over one split.

    Reading and decoding overlap computing, so the seconds need not add up to ``wall_s``. ``decode_s`` and
    ``invocations`` are those spent in this lap of the job, summed over functions; None where the coordinator
    did not tell. ``stalls`` are this rank's steps that waited for data.
    """

    samples: int
    batches: int
    wall_s: float
    first_batch_s: float
    wait_s: float
    read_s: float
    compute_s: float
    decode_s: float | None
    invocations: int | None
    hits: int
    misses: int
    size_bytes: int
    loss: float
    accuracy: float
    images_per_s: float
    job: JobCounters | None
    top5_accuracy: float | None = None
    stalls: StallSummary | None = None


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """One epoch: the training pass and, where there is validation data, the pass over it."""

    epoch: int
    train: PassSummary
    val: PassSummary | None

    def splits(self) -> tuple[tuple[str, PassSummary], ...]:
        """Return the passes that there were, by name."""
        trained = ("train", self.train)
        return (trained,) if self.val is None else (trained, ("val", self.val))


class PassTotals:
    """Adds step records up to a pass."""

    def __init__(self) -> None:
        """Start from nothing."""
        self._samples = self._batches = self._hits = self._misses = self._size_bytes = 0
        self._wait_s = self._read_s = self._compute_s = self._first_batch_s = 0.0
        self._loss_sum = self._correct = self._correct5 = 0.0
        self._has_top5 = False

    def add(self, step: StepRecord) -> None:
        """Count one step."""
        if self._batches == 0:
            self._first_batch_s = step.wait_s
        self._batches += 1
        self._samples += step.samples
        self._hits += step.hits
        self._misses += step.misses
        self._size_bytes += step.size_bytes
        self._wait_s += step.wait_s
        self._read_s += step.read_s
        self._compute_s += step.compute_s
        self._loss_sum += step.loss * step.samples if step.samples else 0.0
        self._correct += step.accuracy * step.samples
        if step.top5_accuracy is not None:
            self._has_top5 = True
            self._correct5 += step.top5_accuracy * step.samples

    def over_ranks(self, ranks: RankSums) -> PassTotals:
        """Return the totals of all ranks: samples and what they gave are sums, seconds means over ranks.

        The first batch is the latest one; the batches stay this rank's, which are as many as any other's.
        """
        counted = [self._samples, self._hits, self._misses, self._size_bytes]
        learnt = [self._loss_sum, self._correct, self._correct5]
        whole = ranks.sums([*counted, *learnt, self._wait_s, self._read_s, self._compute_s, 1.0])
        replicas = whole[10]
        together = PassTotals()
        together._batches = self._batches
        together._samples, together._hits, together._misses, together._size_bytes = map(int, whole[:4])
        together._loss_sum, together._correct, together._correct5 = whole[4:7]
        together._wait_s, together._read_s, together._compute_s = (value / replicas for value in whole[7:10])
        together._first_batch_s, has_top5 = ranks.largest([self._first_batch_s, float(self._has_top5)])
        together._has_top5 = has_top5 > 0
        return together

    def summary(
        self, wall_s: float, job: JobCounters | None, stalls: StallSummary | None = None
    ) -> PassSummary:
        """Return the pass; means are over samples, not over batches."""
        return PassSummary(
            samples=self._samples,
            batches=self._batches,
            wall_s=wall_s,
            first_batch_s=self._first_batch_s,
            wait_s=self._wait_s,
            read_s=self._read_s,
            compute_s=self._compute_s,
            decode_s=None if job is None else job.decode_s,
            invocations=None if job is None else job.invocations,
            hits=self._hits,
            misses=self._misses,
            size_bytes=self._size_bytes,
            loss=self._loss_sum / max(self._samples, 1),
            accuracy=self._correct / max(self._samples, 1),
            images_per_s=self._samples / wall_s if wall_s > 0 else 0.0,
            job=job,
            top5_accuracy=self._correct5 / max(self._samples, 1) if self._has_top5 else None,
            stalls=stalls,
        )
