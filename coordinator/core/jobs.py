"""Jobs and their ranks: where every rank stands in its plan, and how fast it goes.

Batches are counted by *absolute position*: epoch times batches per epoch plus position in the epoch, so that
looking ahead crosses epochs without a seam. What is done about a rank stands in
:mod:`superdl.coordinator.core.ranks`.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.journal import NOTES_PER_RANK, JobStalls
from superdl.coordinator.core.samples import EVERY_EPOCH, SetKey
from superdl.coordinator.core.teams import NO_TEAM
from superdl.super_wire.counters import WorkCounters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.events import FillUp
    from superdl.coordinator.core.journal import BatchNote
    from superdl.coordinator.core.plan import Plan
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.samples import Ints
    from superdl.coordinator.core.timing import Pace

_GAP_BATCHES = 64
_LAPSED_S = 1e8
_ENDLESS = 2**63 - 1
_BEYOND_SHARE_S = 1e7
_CAUTION_UP = 1.5
_CAUTION_DOWN = 0.99
_CAUTION_MAX = 16.0
"""A stall widens a cursor's look-ahead by so much, up to the most; a batch that was there narrows it."""


@dataclass(slots=True)
class JobCounters(WorkCounters):
    """What a job has cost and gained so far; its dollars are the ledger's to tell."""

    requests_in_flight: int = 0


@dataclass(slots=True)
class ClosedJobs:
    """The account of all jobs that have closed."""

    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)

    def add(self, job: Job) -> None:
        """Add the figures of a job that closes."""
        for name, value in asdict(job.counters).items():
            setattr(self.counters, name, getattr(self.counters, name) + value)
        self.stalls.batches.update(job.stalls.batches)
        self.stalls.wait_us.update(job.stalls.wait_us)


class CursorSpan(NamedTuple):
    """The batches of a rank from ``start`` to before ``stop``, in absolute positions."""

    job: str
    rank: int
    start: int
    stop: int


class Ahead(NamedTuple):
    """What was absent when a rank looked at the batches from ``start`` to before ``stop``.

    Of samples that are to be tried again, ``alone`` and ``failed_by`` are those of their
    :class:`superdl.coordinator.core.queues.Retry`.
    """

    start: int
    stop: int
    samples: SetKey
    indices: Ints
    alone: bool = False
    failed_by: int | None = None


@dataclass(slots=True, eq=False)
class Cursor:
    """Where one rank stands in its job's plan.

    All before ``watermark`` has been read. All before ``lookahead`` has been looked at, and what was absent
    of it stands in ``pending`` (by position) or was requested. All before ``asked`` is known to the sampler.
    ``caution`` says how much farther than needed it looks ahead: more after each stall, less and less without
    one.
    """

    job: Job = field(repr=False)
    rank: int
    watermark: int
    lookahead: int
    asked: int
    yielded: int
    last_seen_s: float
    last_read_s: float
    pace: Pace
    reach: int = 0
    """All that the sampler has ever been given is before it."""
    counted: int = 0
    """All before it has been counted as reused or not."""
    fresh: bool = True
    """Nothing of it was read since it was opened, or sought out another place."""
    caution: float = 1.0
    lapsed: bool = False
    """It has shown no sign of life lately."""
    sees_store: bool = False
    """Its readers take what the store has straight from there."""
    wanted_bytes: int = 0
    notes: deque[BatchNote] = field(default_factory=lambda: deque(maxlen=NOTES_PER_RANK))
    read_ahead: set[int] = field(default_factory=set)
    pending: deque[Ahead] = field(default_factory=deque)

    @property
    def key(self) -> CursorKey:
        """Its name, by job and rank."""
        return self.job.name, self.rank

    def seek(self, position: int, now: float) -> None:
        """The sampler went elsewhere: all plans for this rank begin again at ``position``."""
        self.watermark = self.lookahead = self.asked = self.yielded = self.counted = position
        self.read_ahead.clear()
        self.pending.clear()
        self.last_read_s = now
        self.fresh = True
        self.pace.restart(now)

    def look_again(self) -> None:
        """What was looked at may not be there any more: look at all of it again."""
        self.lookahead = self.watermark
        self.pending.clear()

    def put(self, ahead: Ahead) -> None:
        """Add what was found absent, in the order of the plan."""
        bisect.insort(self.pending, ahead, key=lambda other: other.start)

    def read(self, position: int, now: float, *, stalled: bool) -> None:
        """A batch was read; batches may be read out of order, and reports may be lost."""
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
        if max(self.read_ahead) - self.watermark > _GAP_BATCHES:  # a report was lost: do not wait for it
            self.watermark = min(self.read_ahead)
        while self.watermark in self.read_ahead or self._has_nothing():
            self.read_ahead.discard(self.watermark)
            self.watermark += 1
        if self.watermark > before:
            self.pace.read(self.watermark - before, now, stalled=stalled)
            self.last_read_s = now
            self.lookahead = max(self.lookahead, self.watermark)

    def pass_empty(self) -> None:
        """Move the watermark past batches that were given out and are empty, of which no report tells."""
        while self._has_nothing():
            self.watermark += 1
        self.lookahead = max(self.lookahead, self.watermark)

    def _has_nothing(self) -> bool:
        _, position = self.job.epoch_and_position(self.watermark)
        return self.watermark < self.asked and self.job.plan.is_empty(position, self.rank)

    def skip_to(self, position: int) -> None:
        """All before ``position`` is done with, whether or not it was reported as read."""
        if position > self.watermark:
            self.watermark = position
            self.read_ahead = {read for read in self.read_ahead if read >= position}
            self.lookahead = max(self.lookahead, position)

    @property
    def interval_s(self) -> float:
        """Time between two of its batches."""
        return self.pace.interval_s

    @property
    def next_ahead(self) -> int:
        """The first position that is not known to be seen to."""
        return max(self.pending[0].start if self.pending else self.lookahead, self.watermark)

    def deadline_s(self) -> float:
        """When the job will want the first batch that is not known to be seen to; never, if nobody reads."""
        if self.job.fill is not None:
            return math.inf
        return self.last_read_s + (self.next_ahead - self.watermark) * self.interval_s


@dataclass(slots=True, eq=False)
class Job:
    """A training run's view of a dataset: its plan, its ranks seen here, and its account."""

    name: str
    dataset: bytes
    random: bool
    plan: Plan
    team: str = NO_TEAM
    cursors: dict[int, Cursor] = field(default_factory=dict)
    counters: JobCounters = field(default_factory=JobCounters)
    stalls: JobStalls = field(default_factory=JobStalls)
    fill: FillUp | None = None
    """That nobody reads it, and how far it is to fill the cache or the store."""
    is_full: str = ""
    """Why it may fill no further."""
    beyond_share: bool = False
    """Whether its team held more of the cache than its share, when memory was short last."""
    straight: bool = False
    """Whether all its readers see the store: then what lies there is wanted in the cache only where a reader
    misses it.
    """

    def absolute(self, epoch: int, position: int) -> int:
        """The absolute position of a batch."""
        return epoch * self.plan.batches_per_epoch + position

    def epoch_and_position(self, absolute: int) -> tuple[int, int]:
        """The inverse of :meth:`absolute`."""
        return divmod(absolute, self.plan.batches_per_epoch)

    @property
    def end(self) -> int:
        """The absolute position at which the known part of the plan ends."""
        epoch = self.plan.only_epoch
        return _ENDLESS if epoch is None else self.absolute(epoch + 1, 0)

    def samples_of(self, epoch: int) -> SetKey:
        """The sample set that this job reads in ``epoch``."""
        return SetKey(self.dataset, epoch if self.random else EVERY_EPOCH)

    @property
    def lapsed(self) -> bool:
        """Whether no rank of it has shown a sign of life lately."""
        return bool(self.cursors) and all(cursor.lapsed for cursor in self.cursors.values())

    def sees_store_changed(self) -> None:
        """A rank has come or gone, or its readers see the store now, or do not; what was passed over because
        it lies there is looked at again.
        """
        was_straight = self.straight
        self.straight = bool(self.cursors) and all(cursor.sees_store for cursor in self.cursors.values())
        if was_straight and not self.straight:
            for cursor in self.cursors.values():
                cursor.look_again()

    @property
    def _living(self) -> list[Cursor]:
        """The ranks that show signs of life; all, if none does."""
        lapsed = self.lapsed
        return [cursor for cursor in self.cursors.values() if cursor.lapsed == lapsed]

    @property
    def watermark(self) -> int:
        """Absolute position of the slowest rank."""
        return min(cursor.watermark for cursor in self._living)

    @property
    def asked(self) -> int:
        """Absolute position before which a sampler may know all batches."""
        return max(cursor.asked for cursor in self.cursors.values())

    @property
    def interval_s(self) -> float:
        """Time between two batches of the fastest rank."""
        return min(cursor.interval_s for cursor in self._living)

    def due_in_s(self, batches: Ints) -> NDArray[np.float64]:
        """Seconds until batches so far from the slowest rank are wanted; 0 for what was given out.

        A job that shows no sign of life wants everything after all others, and before it one of a team that
        holds more than its share.
        """
        seconds = np.multiply(batches, self.interval_s, dtype=np.float64)
        if self.lapsed:
            return seconds + _LAPSED_S
        if self.beyond_share:
            seconds += _BEYOND_SHARE_S
        places = batches + self.watermark
        for low, end in {
            (cursor.watermark, max(cursor.yielded, cursor.watermark + 1)) for cursor in self._living
        }:
            seconds[(places >= low) & (places < end)] = 0.0
        return seconds
