"""Diagnostics for users: batch history, causes of stalls, and thrashing. No decision depends on them."""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from superdl.coordinator.core.events import RequestDone
    from superdl.coordinator.core.queues import BatchPlace
    from superdl.super_wire.request import RequestKind

NOTES_PER_RANK = 256
_RECENT_STALLS = 1024  # kept individually per job; the totals include all
_WAITS_MAX = 8192  # open stalls, because the report that ends one may be lost
_HALF_LIFE_S = 60.0  # of the counts of needed and of dropped samples
_SHARE_HIGH = 0.02  # thrashing begins at this share of needed samples that had been dropped
_SHARE_LOW = 0.01  # thrashing ends below this share
_SAMPLES_LEAST = 500.0  # fewer are not significant


class BatchNote(NamedTuple):
    """A note about the batches at absolute positions [start, stop)."""

    at_s: float
    start: int
    stop: int
    text: str


class Cause(enum.StrEnum):
    """Causes of late batches, named as in `super_wire.stall_causes`."""

    STARTING = "starting"  # functions or the job were starting, or the samples had not been requested
    STORAGE = "storage"  # functions waited for the source or the store, or the samples for a retry
    DECODING = "decoding"
    LIMITS = "limits"  # throttled, or near a spending cap
    CACHE = "cache"  # the cache had no room for the samples, or had lost them
    UNKNOWN = "unknown"  # the report of the first miss was lost


class Stall(NamedTuple):
    """A batch that a reader waited for. ``wait_us`` excludes the read attempts themselves."""

    rank: int
    epoch: int
    position: int
    cause: Cause
    wait_us: int


@dataclass(slots=True)
class Work:
    """Work that functions have done for a dataset, according to their results."""

    results: int = 0
    cold_starts: int = 0
    throttled: int = 0
    fetch_us: int = 0
    decode_us: int = 0
    duration_us: int = 0
    store_us: int = 0

    def add(self, result: RequestDone, kind: RequestKind) -> None:
        """Add a result."""
        self.results += 1
        self.cold_starts += result.cold_start
        if not kind.decodes:
            self.store_us += result.fetch_us
            return
        self.fetch_us += result.fetch_us
        self.decode_us += result.decode_us
        self.duration_us += result.duration_us

    def since(self, earlier: Work) -> Work:
        """Return the work done after ``earlier``."""
        return Work(*(now - before for now, before in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def waits_for_the_source(self) -> bool:
        """Return whether fetching from the source is the bottleneck."""
        # Objects are fetched concurrently, so decoding must also take less than half of the duration.
        return self.fetch_us > self.decode_us and 2 * self.decode_us < self.duration_us


@dataclass(slots=True)
class JobStalls:
    """A job's stalls: totals by cause, and the most recent ones."""

    batches: Counter[Cause] = field(default_factory=Counter)
    wait_us: Counter[Cause] = field(default_factory=Counter)
    recent: deque[Stall] = field(default_factory=lambda: deque(maxlen=_RECENT_STALLS))

    def add(self, stall: Stall) -> None:
        """Count a stall."""
        self.batches[stall.cause] += 1
        self.wait_us[stall.cause] += stall.wait_us
        self.recent.append(stall)


class _FirstMiss(NamedTuple):
    """A batch's first miss. ``cause`` is ``None`` if it depends on the functions' work since then."""

    cause: Cause | None
    work: Work


@dataclass(slots=True)
class Stalls:
    """Batches that readers are waiting for, oldest first, and the functions' work by dataset."""

    waits: dict[BatchPlace, _FirstMiss] = field(default_factory=dict)
    works: dict[bytes, Work] = field(default_factory=dict)

    def work_for(self, dataset: bytes) -> Work:
        """Return the work that functions have done for a dataset."""
        return self.works.setdefault(dataset, Work())

    def begin(self, place: BatchPlace, cause: Cause | None, dataset: bytes) -> None:
        """Record a batch's first miss."""
        if len(self.waits) >= _WAITS_MAX:
            del self.waits[next(iter(self.waits))]
        self.waits[place] = _FirstMiss(cause, replace(self.work_for(dataset)))

    def record_lost(self, place: BatchPlace) -> None:
        """Attribute a stall to the cache, which has lost samples that were assumed resident."""
        first = self.waits.get(place)
        if first is not None and first.cause is None:
            self.waits[place] = first._replace(cause=Cause.CACHE)


@dataclass(slots=True)
class _Fading:
    """Exponentially decaying counts of needed samples, and of those that had been dropped before."""

    needed: float = 0.0
    again: float = 0.0
    at_s: float = -math.inf
    thrashing: bool = False

    def note(self, needed: int, again: int, now: float) -> bool:
        """Add to the counts. Return whether thrashing has just begun."""
        fading = 0.5 ** ((now - self.at_s) / _HALF_LIFE_S)
        self.needed, self.again = self.needed * fading + needed, self.again * fading + again
        self.at_s = now
        enough = self.needed >= _SAMPLES_LEAST
        begins = not self.thrashing and again > 0 and enough and self.again > _SHARE_HIGH * self.needed
        self.thrashing = begins or (self.thrashing and enough and self.again > _SHARE_LOW * self.needed)
        return begins


@dataclass(slots=True)
class Thrash:
    """The share of needed samples that had been dropped, by dataset."""

    reproduced_samples: int = 0  # since the start, including random recipes
    _datasets: dict[bytes, _Fading] = field(default_factory=dict)

    def add(self, dataset: bytes, now: float, *, needed: int = 0, again: int = 0) -> bool:
        """Count samples that a job needs, and requested samples that had been dropped before.

        Return whether thrashing has just begun.
        """
        return self._datasets.setdefault(dataset, _Fading()).note(needed, again, now)

    def clear(self) -> None:
        """Reset the counts, because a different set of jobs may not thrash."""
        self._datasets.clear()

    @property
    def thrashing(self) -> bool:
        """Return whether any dataset's samples keep being dropped and produced again."""
        return any(dataset.thrashing for dataset in self._datasets.values())
