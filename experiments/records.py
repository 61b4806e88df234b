"""What a run measures: a record per step, a summary per pass and per epoch, and who listens to them.

Plain values only, so that reports need no torch. Taking the measurements is left to `experiments.training`,
writing them to `experiments.report` and the listeners, a job's counters to `experiments.loader_counters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.loader_counters import LoaderCounters
    from superdl.experiments.stalls import StallSummary
    from superdl.experiments.training.ranks import Ranks

__all__ = ["EpochSummary", "Listener", "PassSummary", "PassTotals", "StepRecord", "StepTime"]


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
class StepTime:
    """The mean seconds of the ``steps`` training steps up to ``step``, counted from 1 in each epoch."""

    epoch: int
    step: int
    steps: int
    mean_s: float


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
    job: LoaderCounters | None
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


class Listener:
    """Hears what happens while a model is trained, in order, in the main thread; this one ignores it."""

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:
        """A pass over ``split`` (train or val) begins."""

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Some steps are done; they come in groups."""

    def on_epoch_end(self, summary: EpochSummary) -> None:
        """An epoch is done, validation included."""


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

    def over_ranks(self, ranks: Ranks) -> PassTotals:
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
        self, wall_s: float, job: LoaderCounters | None, stalls: StallSummary | None = None
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
