"""Record information for users, not for decisions: the history of batches, causes of stalls, thrash."""

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
_RECENT_STALLS = 1024  # number of stalls kept individually per job; the totals include all
_WAITS_MAX = 8192  # open stalls, because the report that ends one may be lost
_HALF_LIFE_S = 60.0  # of the counts of needed samples and of dropped ones
_SHARE_HIGH = 0.02  # thrashing begins at this share of needed samples that had been dropped
_SHARE_LOW = 0.01  # thrashing ends below this share
_SAMPLES_LEAST = 500.0  # fewer are not significant


class NoteKind(enum.Enum):
    """The events in the batch history of a rank. ``{}`` is replaced with the number in the note."""

    PLANNED = "it was sent to the sampler"
    LOOKED = "looked ahead to it and its neighbours: {} samples were absent"
    MISSED = "a reader was missing {} of its samples"
    READ = "read, with {} samples present at the first attempt"


class BatchNote(NamedTuple):
    """A note on the batches at the absolute positions [start, stop)."""

    at_s: float
    kind: NoteKind
    start: int
    stop: int
    number: int = 0


class Cause(enum.Enum):
    """Causes of late batches. `super_wire.waits` maps the values to names for users."""

    # Functions or the job were starting, so nothing could be ready in time
    COLD_START = "cold_start"
    THROTTLE = "throttle"  # executors accepted fewer concurrent requests than they have functions
    SOURCE = "source"  # functions were busy, mostly waiting for objects
    STORE = "store"  # its samples were being restored from the store
    DECODE = "decode"  # functions were busy, mostly decoding
    RETRY = "retry"  # its samples had failed and waited for a retry
    CACHE_MEMORY = "cache_memory"  # the cache had no room for its samples, or had lost them
    SPENDING = "spending"  # near a spending cap, only samples that readers wait for are produced
    LATE_PLANNING = "late_planning"  # functions were idle, but its samples had not been requested
    UNKNOWN = "unknown"  # the report of the first miss was lost


class Stall(NamedTuple):
    """A batch that a reader waited for, by rank, epoch and position. ``wait_us`` excludes attempts."""

    rank: int
    epoch: int
    position: int
    cause: Cause
    wait_us: int


@dataclass(slots=True)
class Work:
    """The work of functions for a dataset, according to their results so far."""

    answers: int = 0
    cold_starts: int = 0
    throttled: int = 0
    fetch_us: int = 0
    decode_us: int = 0
    duration_us: int = 0
    store_us: int = 0

    def add(self, answer: RequestDone, kind: RequestKind) -> None:
        """Add the result of a function."""
        self.answers += 1
        self.cold_starts += answer.cold_start
        if not kind.decodes:
            self.store_us += answer.fetch_us
            return
        self.fetch_us += answer.fetch_us
        self.decode_us += answer.decode_us
        self.duration_us += answer.duration_us

    def since(self, earlier: Work) -> Work:
        """Return the work done after ``earlier``."""
        return Work(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def waits_for_the_source(self) -> bool:
        """Return whether the source limits the functions."""
        # Objects are fetched concurrently, so decoding must also take less than half of the duration.
        return self.fetch_us > self.decode_us and 2 * self.decode_us < self.duration_us


@dataclass(slots=True)
class JobStalls:
    """The stalls of a job: their number and duration by cause, and the most recent ones."""

    batches: Counter[Cause] = field(default_factory=Counter)
    wait_us: Counter[Cause] = field(default_factory=Counter)
    recent: deque[Stall] = field(default_factory=lambda: deque(maxlen=_RECENT_STALLS))

    def add(self, stall: Stall) -> None:
        """Count a stall."""
        self.batches[stall.cause] += 1
        self.wait_us[stall.cause] += stall.wait_us
        self.recent.append(stall)

    def by_wait(self) -> dict[str, tuple[int, int]]:
        """Return the number of batches and the microseconds, by the names for users (`super_wire.waits`)."""
        totals: dict[str, tuple[int, int]] = {}
        for cause, count in self.batches.items():
            batches, wait_us = totals.get(name := wait_for(cause.value), (0, 0))
            totals[name] = batches + count, wait_us + self.wait_us[cause]
        return totals


class _FirstMiss(NamedTuple):
    """The state at the first miss of a batch. ``cause`` is set if the state is enough to determine it."""

    cause: Cause | None
    work: Work


@dataclass(slots=True)
class Stalls:
    """The batches that readers are waiting for, oldest first, and the work of functions by dataset."""

    waits: dict[BatchPlace, _FirstMiss] = field(default_factory=dict)
    works: dict[bytes, Work] = field(default_factory=dict)

    def work_for(self, dataset: bytes) -> Work:
        """Return the work of functions for a dataset."""
        return self.works.setdefault(dataset, Work())

    def begin(self, place: BatchPlace, cause: Cause | None, dataset: bytes) -> None:
        """Record the first time that a reader misses samples of a batch."""
        if len(self.waits) >= _WAITS_MAX:  # of readers that never reported completion
            del self.waits[next(iter(self.waits))]
        self.waits[place] = _FirstMiss(cause, replace(self.work_for(dataset)))

    def record_lost(self, place: BatchPlace) -> None:
        """Attribute a stall to cache memory, because the cache lost samples that were assumed resident."""
        first = self.waits.get(place)
        if first is not None and first.cause is None:
            self.waits[place] = first._replace(cause=Cause.CACHE_MEMORY)


@dataclass(slots=True)
class _Fading:
    """Exponentially decaying counts of the samples that jobs needed, and of those that had been dropped."""

    needed: float = 0.0
    again: float = 0.0
    at_s: float = -math.inf
    thrashing: bool = False

    def note(self, needed: int, again: int, now: float) -> bool:
        """Add samples. Return whether thrashing begins."""
        fading = 0.5 ** ((now - self.at_s) / _HALF_LIFE_S)
        self.needed, self.again = self.needed * fading + needed, self.again * fading + again
        self.at_s = now
        enough = self.needed >= _SAMPLES_LEAST
        begins = not self.thrashing and again > 0 and enough and self.again > _SHARE_HIGH * self.needed
        self.thrashing = begins or (self.thrashing and enough and self.again > _SHARE_LOW * self.needed)
        return begins


@dataclass(slots=True)
class Thrash:
    """The share of needed samples that had been dropped. Old samples have decaying weights."""

    reproduced_samples: int = 0  # count since the start, including random recipes
    _datasets: dict[bytes, _Fading] = field(default_factory=dict)

    def needed(self, dataset: bytes, samples: int, now: float) -> None:
        """Count samples that a job needs, whether they are present or not."""
        self._datasets.setdefault(dataset, _Fading()).note(samples, 0, now)

    def produced_again(self, dataset: bytes, samples: int, now: float) -> bool:
        """Count requested samples that had been dropped, and return whether thrashing begins."""
        return self._datasets.setdefault(dataset, _Fading()).note(0, samples, now)

    def forget(self) -> None:
        """Start over, because a different set of jobs may not thrash."""
        self._datasets.clear()

    @property
    def thrashing(self) -> bool:
        """Return whether samples of any dataset are dropped and produced again."""
        return any(dataset.thrashing for dataset in self._datasets.values())
