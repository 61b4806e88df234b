"""Queues of items that wait for a time, a retry, a reader, room in the cache, or a late result."""

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

# Items refer to cursors, batches and requests by tuples and numbers, so that nothing here keeps them alive.
CursorKey: TypeAlias = tuple[str, int]  # a rank's cursor, by job and rank
_Item = TypeVar("_Item")

_VOID_MAX = 64  # void entries beyond the number of valid ones before a heap is rebuilt
_BELIEVED_S = 3.0  # readers repeat their misses every second
_PAUSE_S = 0.05  # between searches for room that free too little
_PAUSE_PER_JOB_S = 0.001
_LOOKED_AT = 64  # maximum stragglers per check


class BatchPlace(NamedTuple):
    """The position of a batch in a job. At most one reader at a time waits for it."""

    job: str
    rank: int
    epoch: int
    position: int


class TimeQueue(Generic[_Item]):
    """A heap of items by time. Equal times keep their order of arrival, so that runs repeat exactly."""

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
        # The heap is not searched. This voids the item's old entry.
        self._valid[item] = self._count
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
        """Remove and return the item with the earliest time, or ``None`` if the queue is empty."""
        if self.soonest_s() is None:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._valid[item]
        return item

    def take_until(self, now: float) -> list[_Item]:
        """Remove and return the items that are due, earliest first."""
        taken = []
        while (at_s := self.soonest_s()) is not None and at_s <= now:
            taken.append(heapq.heappop(self._heap)[2])
            del self._valid[taken[-1]]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Retry:
    """Samples that wait for a retry, and the job to charge for it."""

    samples: SetKey
    indices: Ints
    job: str
    # Whether each sample gets a separate invocation, because one of them may crash it.
    alone: bool = False
    # The executor where they failed. Others are tried first.
    failed_by: int | None = None
    # Whether the source failed to provide them.
    of_source: bool = False


@dataclass(slots=True)
class Outage:
    """Consecutive failures that are not the fault of a sample. At most one is counted per wait."""

    failures: int = 0
    until_s: float = 0.0  # no attempts before this time
    probing: bool = False  # whether an attempt is testing if the outage is over

    def failed(self, settings: CoreSettings, now: float) -> bool:
        """Count a failure and extend the wait. Return whether the failure is new."""
        if now < self.until_s and not self.probing:
            return False
        self.failures, self.probing = self.failures + 1, False
        self.until_s = now + settings.backoff_after_s(self.failures)
        return True

    def may_try(self, settings: CoreSettings, now: float) -> bool:
        """Return whether another attempt may be made now. During an outage, one is allowed per wait."""
        if now < self.until_s:
            return False
        self.until_s, self.probing = now + settings.backoff_after_s(self.failures), True
        return True


class Misses(NamedTuple):
    """The samples of a batch that a reader is missing, and the time until which the report is valid."""

    until_s: float
    samples: SetKey
    indices: Ints


class ReportedMisses:
    """The samples that readers are waiting for, by batch, oldest report first."""

    def __init__(self) -> None:
        # A reader repeats missing samples every second. Those not repeated for some seconds have arrived, or
        # the reader gave up. Reported samples of a batch must stay in the cache.
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
        # Remove the old report first, so that reports stay in order of their expiry.
        self._by_batch.pop(place, None)
        self._by_batch[place] = Misses(now + _BELIEVED_S, samples, indices)
        self._unserved[place] = None
        self._expire(now)

    def reopen(self, samples: SetKey) -> None:
        """Mark the batches of a set as unserved, because some of its samples have become absent."""
        self._unserved.update(
            (place, None) for place, misses in self._by_batch.items() if misses.samples == samples
        )

    def served(self, place: BatchPlace) -> None:
        """Mark a batch as served, because all its missing samples are present or in flight."""
        self._unserved.pop(place, None)

    def discard(self, place: BatchPlace) -> None:
        """Remove a batch that was read."""
        self._by_batch.pop(place, None)
        self.served(place)

    def by_set(self, now: float) -> dict[SetKey, Ints]:
        """Return all missing samples by set, with duplicates if several readers are missing a sample."""
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
    """The last failed search for room in the cache, and the cursors that wait for room."""

    # A search takes milliseconds, and more with every job. After a search that freed too little, searches
    # without a wider choice are futile until an event has arrived and some time has passed.
    until_s: float = -math.inf
    events: int = -1
    later_than_s: float = math.inf
    waiting: dict[CursorKey, None] = field(default_factory=dict)
    # Time of the next check for teams that exceed their share
    shares_again_s: float = -math.inf

    def failed(self, events: int, later_than_s: float, now: float, *, jobs: int) -> None:
        """Record that dropping samples needed after ``later_than_s`` did not free enough room."""
        self.until_s = now + _PAUSE_S + _PAUSE_PER_JOB_S * jobs
        self.events = events
        self.later_than_s = later_than_s

    def reset(self) -> None:
        """Allow new searches after a large change."""
        self.until_s = -math.inf
        self.events = -1

    def futile(self, events: int, later_than_s: float, now: float) -> bool:
        """Return whether a search would free as little as the last one."""
        return later_than_s >= self.later_than_s and not self.over(events, now)

    def over(self, events: int, now: float) -> bool:
        """Return whether another search could free more than the last one did."""
        return now >= self.until_s and events != self.events

    def over_at_s(self, events: int) -> float | None:
        """Return when searches become worthwhile without an event, or ``None`` if never."""
        return self.until_s if events != self.events else None


class Stragglers:
    """Requests in flight by the time at which they become stragglers, and how many were raced."""

    def __init__(self) -> None:
        self._later: TimeQueue[int] = TimeQueue()
        self._late: dict[int, None] = {}
        self.landings = 0
        # Time before which not to check for stragglers that readers wait for, because the check is slow
        self.look_again_s = 0.0
        self.hedges = 0

    def __len__(self) -> int:
        return len(self._late)

    def watch(self, number: int, late_at_s: float | None) -> None:
        """Watch a new request. ``late_at_s`` is ``None`` if it is unknown when the request becomes late."""
        if late_at_s is not None:
            self._later.add(number, late_at_s)

    def become_late(self, now: float, in_flight: Container[int]) -> None:
        """Update the list of stragglers."""
        self._late.update((number, None) for number in self._later.take_until(now) if number in in_flight)

    def landed(self, number: int) -> None:
        """Record that a request was answered or failed."""
        self.landings += 1
        self._late.pop(number, None)

    def raced(self, number: int) -> None:
        """Record that a straggler now has a rival."""
        self._late.pop(number, None)
        self.hedges += 1

    @property
    def late(self) -> list[int]:
        """Return the earliest stragglers without a rival, as many as are worth checking."""
        return list(itertools.islice(self._late, _LOOKED_AT))

    def next_late_s(self) -> float | None:
        """Return when the next unanswered request becomes a straggler."""
        return self._later.soonest_s()

    def affordable(self, share: float) -> int:
        """Return how many more hedges stay within this share of all ended requests."""
        return max(0, int(share * self.landings) - self.hedges)


class UnsavedQueue:
    """Cached samples to write to the store, in order of arrival. It is empty unless saving is ``wanted``."""

    def __init__(self) -> None:
        # True if some functions cannot access the store, or a job fills it.
        self.wanted = False
        self._waiting: dict[SetKey, deque[tuple[float, Ints]]] = {}
        # Each is queued at most once, so that the queue stays bounded while the store accepts
        # nothing.
        self._is_here: dict[SetKey, Bools] = {}

    def add(self, key: SetKey, size: int, indices: Ints, now: float) -> None:
        """Add new samples of a set that has ``size`` samples."""
        is_here = self._is_here.setdefault(key, np.zeros(size, dtype=np.bool_))
        fresh = indices[~is_here[indices]]
        if fresh.size:
            is_here[fresh] = True
            self._waiting.setdefault(key, deque()).append((now, fresh))

    def first(self) -> tuple[SetKey, float] | None:
        """Return the set whose first sample has waited longest, and when its wait began."""
        since = {key: waiting[0][0] for key, waiting in self._waiting.items()}
        return min(since.items(), key=lambda entry: entry[1]) if since else None

    def holds(self, key: SetKey, count: int) -> bool:
        """Return whether at least ``count`` samples of a set are queued."""
        return sum(indices.size for _, indices in itertools.islice(self._waiting[key], count)) >= count

    def take(self, key: SetKey, count: int) -> Ints:
        """Remove and return the first samples of a set, at most ``count``."""
        waiting, taken = self._waiting[key], []
        while waiting and count:
            since_s, indices = waiting.popleft()
            if indices.size > count:
                waiting.appendleft((since_s, indices[count:]))
            taken.append(indices[:count])
            count -= taken[-1].size
        samples = np.concatenate(taken)
        self._is_here[key][samples] = False
        if not waiting:
            del self._waiting[key], self._is_here[key]
        return samples
