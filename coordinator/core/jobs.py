"""Jobs, and the positions of their ranks in the plan.

An *absolute position* counts batches across epochs: epoch times batches per epoch, plus position.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.journal import NOTES_PER_RANK, BatchNote, JobStalls
from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.samples import EVERY_EPOCH, SetKey
from superdl.coordinator.core.settings import NO_TEAM
from superdl.super_wire.stall_causes import WorkCounters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from superdl.coordinator.core.capacity import Pace
    from superdl.coordinator.core.events import FillUp
    from superdl.coordinator.core.plan import Plan
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.samples import Bools, Ints

_GAP_BATCHES = 64  # batches read after a missing report before the report counts as lost
_LAPSED_S = 1e8  # added to due times, to sort after all live jobs
_ENDLESS = 2**63 - 1
_BEYOND_SHARE_S = 1e7  # added to due times, to sort after all teams within their share
# A stall widens a cursor's look-ahead by the first factor, a batch without one narrows it by the second.
_CAUTION_UP, _CAUTION_DOWN, _CAUTION_MAX = 1.5, 0.99, 16.0


@dataclass(slots=True)
class JobCounters(WorkCounters):
    """Counters of a job's work. Its costs are in the ledger."""

    requests_in_flight: int = 0


@dataclass(slots=True)
class ClosedJobs:
    """Totals of closed jobs."""

    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)

    def add(self, job: Job) -> None:
        """Add the totals of a closing job."""
        for name, value in asdict(job.counters).items():
            setattr(self.counters, name, getattr(self.counters, name) + value)
        self.stalls.batches.update(job.stalls.batches)
        self.stalls.wait_us.update(job.stalls.wait_us)


class Pending(NamedTuple):
    """Absent samples that a rank found in batches [start, stop)."""

    start: int
    stop: int
    samples: SetKey
    indices: Ints
    # As in queues.Retry.
    alone: bool = False
    failed_by: int | None = None


@dataclass(slots=True, eq=False)
class Cursor:
    """A rank's position in its job's plan."""

    job: Job = field(repr=False)
    rank: int
    # Earlier batches have been read.
    watermark: int
    # Earlier batches have been looked at. Their absent samples are pending or were requested.
    lookahead: int
    # Earlier batches have been sent to the sampler.
    sent: int
    yielded: int
    last_seen_s: float
    last_read_s: float
    pace: Pace
    reach: int = 0  # end of all batches ever sent to the sampler
    counted: int = 0  # end of the batches counted as reused or not
    fresh: bool = True  # no batch was read since the cursor was opened or moved
    caution: float = 1.0  # the factor by which the rank looks ahead farther than needed
    lapsed: bool = False  # the lease has ended
    sees_store: bool = False  # the rank's readers read directly from the store
    window_bytes: int = 0
    notes: deque[BatchNote] = field(default_factory=lambda: deque(maxlen=NOTES_PER_RANK))
    read_ahead: set[int] = field(default_factory=set)
    # In plan order.
    pending: deque[Pending] = field(default_factory=deque)

    @property
    def key(self) -> CursorKey:
        """Return the job's name and the rank."""
        return self.job.name, self.rank

    def note(self, now: float, start: int, stop: int, text: str) -> None:
        """Add a note to the history of the batches [start, stop)."""
        self.notes.append(BatchNote(now, start, stop, text))

    def seek(self, position: int, now: float) -> None:
        """Restart planning at ``position``, the sampler's current position."""
        self.watermark = self.lookahead = self.sent = self.yielded = self.counted = position
        self.read_ahead.clear()
        self.pending.clear()
        self.last_read_s = now
        self.fresh = True
        self.pace.restart(now)

    def restart_lookahead(self) -> None:
        """Restart look-ahead at the watermark, to recheck the entire window."""
        self.lookahead = self.watermark
        self.pending.clear()

    def add_pending(self, pending: Pending) -> None:
        """Add absent samples, keeping plan order."""
        bisect.insort(self.pending, pending, key=lambda other: other.start)

    def read(self, position: int, now: float, *, stalled: bool) -> None:
        """Record that a batch was read. Tolerates reports that arrive out of order or are lost."""
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
        while self.watermark in self.read_ahead or self._is_at_empty_batch():
            self.read_ahead.discard(self.watermark)
            self.watermark += 1
        if self.watermark > before:
            self.pace.read(self.watermark - before, now, stalled=stalled)
            self.last_read_s = now
            self.lookahead = max(self.lookahead, self.watermark)

    def pass_empty(self) -> None:
        """Advance the watermark past empty batches that were sent. Readers do not report them."""
        while self._is_at_empty_batch():
            self.watermark += 1
        self.lookahead = max(self.lookahead, self.watermark)

    def _is_at_empty_batch(self) -> bool:
        _, position = self.job.epoch_and_position(self.watermark)
        return self.watermark < self.sent and self.job.plan.is_empty(position, self.rank)

    def skip_to(self, position: int) -> None:
        """Treat all batches before ``position`` as read."""
        if position > self.watermark:
            self.watermark = position
            self.read_ahead = {read for read in self.read_ahead if read >= position}
            self.lookahead = max(self.lookahead, position)

    @property
    def next_ahead(self) -> int:
        """Return the position of the first batch that needs requests."""
        return max(self.pending[0].start if self.pending else self.lookahead, self.watermark)

    def deadline_s(self) -> float:
        """Return when the first batch that needs requests is due, or infinity if the job has no readers."""
        if self.job.fill is not None:
            return math.inf
        return self.last_read_s + (self.next_ahead - self.watermark) * self.pace.interval_s


@dataclass(slots=True, eq=False)
class Job:
    """A training run that reads a dataset."""

    name: str
    dataset: bytes
    random: bool
    plan: Plan
    team: str = NO_TEAM
    cursors: dict[int, Cursor] = field(default_factory=dict)
    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)
    fill: FillUp | None = None  # set if the job has no readers and fills the cache or the store
    full_reason: str = ""  # why filling ended
    # Whether the team exceeded its share of the cache at the last check
    beyond_share: bool = False
    # Whether all readers can access the store, so stored samples are cached only after a miss
    straight: bool = False

    def absolute(self, epoch: int, position: int) -> int:
        """Return the absolute position of a batch."""
        return epoch * self.plan.batches_per_epoch + position

    def epoch_and_position(self, absolute: int) -> tuple[int, int]:
        """Split an absolute position into epoch and position."""
        return divmod(absolute, self.plan.batches_per_epoch)

    @property
    def end(self) -> int:
        """Return the absolute position at which the known part of the plan ends."""
        epoch = self.plan.only_epoch
        return _ENDLESS if epoch is None else self.absolute(epoch + 1, 0)

    def samples_of(self, epoch: int) -> SetKey:
        """Return the key of an epoch's sample set."""
        return SetKey(self.dataset, epoch if self.random else EVERY_EPOCH)

    @property
    def lapsed(self) -> bool:
        """Return whether the leases of all ranks have expired."""
        return bool(self.cursors) and all(cursor.lapsed for cursor in self.cursors.values())

    def sees_store_changed(self) -> None:
        """Update ``straight`` after a rank joins, leaves, or gains or loses access to the store."""
        was_straight = self.straight
        self.straight = bool(self.cursors) and all(cursor.sees_store for cursor in self.cursors.values())
        if was_straight and not self.straight:
            for cursor in self.cursors.values():
                cursor.restart_lookahead()

    @property
    def _living(self) -> list[Cursor]:
        lapsed = self.lapsed
        return [cursor for cursor in self.cursors.values() if cursor.lapsed == lapsed]

    @property
    def watermark(self) -> int:
        """Return the slowest rank's absolute position."""
        return min(cursor.watermark for cursor in self._living)

    @property
    def sent(self) -> int:
        """Return the absolute position up to which samplers may have received batches."""
        return max(cursor.sent for cursor in self.cursors.values())

    @property
    def interval_s(self) -> float:
        """Return the fastest rank's time between two batches, in seconds."""
        return min(cursor.pace.interval_s for cursor in self._living)

    def due_in_s(self, batches: Ints) -> NDArray[np.float64]:
        """Return the time in seconds until batches this far ahead of the slowest rank are needed."""
        # Lapsed jobs sort last, after jobs of teams beyond their share.
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
        """Return the distance in batches from the slowest rank to each sample's next use.

        The distance is ``NEVER_SOON`` for samples not used by the end of the next epoch.
        """
        epoch, position = self.epoch_and_position(self.watermark)
        if key.epoch == EVERY_EPOCH:
            return self.plan.next_use(indices, epoch, position)
        if key.epoch < epoch:
            return np.full(indices.size, NEVER_SOON)
        start = position if key.epoch == epoch else 0
        batches = self.plan.next_use(indices, key.epoch, start)
        # Another job's epoch may be too far ahead to count the batches in 64 bits.
        ahead = min((key.epoch - epoch) * self.plan.batches_per_epoch - position + start, NEVER_SOON)
        return np.where(batches < self.plan.batches_per_epoch - start, batches + ahead, NEVER_SOON)


def next_use_s(
    key: SetKey, indices: Ints, jobs: Iterable[Job], stored: Bools | None = None
) -> NDArray[np.float64]:
    """Return the seconds until a job next needs each sample cached, or infinity beyond the next epoch."""
    soonest = np.full(indices.size, np.inf)
    for job in jobs:
        if job.dataset == key.dataset and job.fill is None:
            batches = job.next_use(key, indices)
            never = batches >= NEVER_SOON
            # A straight job needs a stored sample cached only if its sampler may already have the batch.
            if stored is not None and job.straight:
                never |= stored & (batches + job.watermark >= job.sent)
            np.minimum(soonest, np.where(never, np.inf, job.due_in_s(batches)), out=soonest)
    return soonest
