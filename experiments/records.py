"""A run's measurements and stall causes, as plain values. This module does not import torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from superdl.super_wire.errors import CoordinatorError
from superdl.super_wire.stall_causes import UNKNOWN, WorkCounters, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.sampler.stats import SamplerStats

_log = logging.getLogger(__name__)

# Counters since a job was opened, from the coordinator or a loader without one.
LoaderStats: TypeAlias = "SamplerStats | LoaderCounters"


# ------------------------------------------------------------------------------------------- counters


@dataclass(slots=True)
class LoaderCounters(WorkCounters):
    """One reading of a job's counters, or the difference between two readings."""

    @property
    def recent_stalls(self) -> tuple[()]:
        """Always empty: loaders without a coordinator do not report stalls."""
        return ()

    @classmethod
    def read(cls, stats: LoaderStats) -> LoaderCounters:
        """Copy the counters from a loader's statistics."""
        return cls(**{item.name: getattr(stats, item.name) for item in fields(cls)})

    def since(self, earlier: LoaderCounters) -> LoaderCounters:
        """Return the counts since ``earlier``, even if the coordinator was restarted in between."""
        # As in Prometheus, a counter that decreased was reset, so all of its value is new.
        pairs = {item.name: (getattr(self, item.name), getattr(earlier, item.name)) for item in fields(self)}
        # Dollars do not show a reset, because they also decrease when other jobs use the samples.
        was_reset = any(now < before for name, (now, before) in pairs.items() if not name.endswith("usd"))
        return LoaderCounters(
            **{
                name: now if was_reset and (now < before or name.endswith("usd")) else now - before
                for name, (now, before) in pairs.items()
            }
        )


def added(counters: Iterable[LoaderCounters]) -> LoaderCounters:
    """Return the sum of all counters, field by field."""
    parts = list(counters)
    return LoaderCounters(
        **{item.name: sum(getattr(part, item.name) for part in parts) for item in fields(LoaderCounters)}
    )


class CountedLoader(Protocol):
    """A loader that reports its job's counters."""

    def job_stats(self) -> LoaderStats:
        """Return the current counters."""


class CounterLaps:
    """Split a loader's counters into laps. The first lap starts with the job."""

    def __init__(self, loader: CountedLoader) -> None:
        self._loader = loader
        self._last = LoaderCounters()

    def lap(self) -> LoaderCounters | None:
        """Return the counts since the last lap, or None if the coordinator did not respond."""
        try:
            now = LoaderCounters.read(self._loader.job_stats())
        except CoordinatorError as error:
            _log.warning("the coordinator returned no job statistics: %s", error)
            # The next lap includes this one.
            return None
        lap, self._last = now.since(self._last), now
        return lap


# --------------------------------------------------------------------------------- steps, passes, epochs


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a pass, with the columns described in docs/runs.md."""

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
    # None for five classes or fewer, for which it would always be 1.
    top5_accuracy: float | None = None
    plan_epoch: int | None = None
    position: int | None = None
    straight: int = 0
    lr: float | None = None
    # 1 if the update was skipped because float16 gradients were not finite.
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Mean time of the ``steps`` training steps up to ``step``, which is counted from 1 in each epoch."""

    epoch: int
    step: int
    steps: int
    mean_s: float
    since_start_s: float = 0.0  # mean time of all steps of the epoch so far


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """The number of a pass's steps that stalled for one cause, and their total waiting time."""

    steps: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class StallSummary:
    """The stalls of a pass. All other steps were limited by compute."""

    steps: int
    stalled: int
    wait_s: float
    causes: dict[str, CauseTotal]


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pass over one split. Times overlap, so they need not add up to ``wall_s``."""

    samples: int
    batches: int
    wall_s: float
    first_batch_s: float
    wait_s: float
    read_s: float
    compute_s: float
    hits: int
    misses: int
    size_bytes: int
    loss: float
    accuracy: float
    images_per_s: float
    job: LoaderCounters | None  # in this pass; None if the coordinator did not respond
    top5_accuracy: float | None = None
    stalls: StallSummary | None = None  # of this rank's steps
    straight: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """An epoch's training pass and, if there was one, its validation pass."""

    epoch: int
    train: PassSummary
    val: PassSummary | None


class Listener:
    """Base class for listeners to training events. Its methods are called in the main thread."""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """Handle the start of a pass over ``split`` (train or val)."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Handle a group of finished steps."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """Handle the end of an epoch, including its validation."""


# Fields of a pass: sums over its steps, and means weighted by samples.
COUNTS = ("samples", "hits", "misses", "straight", "size_bytes")
SECONDS = ("wait_s", "read_s", "compute_s")
_MEANS = ("loss", "accuracy", "top5_accuracy")


class PassTotals:
    """Sums over a pass's steps. Losses and accuracies are weighted by samples."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys((*COUNTS, *SECONDS, *_MEANS), 0.0)
        self.batches = self.skipped = 0
        self.first_batch_s = 0.0
        self.has_top5 = False

    def add(self, step: StepRecord) -> None:
        """Add a step to the sums."""
        if self.batches == 0:
            self.first_batch_s = step.wait_s
        self.batches += 1
        self.skipped += step.skipped
        self.has_top5 = self.has_top5 or step.top5_accuracy is not None
        for name in (*COUNTS, *SECONDS):
            self.sums[name] += getattr(step, name)
        for name in _MEANS if step.samples else ():  # without samples, means are NaN
            self.sums[name] += step.samples * (getattr(step, name) or 0.0)

    def summary(
        self, wall_s: float, job: LoaderCounters | None, stalls: StallSummary | None = None
    ) -> PassSummary:
        """Summarise the pass. Means are taken over samples, not batches."""
        counts: dict[str, Any] = {name: int(self.sums[name]) for name in COUNTS}
        values: dict[str, Any] = {name: self.sums[name] for name in SECONDS}
        values |= {name: self.sums[name] / max(counts["samples"], 1) for name in _MEANS}
        if not self.has_top5:
            values["top5_accuracy"] = None
        return PassSummary(
            **counts,
            **values,
            batches=self.batches,
            skipped=self.skipped,
            first_batch_s=self.first_batch_s,
            wall_s=wall_s,
            images_per_s=counts["samples"] / wall_s if wall_s > 0 else 0.0,
            job=job,
            stalls=stalls,
        )


# ------------------------------------------------------------------------------------------- stalls

# A step stalled if it waited for more than this share of its time, and for more than 1 ms.
_MIN_SHARE = 0.05
_MIN_S = 0.001
# Fetch causes after this many steps with misses over all ranks, stalled or not, because the coordinator keeps
# only the newest 1,024 entries.
_MAX_MISSED = 512


def cause_of(step: StepRecord, causes: Mapping[tuple[int, int], str]) -> str:
    """Return a stalled step's cause. ``causes`` maps (epoch, position) to the coordinator's causes."""
    if step.misses:
        # Only the coordinator knows the cause of a miss.
        if step.plan_epoch is None or step.position is None:
            return UNKNOWN
        return wait_for(causes.get((step.plan_epoch, step.position), UNKNOWN))
    read = step.hits or step.straight
    # Samples in the cache or store were decoded earlier, so their cost did not cause this wait.
    own_s = 0.0 if read else step.fetch_s + step.decode_s
    if step.step == 0 and 2 * own_s < step.wait_s:
        return wait_for("loader_start")
    if read:
        return wait_for("cache_transfer" if step.hits else "store_read")
    # Some loaders do not measure fetching, which may have been the cause.
    if not step.fetch_s:
        return wait_for("loading")
    return wait_for("source" if step.fetch_s > step.decode_s else "decode")


class StallMeter:
    """Collect a split's stalled steps, and fetch their causes in groups.

    Args:
        source: the loader, whose ``job_stats`` reports recent stalls.
        rank: the rank whose stalls are collected.
        replicas: the number of ranks in the job.
    """

    def __init__(self, source: CountedLoader, rank: int = 0, replicas: int = 1) -> None:
        self._source = source
        self._rank = rank
        self._replicas = replicas
        self._steps = self._missed = 0
        self._pending: list[StepRecord] = []  # stalled steps whose cause is not known yet
        self._waits_s: dict[str, list[float]] = {}  # of all other stalled steps, by cause

    def add(self, steps: Iterable[StepRecord]) -> None:
        """Add finished steps."""
        for step in steps:
            self._steps += 1
            self._missed += self._replicas * (step.misses > 0)
            if step.wait_s > max(_MIN_S, _MIN_SHARE * step.total_s):
                self._pending.append(step)
        if self._missed >= _MAX_MISSED:
            self._find_causes()

    def lap(self) -> StallSummary:
        """Return the stalls since the last lap. The cause with the longest waiting time comes first."""
        self._find_causes()
        steps, waits_s = self._steps, self._waits_s
        self._steps, self._waits_s = 0, {}
        totals = {cause: CauseTotal(len(waits), sum(waits)) for cause, waits in waits_s.items()}
        longest_first = dict(sorted(totals.items(), key=lambda item: -item[1].wait_s))
        stalled = sum(total.steps for total in totals.values())
        return StallSummary(steps, stalled, sum(total.wait_s for total in totals.values()), longest_first)

    def _find_causes(self) -> None:
        causes: dict[tuple[int, int], str] = {}
        if any(step.misses for step in self._pending):
            try:
                recent = self._source.job_stats().recent_stalls
                causes = {
                    (each.epoch, each.position): each.cause for each in recent if each.rank == self._rank
                }
            except CoordinatorError as error:
                _log.warning("the coordinator did not report causes of stalls: %s", error)
        for step in self._pending:
            self._waits_s.setdefault(cause_of(step, causes), []).append(step.wait_s)
        self._pending, self._missed = [], 0
