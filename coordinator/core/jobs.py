"""Jobs and their ranks, with each rank's position in the plan, and its pace.

An *absolute position* counts batches: epoch times batches per epoch, plus the position in the epoch.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.journal import NOTES_PER_RANK, JobStalls
from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.samples import EVERY_EPOCH, SetKey
from superdl.coordinator.core.settings import NO_TEAM
from superdl.super_wire.waits import WorkCounters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from superdl.coordinator.core.capacity import Pace
    from superdl.coordinator.core.events import FillUp
    from superdl.coordinator.core.journal import BatchNote
    from superdl.coordinator.core.plan import Plan
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.samples import Bools, Ints

_GAP_BATCHES = 64  # batches read after a missing report before the report counts as lost
_LAPSED_S = 1e8  # added to due times, to sort after all live jobs
_ENDLESS = 2**63 - 1
_BEYOND_SHARE_S = 1e7  # added to due times, to sort after all teams within their share
_CAUTION_UP = 1.5
_CAUTION_DOWN = 0.99
# Factors by which a stall widens a cursor's look-ahead and a complete batch narrows it, and the maximum
_CAUTION_MAX = 16.0


@dataclass(slots=True)
class JobCounters(WorkCounters):
    """Counters of a job's work so far. The ledger has the costs."""

    requests_in_flight: int = 0


@dataclass(slots=True)
class ClosedJobs:
    """Totals over all closed jobs."""

    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)

    def add(self, job: Job) -> None:
        """Add the totals of a closing job."""
        for name, value in asdict(job.counters).items():
            setattr(self.counters, name, getattr(self.counters, name) + value)
        self.stalls.batches.update(job.stalls.batches)
        self.stalls.wait_us.update(job.stalls.wait_us)


class CursorSpan(NamedTuple):
    """The batches of a rank at the absolute positions [start, stop)."""

    job: str
    rank: int
    start: int
    stop: int


class Ahead(NamedTuple):
    """Samples that were absent when a rank looked at the batches [start, stop)."""

    start: int
    stop: int
    samples: SetKey
    indices: Ints
    # For samples to retry, as in queues.Retry.
    alone: bool = False
    failed_by: int | None = None


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of a rank in the plan of its job."""

    job: Job = field(repr=False)
    rank: int
    # Batches before it have been read.
    watermark: int
    # Batches before it have been looked at, and their absent samples are pending or were requested.
    lookahead: int
    # The sampler knows the batches before it.
    asked: int
    yielded: int
    last_seen_s: float
    last_read_s: float
    pace: Pace
    reach: int = 0  # end of all batches ever sent to the sampler
    counted: int = 0  # end of the batches counted as reused or not
    fresh: bool = True  # true until a batch is read after the cursor was opened or moved
    # The factor by which the rank looks ahead farther than needed. It grows with
    # each stall and shrinks with each batch without a stall.
    caution: float = 1.0
    lapsed: bool = False  # whether the lease expired without a sign of life
    sees_store: bool = False  # whether its readers read stored samples directly from the store
    wanted_bytes: int = 0
    notes: deque[BatchNote] = field(default_factory=lambda: deque(maxlen=NOTES_PER_RANK))
    read_ahead: set[int] = field(default_factory=set)
    # By position.
    pending: deque[Ahead] = field(default_factory=deque)

    @property
    def key(self) -> CursorKey:
        """The job's name and the rank."""
        return self.job.name, self.rank

    def seek(self, position: int, now: float) -> None:
        """Restart planning for this rank at ``position``, the current position of the sampler."""
        self.watermark = self.lookahead = self.asked = self.yielded = self.counted = position
        self.read_ahead.clear()
        self.pending.clear()
        self.last_read_s = now
        self.fresh = True
        self.pace.restart(now)

    def look_again(self) -> None:
        """Recheck the whole window, because samples may have been dropped."""
        self.lookahead = self.watermark
        self.pending.clear()

    def put(self, ahead: Ahead) -> None:
        """Add absent samples, in plan order."""
        bisect.insort(self.pending, ahead, key=lambda other: other.start)

    def read(self, position: int, now: float, *, stalled: bool) -> None:
        """Record that a batch was read. Reads may be out of order, and reports may be lost."""
        self.fresh = False
        self.caution = (
            min(self.caution * _CAUTION_UP, _CAUTION_MAX)
            if stalled
            else max(1.0, self.caution * _CAUTION_DOWN)
        )
        if position < self.watermark:
            return
        before = self.watermark
        self.read_ahead.add(position)
        if max(self.read_ahead) - self.watermark > _GAP_BATCHES:  # its report was lost
            self.watermark = min(self.read_ahead)
        while self.watermark in self.read_ahead or self._has_nothing():
            self.read_ahead.discard(self.watermark)
            self.watermark += 1
        if self.watermark > before:
            self.pace.read(self.watermark - before, now, stalled=stalled)
            self.last_read_s = now
            self.lookahead = max(self.lookahead, self.watermark)

    def pass_empty(self) -> None:
        """Move the watermark past empty batches that were sent, because readers do not report them."""
        while self._has_nothing():
            self.watermark += 1
        self.lookahead = max(self.lookahead, self.watermark)

    def _has_nothing(self) -> bool:
        _, position = self.job.epoch_and_position(self.watermark)
        return self.watermark < self.asked and self.job.plan.is_empty(position, self.rank)

    def skip_to(self, position: int) -> None:
        """Treat all batches before ``position`` as read, even if no report arrived."""
        if position > self.watermark:
            self.watermark = position
            self.read_ahead = {read for read in self.read_ahead if read >= position}
            self.lookahead = max(self.lookahead, position)

    @property
    def next_ahead(self) -> int:
        """Return the position of the first batch that still needs requests."""
        return max(self.pending[0].start if self.pending else self.lookahead, self.watermark)

    def deadline_s(self) -> float:
        """Return when the first batch that still needs requests is due, or infinity without readers."""
        if self.job.fill is not None:
            return math.inf
        return self.last_read_s + (self.next_ahead - self.watermark) * self.pace.interval_s


@dataclass(slots=True, eq=False)
class Job:
    """A training run's use of a dataset: its plan, its known ranks, and its counters."""

    name: str
    dataset: bytes
    random: bool
    plan: Plan
    team: str = NO_TEAM
    cursors: dict[int, Cursor] = field(default_factory=dict)
    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)
    fill: FillUp | None = None  # set if the job has no readers; how far to fill the cache or the store
    is_full: str = ""  # the reason why filling ended
    # Whether its team exceeded its share of the cache when memory was last short
    beyond_share: bool = False
    # Whether all its readers can access the store, so that stored samples are cached only if a reader
    # misses them
    straight: bool = False

    def absolute(self, epoch: int, position: int) -> int:
        """Return the absolute position of a batch."""
        return epoch * self.plan.batches_per_epoch + position

    def epoch_and_position(self, absolute: int) -> tuple[int, int]:
        """Split an absolute position into epoch and position."""
        return divmod(absolute, self.plan.batches_per_epoch)

    @property
    def end(self) -> int:
        """Return the absolute position of the end of the known part of the plan."""
        epoch = self.plan.only_epoch
        return _ENDLESS if epoch is None else self.absolute(epoch + 1, 0)

    def samples_of(self, epoch: int) -> SetKey:
        """Return the sample set that this job reads in ``epoch``."""
        return SetKey(self.dataset, epoch if self.random else EVERY_EPOCH)

    @property
    def lapsed(self) -> bool:
        """Return whether the leases of all ranks have ended."""
        return bool(self.cursors) and all(cursor.lapsed for cursor in self.cursors.values())

    def sees_store_changed(self) -> None:
        """Update ``straight`` after a rank joined, left, or changed its view of the store."""
        was_straight = self.straight
        self.straight = bool(self.cursors) and all(cursor.sees_store for cursor in self.cursors.values())
        if was_straight and not self.straight:
            for cursor in self.cursors.values():
                cursor.look_again()

    @property
    def _living(self) -> list[Cursor]:
        lapsed = self.lapsed
        return [cursor for cursor in self.cursors.values() if cursor.lapsed == lapsed]

    @property
    def watermark(self) -> int:
        """The absolute position of the slowest rank."""
        return min(cursor.watermark for cursor in self._living)

    @property
    def asked(self) -> int:
        """The absolute position up to which samplers may know all batches."""
        return max(cursor.asked for cursor in self.cursors.values())

    @property
    def interval_s(self) -> float:
        """The time between two batches of the fastest rank, in seconds."""
        return min(cursor.pace.interval_s for cursor in self._living)

    def due_in_s(self, batches: Ints) -> NDArray[np.float64]:
        """Return the seconds until batches this far ahead of the slowest rank are needed."""
        # A job without signs of life sorts after all others, and just before it jobs of teams that exceed
        # their share.
        seconds = np.multiply(batches, self.interval_s, dtype=np.float64)
        if self.lapsed:
            return seconds + _LAPSED_S
        if self.beyond_share:
            seconds += _BEYOND_SHARE_S
        # Batches that were sent may be read at any moment.
        positions = batches + self.watermark
        for low, end in {
            (cursor.watermark, max(cursor.yielded, cursor.watermark + 1)) for cursor in self._living
        }:
            seconds[(positions >= low) & (positions < end)] = 0.0
        return seconds

    def next_use(self, key: SetKey, indices: Ints) -> Ints:
        """Return how many batches after the slowest rank each sample is used.

        The result is ``NEVER_SOON`` if the next use is beyond the next epoch.
        """
        epoch, position = self.epoch_and_position(self.watermark)
        if key.epoch == EVERY_EPOCH:
            return self.plan.next_use(indices, epoch, position)
        if key.epoch < epoch:
            return np.full(indices.size, NEVER_SOON)
        start = position if key.epoch == epoch else 0
        batches = self.plan.next_use(indices, key.epoch, start)
        # Another job may be at an epoch so much later that 64 bits cannot count the batches.
        ahead = min((key.epoch - epoch) * self.plan.batches_per_epoch - position + start, NEVER_SOON)
        return np.where(batches < self.plan.batches_per_epoch - start, batches + ahead, NEVER_SOON)


def next_use_s(
    key: SetKey, indices: Ints, jobs: Iterable[Job], stored: Bools | None = None
) -> NDArray[np.float64]:
    """Return the seconds until a job needs each sample in the cache, or infinity beyond the next epoch."""
    # Next uses are computed from the known permutations. Nothing is stored, and
    # recency does not matter.
    soonest = np.full(indices.size, np.inf)
    for job in jobs:
        if job.dataset == key.dataset and job.fill is None:
            batches = job.next_use(key, indices)
            never = batches >= NEVER_SOON
            # A straight job needs a stored sample only if its sampler may already have the batch.
            if stored is not None and job.straight:
                never |= stored & (batches + job.watermark >= job.asked)
            np.minimum(soonest, np.where(never, np.inf, job.due_in_s(batches)), out=soonest)
    return soonest
