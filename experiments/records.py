"""What a run measures: records of steps, counters of loaders, summaries of passes, and who listens.

Plain values only, so that reports need no torch. `experiments.training` takes the measurements.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, TypeAlias

from superdl.super_wire.counters import WorkCounters
from superdl.super_wire.errors import CoordinatorError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from superdl.sampler.stats import SamplerStats

__all__ = [
    "CauseTotal",
    "CountedLoader",
    "CounterLaps",
    "EpochSummary",
    "Listener",
    "LoaderCounters",
    "LoaderStats",
    "PassSummary",
    "PassTotals",
    "StallSummary",
    "StepRecord",
    "StepTime",
    "added",
]

_log = logging.getLogger(__name__)

LoaderStats: TypeAlias = "SamplerStats | LoaderCounters"
"""A job's counters since it was opened, of the coordinator or of a loader that decodes by itself."""


# ------------------------------------------------------------------------------------------- counters


@dataclass(slots=True)
class LoaderCounters(WorkCounters):
    """One reading of a job's counters, or the difference of two.

    The counters of status are of this process: calls for pages of the plan, their seconds and CPU seconds in
    a thread of their own, and the seconds that the loop waited for a page.
    """

    status_calls: int = 0
    status_s: float = 0.0
    status_cpu_s: float = 0.0
    status_wait_s: float = 0.0

    @property
    def recent_stalls(self) -> tuple[()]:
        """None: a loader that decodes by itself has nobody who could tell."""
        return ()

    @classmethod
    def read(cls, stats: LoaderStats) -> LoaderCounters:
        """Copy the counters out of what a loader told."""
        return cls(**{item.name: getattr(stats, item.name) for item in fields(cls)})

    def since(self, earlier: LoaderCounters) -> LoaderCounters:
        """Return what was counted after ``earlier``.

        A counter that went down was reset (the coordinator was restarted): then all of it is new, which is
        how Prometheus treats counters. Not so dollars: a share falls when other jobs use the samples that it
        is for. They were reset if anything else was.
        """
        pairs = {item.name: (getattr(self, item.name), getattr(earlier, item.name)) for item in fields(self)}
        was_reset = any(now < before for name, (now, before) in pairs.items() if not name.endswith("usd"))
        return LoaderCounters(
            **{
                name: now if was_reset and (now < before or name.endswith("usd")) else now - before
                for name, (now, before) in pairs.items()
            }
        )


def added(counters: Iterable[LoaderCounters]) -> LoaderCounters:
    """All of them together."""
    parts = list(counters)
    return LoaderCounters(
        **{item.name: sum(getattr(one, item.name) for one in parts) for item in fields(LoaderCounters)}
    )


class CountedLoader(Protocol):
    """What can tell a job's counters: a sampler, or a loader that decodes by itself."""

    def job_stats(self) -> LoaderStats:
        """Return the counters as they are now."""


class CounterLaps:
    """Cuts a loader's counters into laps. The first begins with the job, before the first epoch."""

    def __init__(self, loader: CountedLoader) -> None:
        """Cut the counters of ``loader``."""
        self._loader = loader
        self._last = LoaderCounters()

    def lap(self) -> LoaderCounters | None:
        """Return what was counted since the last lap.

        None if the coordinator did not answer; the next lap then covers both.
        """
        try:
            now = LoaderCounters.read(self._loader.job_stats())
        except CoordinatorError as error:
            _log.warning("the coordinator gave no job statistics: %s", error)
            return None
        lap, self._last = now.since(self._last), now
        return lap


# --------------------------------------------------------------------------------- steps, passes, epochs


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a pass.

    ``wait_s`` is the trainer blocked on the loader, ``read_s`` a worker reading the cache, ``compute_s`` the
    step on the device. ``fetch_s`` and ``decode_s`` are what the step's own samples cost when they were made,
    maybe long ago: a pass says what was spent in it. ``lr`` is None in validation; ``skipped`` is 1 where
    float16 gradients were not finite, and the step changed no weight. ``finished_at_s`` is a Unix timestamp.
    ``accuracy`` is top-1; ``top5_accuracy`` is None for a model of five classes or fewer, which is never
    wrong by it. The GPU's figures are those of the last sample before the step was given out; None where
    there is none. ``plan_epoch`` and ``position`` are the batch's place in the loader's plan, where it has
    one.
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
    straight: int = 0
    lr: float | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean seconds of the ``steps`` training steps up to ``step``, counted from 1 in each epoch.

    ``since_start_s`` is the mean of all steps of the epoch up to it.
    """

    epoch: int
    step: int
    steps: int
    mean_s: float
    since_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """How many steps of a pass stalled for one cause, and how many seconds the trainer waited in them."""

    steps: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class StallSummary:
    """The stalls of a pass. All other steps were bound by computing; there were ``steps`` in all."""

    steps: int
    stalled: int
    wait_s: float
    causes: dict[str, CauseTotal]


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One pass over one split.

    Reading and decoding overlap computing, so the seconds need not add up to ``wall_s``. ``fetch_s``,
    ``decode_s`` and ``invocations`` are those spent in this lap of the job, summed over functions; None where
    the coordinator did not tell. ``stalls`` are this rank's steps that waited for data, ``skipped`` those
    that float16 spoilt.
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
    job: LoaderCounters | None
    top5_accuracy: float | None = None
    stalls: StallSummary | None = None
    straight: int = 0
    fetch_s: float | None = None
    skipped: int = 0


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


class Listener:
    """Hears what happens while a model is trained, in order, in the main thread; this one ignores it."""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """A pass over ``split`` (train or val) begins."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Some steps are done; they come in groups."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """An epoch is done, validation included."""


_SUMS = ("samples", "hits", "misses", "straight", "size_bytes", "wait_s", "read_s", "compute_s", "skipped")


@dataclass(slots=True)
class PassTotals:
    """The sums of a pass's steps; loss and right answers are weighed by samples."""

    samples: int = 0
    batches: int = 0
    hits: int = 0
    misses: int = 0
    straight: int = 0
    size_bytes: int = 0
    wait_s: float = 0.0
    read_s: float = 0.0
    compute_s: float = 0.0
    first_batch_s: float = 0.0
    loss: float = 0.0
    correct: float = 0.0
    correct5: float = 0.0
    has_top5: bool = False
    skipped: int = 0

    def add(self, step: StepRecord) -> None:
        """Count one step."""
        if self.batches == 0:
            self.first_batch_s = step.wait_s
        self.batches += 1
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(step, name))
        self.loss += step.loss * step.samples if step.samples else 0.0  # the mean of no samples is NaN
        self.correct += step.accuracy * step.samples
        if step.top5_accuracy is not None:
            self.has_top5 = True
            self.correct5 += step.top5_accuracy * step.samples

    def summary(
        self, wall_s: float, job: LoaderCounters | None, stalls: StallSummary | None = None
    ) -> PassSummary:
        """Return the pass; means are over samples, not over batches."""
        samples = max(self.samples, 1)
        return PassSummary(
            **{name: getattr(self, name) for name in (*_SUMS, "batches", "first_batch_s")},
            wall_s=wall_s,
            fetch_s=None if job is None else job.fetch_s,
            decode_s=None if job is None else job.decode_s,
            invocations=None if job is None else job.invocations,
            loss=self.loss / samples,
            accuracy=self.correct / samples,
            images_per_s=self.samples / wall_s if wall_s > 0 else 0.0,
            job=job,
            top5_accuracy=self.correct5 / samples if self.has_top5 else None,
            stalls=stalls,
        )
