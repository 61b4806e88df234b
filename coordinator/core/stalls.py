"""Why readers had to wait: each batch that a reader missed samples of gets one cause, once it was read.

What is known at the first miss (were the samples asked for, did functions have nothing to do) and what
functions did until the batch was read decide it. Nothing else is decided by it: it is for people, who want to
know what to buy or to mend.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.samples import SampleState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.demands import BatchPlace
    from superdl.coordinator.core.events import RequestDone
    from superdl.coordinator.core.jobs import Job, Lane
    from superdl.coordinator.core.samples import SampleSet
    from superdl.coordinator.core.state import State

__all__ = ["Cause", "JobStalls", "Stall", "Stalls", "Work", "missed", "read", "record_lost"]

RECENT_STALLS = 1024
"""So many stalls of a job are remembered one by one; all are in its totals."""

_WAITS_MAX = 8192
_NOT_ASKED_FOR = frozenset({SampleState.UNKNOWN, SampleState.CHECKING, SampleState.ABSENT})


class Cause(enum.Enum):
    """Why a batch was late; the value goes to users."""

    COLD_START = "cold_start"
    """Functions were starting, or the job itself: nothing can be ahead of its first batches."""
    THROTTLE = "throttle"
    """Executors took fewer requests at once than they have functions."""
    SOURCE = "source"
    """Functions were at work, and waited for objects more than they decoded."""
    DECODE = "decode"
    """Functions were at work, decoding most of the time."""
    RETRY = "retry"
    """Its samples had failed and waited for another attempt."""
    CACHE_MEMORY = "cache_memory"
    """The cache had no room for its samples, or had lost them."""
    SPENDING = "spending"
    """Near a cap on spending only what a reader waits for is produced."""
    LATE_PLANNING = "late_planning"
    """Functions had nothing to do, and yet its samples had not been asked for."""
    UNKNOWN = "unknown"
    """The report of its first miss was lost."""


class Stall(NamedTuple):
    """A batch that a reader waited for, by rank, epoch and position; ``wait_us`` between its attempts."""

    rank: int
    epoch: int
    position: int
    cause: Cause
    wait_us: int


@dataclass(slots=True)
class Work:
    """What functions have answered for a dataset so far."""

    answers: int = 0
    cold_starts: int = 0
    throttled: int = 0
    fetch_us: int = 0
    decode_us: int = 0
    duration_us: int = 0

    def add(self, answer: RequestDone) -> None:
        """A function has answered."""
        self.answers += 1
        self.cold_starts += answer.cold_start
        self.fetch_us += answer.fetch_us
        self.decode_us += answer.decode_us
        self.duration_us += answer.duration_us

    def since(self, earlier: Work) -> Work:
        """What came after ``earlier``."""
        return Work(
            self.answers - earlier.answers,
            self.cold_starts - earlier.cold_starts,
            self.throttled - earlier.throttled,
            self.fetch_us - earlier.fetch_us,
            self.decode_us - earlier.decode_us,
            self.duration_us - earlier.duration_us,
        )

    @property
    def waits_for_the_source(self) -> bool:
        """Whether the source is what keeps functions from more. They fetch several objects at once, so that
        the sum of those times alone says little: decoding must leave them half of their time too.
        """
        return self.fetch_us > self.decode_us and 2 * self.decode_us < self.duration_us


@dataclass(slots=True)
class JobStalls:
    """A job's stalls: how many and how long by cause, and the newest one by one."""

    batches: dict[Cause, int] = field(default_factory=dict)
    wait_us: dict[Cause, int] = field(default_factory=dict)
    recent: deque[Stall] = field(default_factory=lambda: deque(maxlen=RECENT_STALLS))

    def add(self, stall: Stall) -> None:
        """Count a stall."""
        self.batches[stall.cause] = self.batches.get(stall.cause, 0) + 1
        self.wait_us[stall.cause] = self.wait_us.get(stall.cause, 0) + stall.wait_us
        self.recent.append(stall)


@dataclass(frozen=True, slots=True)
class _FirstMiss:
    """What was known when a reader missed samples of a batch for the first time.

    ``cause`` is set where that alone decides.
    """

    cause: Cause | None
    work: Work


@dataclass(slots=True)
class Stalls:
    """Batches that readers wait for now, the oldest first, and the work of functions by dataset."""

    waits: dict[BatchPlace, _FirstMiss] = field(default_factory=dict)
    works: dict[bytes, Work] = field(default_factory=dict)

    def work_for(self, dataset: bytes) -> Work:
        """What functions have answered for a dataset."""
        return self.works.setdefault(dataset, Work())


def missed(
    state: State, place: BatchPlace, samples: SampleSet, indices: NDArray[np.int64], now: float
) -> None:
    """A reader misses samples; the first time is what counts."""
    stalls, found = state.stalls, state.lane(place.job, place.rank)
    if place in stalls.waits or not indices.size or found is None:
        return
    if len(stalls.waits) >= _WAITS_MAX:  # of readers that never told the end
        del stalls.waits[next(iter(stalls.waits))]
    job, lane = found
    cause = _cause_at_once(state, job, lane, samples, indices, now)
    stalls.waits[place] = _FirstMiss(cause, replace(stalls.work_for(job.dataset)))


def record_lost(state: State, place: BatchPlace) -> None:
    """The cache does not hold what was believed to be there for a reader."""
    first = state.stalls.waits.get(place)
    if first is not None and first.cause is None:
        state.stalls.waits[place] = replace(first, cause=Cause.CACHE_MEMORY)


def read(state: State, place: BatchPlace, job: Job, wait_us: int, now: float) -> None:
    """A batch was read at last that a reader had missed samples of."""
    first = state.stalls.waits.pop(place, None)
    cause = Cause.UNKNOWN
    if first is not None:
        cause = first.cause or _bottleneck(state, job, first.work, now)
    job.stalls.add(Stall(place.rank, place.epoch, place.position, cause, wait_us))


def _cause_at_once(
    state: State, job: Job, lane: Lane, samples: SampleSet, indices: NDArray[np.int64], now: float
) -> Cause | None:
    """The cause, where what most of the missing samples were doing decides it; ``None``: functions were at
    work on them, or on others before them.
    """
    counts = np.bincount(samples.state[indices], minlength=len(SampleState))
    commonest = SampleState(int(counts.argmax()))
    if commonest is SampleState.WAITING:
        return Cause.THROTTLE if _is_limited(state, job, now) else Cause.RETRY
    if commonest not in _NOT_ASKED_FOR:
        return None  # also where a record came since the reader looked
    if lane.fresh:
        return Cause.COLD_START
    if samples.dropped[indices].any() or (job.name, lane.rank) in state.crowding.lanes:
        return Cause.CACHE_MEMORY
    if state.spending is not Spending.FREELY:
        return Cause.SPENDING
    return Cause.LATE_PLANNING if state.roster_of(job.dataset).idle(now) > 0 else None


def _bottleneck(state: State, job: Job, before: Work, now: float) -> Cause:
    """What functions were busy with between two looks at their work."""
    whole = state.stalls.work_for(job.dataset)
    done = whole.since(before)
    if not whole.answers or done.cold_starts * 2 > done.answers:
        return Cause.COLD_START
    if state.thrash.thrashing:
        return Cause.CACHE_MEMORY
    if done.throttled or _is_limited(state, job, now):
        return Cause.THROTTLE
    seen = done if done.fetch_us + done.decode_us else whole
    return Cause.SOURCE if seen.waits_for_the_source else Cause.DECODE


def _is_limited(state: State, job: Job, now: float) -> bool:
    """Whether an executor takes fewer requests at once than it has functions."""
    members = state.roster_of(job.dataset).members
    return any(member.concurrency.limit(now) < member.concurrency.capacity for member in members)
