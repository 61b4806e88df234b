"""Queues of work that is waiting for a due time, a retry, a reader, room in the cache, or a late result."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Container

    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.settings import CoreSettings

CursorKey: TypeAlias = tuple[str, int]  # job and rank
_Item = TypeVar("_Item")

_VOID_MAX = 64  # void heap entries to tolerate, beyond the number of valid ones
_VALID_S = 3.0  # readers repeat their misses every second
_PAUSE_S = 0.05  # between searches for room that free too little
_PAUSE_PER_JOB_S = 0.001
_STRAGGLERS_MAX = 64  # per check


class BatchPlace(NamedTuple):
    """A batch's position in a job."""

    job: str
    rank: int
    epoch: int
    position: int


class CursorSpan(NamedTuple):
    """A rank's batches at the absolute positions [start, stop)."""

    job: str
    rank: int
    start: int
    stop: int


class TimeQueue(Generic[_Item]):
    """Items ordered by time. Ties keep their order of arrival, so that runs are reproducible."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Item]] = []
        self._valid: dict[_Item, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, item: _Item) -> bool:
        return item in self._valid

    def add(self, item: _Item, at_s: float) -> None:
        """Add an item, or change its time."""
        self._count += 1
        self._valid[item] = self._count  # voids the item's earlier heap entry
        heapq.heappush(self._heap, (at_s, self._count, item))
        if len(self._heap) > 2 * len(self._valid) + _VOID_MAX:
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, item: _Item) -> None:
        """Remove an item, if present."""
        self._valid.pop(item, None)

    def soonest_s(self) -> float | None:
        """Return the earliest time, or ``None`` if the queue is empty."""
        while self._heap:
            at_s, number, item = self._heap[0]
            if self._valid.get(item) == number:
                return at_s
            heapq.heappop(self._heap)
        return None

    def pop(self) -> _Item | None:
        """Remove and return the earliest item, or return ``None`` if the queue is empty."""
        if self.soonest_s() is None:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._valid[item]
        return item

    def pop_due(self, now: float) -> list[_Item]:
        """Remove and return the items that are due, earliest first."""
        due = []
        while (at_s := self.soonest_s()) is not None and at_s <= now:
            due.append(heapq.heappop(self._heap)[2])
            del self._valid[due[-1]]
        return due


@dataclass(frozen=True, slots=True, eq=False)
class Retry:
    """Samples to retry, and the job to charge."""

    samples: SetKey
    indices: Ints
    job: str
    # Request each sample separately, because one may have crashed its function.
    alone: bool = False
    # The executor that failed. Others are tried first.
    failed_by: int | None = None
    # Whether the source failed.
    of_source: bool = False


@dataclass(slots=True)
class Outage:
    """Consecutive failures that are not a sample's fault. At most one is counted per wait."""

    failures: int = 0
    until_s: float = 0.0  # no attempts before this time
    probing: bool = False  # an attempt is in flight

    def failed(self, settings: CoreSettings, now: float) -> bool:
        """Count a failure and extend the wait. Return whether it was counted."""
        if now < self.until_s and not self.probing:
            return False
        self.failures, self.probing = self.failures + 1, False
        self.until_s = now + settings.backoff_after_s(self.failures)
        return True

    def may_try(self, settings: CoreSettings, now: float) -> bool:
        """Return whether an attempt may be made now. Allows one per wait."""
        if now < self.until_s:
            return False
        self.until_s, self.probing = now + settings.backoff_after_s(self.failures), True
        return True


class Misses(NamedTuple):
    """Samples of a batch that a reader is missing, and the time at which its report expires."""

    until_s: float
    samples: SetKey
    indices: Ints


class ReportedMisses:
    """The samples that readers are waiting for, by batch, oldest report first.

    Readers repeat their reports every second. A report that is not repeated expires, because the
    samples have arrived or the reader gave up. Until then, the batch's samples must stay in the cache.
    """

    def __init__(self) -> None:
        self._by_batch: dict[BatchPlace, Misses] = {}
        self._unserved: dict[BatchPlace, None] = {}

    def __len__(self) -> int:
        return len(self._by_batch)

    def __getitem__(self, place: BatchPlace) -> Misses:
        return self._by_batch[place]

    @property
    def unserved(self) -> Collection[BatchPlace]:
        """Return the batches that may need requests, in order of arrival."""
        return self._unserved.keys()

    def report(self, place: BatchPlace, samples: SetKey, indices: Ints, now: float) -> None:
        """Record the samples that a reader is missing in a batch."""
        self._by_batch.pop(place, None)  # keep the reports in order of their expiry
        self._by_batch[place] = Misses(now + _VALID_S, samples, indices)
        self._unserved[place] = None
        self._expire(now)

    def reopen(self, samples: SetKey) -> None:
        """Mark a set's batches as unserved, because samples have become absent."""
        self._unserved.update(
            (place, None) for place, misses in self._by_batch.items() if misses.samples == samples
        )

    def served(self, place: BatchPlace) -> None:
        """Mark a batch as served: its missing samples are present or in flight."""
        self._unserved.pop(place, None)

    def discard(self, place: BatchPlace) -> None:
        """Remove a batch that was read."""
        self._by_batch.pop(place, None)
        self.served(place)

    def by_set(self, now: float) -> dict[SetKey, Ints]:
        """Return all missing samples, by set and possibly with duplicates."""
        self._expire(now)
        collected: dict[SetKey, list[Ints]] = {}
        for misses in self._by_batch.values():
            collected.setdefault(misses.samples, []).append(misses.indices)
        return {key: np.concatenate(parts) for key, parts in collected.items()}

    def next_expiry_s(self, now: float) -> float | None:
        """Return when the next report expires, or ``None`` if there is none."""
        self._expire(now)
        return next((misses.until_s for misses in self._by_batch.values()), None)

    def _expire(self, now: float) -> None:
        while self._by_batch:
            place, misses = next(iter(self._by_batch.items()))
            if misses.until_s > now:
                return
            self.discard(place)


@dataclass(slots=True)
class RoomSearch:
    """The last failed search for room in the cache, and the cursors that are waiting for room.

    A search takes milliseconds per job. After a failure, another search is futile until an event has
    arrived and some time has passed, unless it may drop samples that are needed sooner.
    """

    until_s: float = -math.inf
    events: int = -1
    later_than_s: float = math.inf
    waiting: dict[CursorKey, None] = field(default_factory=dict)
    # Time of the next check of the teams' shares
    shares_again_s: float = -math.inf

    def failed(self, events: int, later_than_s: float, now: float, *, jobs: int) -> None:
        """Record that dropping samples needed after ``later_than_s`` did not free enough room."""
        self.until_s = now + _PAUSE_S + _PAUSE_PER_JOB_S * jobs
        self.events = events
        self.later_than_s = later_than_s

    def reset(self) -> None:
        """Allow a new search immediately."""
        self.until_s = -math.inf
        self.events = -1

    def futile(self, events: int, later_than_s: float, now: float) -> bool:
        """Return whether a search could free no more than the last one."""
        return later_than_s >= self.later_than_s and not self.over(events, now)

    def over(self, events: int, now: float) -> bool:
        """Return whether the last failed search is outdated."""
        return now >= self.until_s and events != self.events

    def over_at_s(self, events: int) -> float | None:
        """Return when to search again, or ``None`` if there is no point until another event arrives."""
        return self.until_s if events != self.events else None


class Stragglers:
    """Requests that are late or may become late, and the number of hedges."""

    def __init__(self) -> None:
        self._later: TimeQueue[int] = TimeQueue()
        self._late: dict[int, None] = {}
        self.landings = 0
        # Skip the slow check for stragglers that readers are waiting for before this time
        self.look_again_s = 0.0
        self.hedges = 0

    def watch(self, number: int, late_at_s: float | None) -> None:
        """Watch a new request, if the time at which it becomes late is known."""
        if late_at_s is not None:
            self._later.add(number, late_at_s)

    def become_late(self, now: float, in_flight: Container[int]) -> None:
        """Move requests that are now late to the stragglers."""
        self._late.update((number, None) for number in self._later.pop_due(now) if number in in_flight)

    def landed(self, number: int) -> None:
        """Record that a request has ended."""
        self.landings += 1
        self._late.pop(number, None)

    def raced(self, number: int) -> None:
        """Record that a straggler now has a rival."""
        self._late.pop(number, None)
        self.hedges += 1

    @property
    def late(self) -> list[int]:
        """Return the first stragglers without a rival."""
        return list(itertools.islice(self._late, _STRAGGLERS_MAX))

    def next_late_s(self) -> float | None:
        """Return when the next request becomes late."""
        return self._later.soonest_s()

    def affordable(self, share: float) -> int:
        """Return how many more hedges are allowed, if ``share`` of all finished requests may be hedged."""
        return max(0, int(share * self.landings) - self.hedges)


class UnsavedQueue:
    """Cached samples to write to the store, in order of arrival, each at most once.

    ``enabled`` is set if some functions cannot access the store, or if a job fills the store.
    """

    def __init__(self) -> None:
        self.enabled = False
        self._waiting: dict[SetKey, deque[tuple[float, Ints]]] = {}
        self._is_queued: dict[SetKey, Bools] = {}

    def add(self, key: SetKey, size: int, indices: Ints, now: float) -> None:
        """Add samples of a set that has ``size`` samples in total."""
        is_queued = self._is_queued.setdefault(key, np.zeros(size, dtype=np.bool_))
        fresh = indices[~is_queued[indices]]
        if fresh.size:
            is_queued[fresh] = True
            self._waiting.setdefault(key, deque()).append((now, fresh))

    def first(self) -> tuple[SetKey, float] | None:
        """Return the set with the longest-waiting sample, and the time when that sample was queued."""
        since = {key: waiting[0][0] for key, waiting in self._waiting.items()}
        return min(since.items(), key=lambda entry: entry[1]) if since else None

    def holds(self, key: SetKey, count: int) -> bool:
        """Return whether at least ``count`` samples of a set are queued."""
        return sum(indices.size for _, indices in itertools.islice(self._waiting[key], count)) >= count

    def pop(self, key: SetKey, count: int) -> Ints:
        """Remove and return the first samples of a set, up to ``count``."""
        waiting, taken = self._waiting[key], []
        while waiting and count:
            since_s, indices = waiting.popleft()
            if indices.size > count:
                waiting.appendleft((since_s, indices[count:]))
            taken.append(indices[:count])
            count -= taken[-1].size
        samples = np.concatenate(taken)
        self._is_queued[key][samples] = False
        if not waiting:
            del self._waiting[key], self._is_queued[key]
        return samples
