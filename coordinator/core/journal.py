"""What is kept for people: what happened to a batch, why readers had to wait, whether the cache thrashes.

Nothing is decided by it. Notes are kept while there is room: of ranks (a page was given out, batches were
looked at, a reader missed or read one), and the newest requests. What that means is worked out in
:mod:`superdl.coordinator.core.diagnosis`.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from superdl.coordinator.core.events import RequestDone
    from superdl.coordinator.core.queues import BatchPlace
    from superdl.super_wire.request import RequestKind

NOTES_PER_RANK = 256
_RECENT_STALLS = 1024
"""So many stalls of a job are remembered one by one; all are in its totals."""

_WAITS_MAX = 8192
_HALF_LIFE_S = 60.0
_SHARE_HIGH = 0.02
_SHARE_LOW = 0.01
_SAMPLES_LEAST = 500.0


class NoteKind(enum.Enum):
    """What can happen to the batches of a rank, in words; ``{}`` is the note's number."""

    PLANNED = "the sampler was told of it"
    LOOKED = "looked ahead to it, with its neighbours: {} samples were absent"
    MISSED = "a reader missed {} of its samples"
    READ = "read, {} samples at the first attempt"


class BatchNote(NamedTuple):
    """Something happened to the batches from ``start`` to before ``stop``, in absolute positions."""

    at_s: float
    kind: NoteKind
    start: int
    stop: int
    number: int = 0


class Cause(enum.Enum):
    """Why a batch was late; users see what `super_wire.waits` makes of the value."""

    COLD_START = "cold_start"
    """Functions were starting, or the job itself: nothing can be ahead of its first batches."""
    THROTTLE = "throttle"
    """Executors took fewer requests at once than they have functions."""
    SOURCE = "source"
    """Functions were at work, and waited for objects more than they decoded."""
    STORE = "store"
    """Its samples lie in the store and were on their way into the cache."""
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
    store_us: int = 0

    def add(self, answer: RequestDone, kind: RequestKind) -> None:
        """A function has answered."""
        self.answers += 1
        self.cold_starts += answer.cold_start
        if not kind.decodes:
            self.store_us += answer.fetch_us
            return
        self.fetch_us += answer.fetch_us
        self.decode_us += answer.decode_us
        self.duration_us += answer.duration_us

    def since(self, earlier: Work) -> Work:
        """What came after ``earlier``."""
        return Work(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def waits_for_the_source(self) -> bool:
        """Whether the source is what keeps functions from more. They fetch several objects at once, so that
        the sum of those times alone says little: decoding must leave them half of their time too.
        """
        return self.fetch_us > self.decode_us and 2 * self.decode_us < self.duration_us


@dataclass(slots=True)
class JobStalls:
    """A job's stalls: how many and how long by cause, and the newest one by one."""

    batches: Counter[Cause] = field(default_factory=Counter)
    wait_us: Counter[Cause] = field(default_factory=Counter)
    recent: deque[Stall] = field(default_factory=lambda: deque(maxlen=_RECENT_STALLS))

    def add(self, stall: Stall) -> None:
        """Count a stall."""
        self.batches[stall.cause] += 1
        self.wait_us[stall.cause] += stall.wait_us
        self.recent.append(stall)

    def by_wait(self) -> dict[str, tuple[int, int]]:
        """Batches and microseconds by the name that users see (`super_wire.waits`)."""
        totals: dict[str, tuple[int, int]] = {}
        for cause, count in self.batches.items():
            batches, wait_us = totals.get(name := wait_for(cause.value), (0, 0))
            totals[name] = batches + count, wait_us + self.wait_us[cause]
        return totals


class _FirstMiss(NamedTuple):
    """What was known when a reader first missed samples of a batch; ``cause`` where that alone decides."""

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

    def begin(self, place: BatchPlace, cause: Cause | None, dataset: bytes) -> None:
        """A reader misses samples of a batch for the first time."""
        if len(self.waits) >= _WAITS_MAX:  # of readers that never told the end
            del self.waits[next(iter(self.waits))]
        self.waits[place] = _FirstMiss(cause, replace(self.work_for(dataset)))

    def record_lost(self, place: BatchPlace) -> None:
        """The cache does not hold what was believed to be there for a reader."""
        first = self.waits.get(place)
        if first is not None and first.cause is None:
            self.waits[place] = first._replace(cause=Cause.CACHE_MEMORY)


@dataclass(slots=True)
class _Fading:
    """What jobs came to need of a dataset lately, and how much of it had been dropped before."""

    needed: float = 0.0
    again: float = 0.0
    at_s: float = -math.inf
    thrashing: bool = False

    def note(self, needed: int, again: int, now: float) -> bool:
        """Whether that begins to be thrash."""
        fading = 0.5 ** ((now - self.at_s) / _HALF_LIFE_S)
        self.needed, self.again = self.needed * fading + needed, self.again * fading + again
        self.at_s = now
        enough = self.needed >= _SAMPLES_LEAST
        begins = not self.thrashing and again > 0 and enough and self.again > _SHARE_HIGH * self.needed
        self.thrashing = begins or (self.thrashing and enough and self.again > _SHARE_LOW * self.needed)
        return begins


@dataclass(slots=True)
class Thrash:
    """How much of what jobs come to need had been dropped before; what is long ago counts less and less."""

    reproduced_samples: int = 0
    """Since the start, those of random recipes included."""
    _datasets: dict[bytes, _Fading] = field(default_factory=dict)

    def needed(self, dataset: bytes, samples: int, now: float) -> None:
        """A job has come to samples of a dataset, whether or not they are there."""
        self._datasets.setdefault(dataset, _Fading()).note(samples, 0, now)

    def produced_again(self, dataset: bytes, samples: int, now: float) -> bool:
        """Samples are asked for that were dropped before; whether that begins to be thrash."""
        return self._datasets.setdefault(dataset, _Fading()).note(0, samples, now)

    def forget(self) -> None:
        """Other jobs are there than were: whether those thrash is to be seen."""
        self._datasets.clear()

    @property
    def thrashing(self) -> bool:
        """Whether any dataset's samples are dropped and produced again."""
        return any(dataset.thrashing for dataset in self._datasets.values())
