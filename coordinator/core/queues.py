"""What waits, and for what: a time, another attempt, a reader, room, an answer that is late.

Only data: what becomes of it is decided in :mod:`superdl.coordinator.core.dispatching` and the modules that
it calls. Cursors, batches and requests are named by plain tuples and numbers, so that nothing here keeps
them alive.
"""

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

CursorKey: TypeAlias = tuple[str, int]
"""A rank's cursor, by job and rank."""

_Item = TypeVar("_Item")

_VOID_MAX = 64
_BELIEVED_S = 3.0
_PAUSE_S = 0.05
_PAUSE_PER_JOB_S = 0.001
_LOOKED_AT = 64


class BatchPlace(NamedTuple):
    """A batch, by its place in a job: at most one reader at a time waits for it."""

    job: str
    rank: int
    epoch: int
    position: int


class TimeQueue(Generic[_Item]):
    """A heap of items by time; equal times go in the order of arrival, so that runs repeat exactly.

    An item's entry is never searched for: a newer one, or none, makes it void.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Item]] = []
        self._valid: dict[_Item, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, item: _Item) -> bool:
        return item in self._valid

    def add(self, item: _Item, at_s: float) -> None:
        """Add an item, or give it another time."""
        self._count += 1
        self._valid[item] = self._count
        heapq.heappush(self._heap, (at_s, self._count, item))
        if len(self._heap) > 2 * len(self._valid) + _VOID_MAX:
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, item: _Item) -> None:
        """Remove an item, if it is there."""
        self._valid.pop(item, None)

    def soonest_s(self) -> float | None:
        """The earliest time; ``None`` if no item is left."""
        while self._heap:
            at_s, number, item = self._heap[0]
            if self._valid.get(item) == number:
                return at_s
            heapq.heappop(self._heap)
        return None

    def pop(self) -> _Item | None:
        """The item with the earliest time, removed; ``None`` if no item is left."""
        if self.soonest_s() is None:
            return None
        item = heapq.heappop(self._heap)[2]
        del self._valid[item]
        return item

    def take_until(self, now: float) -> list[_Item]:
        """The items whose time has come, removed, the earliest first."""
        taken = []
        while (at_s := self.soonest_s()) is not None and at_s <= now:
            taken.append(heapq.heappop(self._heap)[2])
            del self._valid[taken[-1]]
        return taken


@dataclass(frozen=True, slots=True, eq=False)
class Retry:
    """Samples that wait for another attempt, to be made for a job.

    ``alone``: each gets an invocation of its own, since one of them may crash it. ``failed_by``: the executor
    where they came to nothing; another one is tried before it. ``of_source``: the source did not give them.
    """

    samples: SetKey
    indices: Ints
    job: str
    alone: bool = False
    failed_by: int | None = None
    of_source: bool = False


class Misses(NamedTuple):
    """What a reader misses of a batch, and until when that is believed."""

    until_s: float
    samples: SetKey
    indices: Ints


class ReportedMisses:
    """What readers wait for right now, by batch, the oldest report first.

    A reader keeps what it has got, and repeats what it misses at least every second. So of a batch that a
    reader works on, only what it misses must stay in the cache; and what a reader has not repeated for some
    seconds it has got, or has given up.
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
        """Batches of which something may have to be requested, in their order of arrival."""
        return self._unserved.keys()

    def report(self, place: BatchPlace, samples: SetKey, indices: Ints, now: float) -> None:
        """A reader says what it misses of a batch."""
        self._by_batch.pop(place, None)
        self._by_batch[place] = Misses(now + _BELIEVED_S, samples, indices)
        self._unserved[place] = None
        self._expire(now)

    def reopen(self, samples: SetKey) -> None:
        """Samples of a set are absent that were not: readers may miss some of them."""
        self._unserved.update(
            (place, None) for place, misses in self._by_batch.items() if misses.samples == samples
        )

    def served(self, place: BatchPlace) -> None:
        """All that a reader misses of a batch is there, or on its way."""
        self._unserved.pop(place, None)

    def discard(self, place: BatchPlace) -> None:
        """A batch was read."""
        self._by_batch.pop(place, None)
        self.served(place)

    def by_set(self, now: float) -> dict[SetKey, Ints]:
        """All that readers wait for, by sample set; with duplicates, where several wait for the same."""
        self._expire(now)
        collected: dict[SetKey, list[Ints]] = {}
        for misses in self._by_batch.values():
            collected.setdefault(misses.samples, []).append(misses.indices)
        return {key: np.concatenate(parts) for key, parts in collected.items()}

    def next_expiry_s(self, now: float) -> float | None:
        """When the next report is too old to be believed; ``None`` if there is none."""
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
    """The last search for room in the cache that found too little, and the cursors that wait for room.

    Looking for what to drop costs milliseconds, and more with every job. A search that found too little is
    futile for all who may drop no more than it might, until an event has come and some time has passed: so
    searches take a small share of the processor.
    """

    until_s: float = -math.inf
    events: int = -1
    later_than_s: float = math.inf
    waiting: dict[CursorKey, None] = field(default_factory=dict)
    shares_again_s: float = -math.inf
    """When it is looked at next which teams hold more than their share."""

    def failed(self, events: int, later_than_s: float, now: float, *, jobs: int) -> None:
        """A search for samples needed later than ``later_than_s`` freed too little, after so many events."""
        self.until_s = now + _PAUSE_S + _PAUSE_PER_JOB_S * jobs
        self.events = events
        self.later_than_s = later_than_s

    def reset(self) -> None:
        """Much has changed: searching is worth while."""
        self.until_s = -math.inf
        self.events = -1

    def futile(self, events: int, later_than_s: float, now: float) -> bool:
        """Whether such a search would find as little as the last one."""
        return later_than_s >= self.later_than_s and not self.over(events, now)

    def over(self, events: int, now: float) -> bool:
        """Whether a search may find more than the last one did."""
        return now >= self.until_s and events != self.events

    def over_at_s(self, events: int) -> float | None:
        """When searching becomes worth while by the passing of time alone; ``None`` if never."""
        return self.until_s if events != self.events else None


class Stragglers:
    """Requests in flight by the time at which they become stragglers, and how many were raced."""

    def __init__(self) -> None:
        self._later: TimeQueue[int] = TimeQueue()
        self._late: dict[int, None] = {}
        self.landings = 0
        self.look_again_s = 0.0
        """Until then nobody looks which stragglers readers wait for, which takes a while."""
        self.hedges = 0

    def __len__(self) -> int:
        return len(self._late)

    def watch(self, number: int, late_at_s: float | None) -> None:
        """A request was made; ``None``: it cannot be said when it will be late."""
        if late_at_s is not None:
            self._later.add(number, late_at_s)

    def become_late(self, now: float, in_flight: Container[int]) -> None:
        """See which have become stragglers."""
        self._late.update((number, None) for number in self._later.take_until(now) if number in in_flight)

    def landed(self, number: int) -> None:
        """A request was answered, or came to nothing."""
        self.landings += 1
        self._late.pop(number, None)

    def raced(self, number: int) -> None:
        """A straggler has a rival now."""
        self._late.pop(number, None)
        self.hedges += 1

    @property
    def late(self) -> list[int]:
        """The stragglers that have no rival, the earliest first, as many as are worth looking at."""
        return list(itertools.islice(self._late, _LOOKED_AT))

    def next_late_s(self) -> float | None:
        """When the next request becomes a straggler, if it has not been answered by then."""
        return self._later.soonest_s()

    def affordable(self, share: float) -> int:
        """How many more hedges keep within a share of all requests that have ended."""
        return max(0, int(share * self.landings) - self.hedges)


class UnsavedQueue:
    """Samples that have come into the cache and are to be written to the store, in their order of coming.

    Each is here once at most, so that a store which takes nothing cannot make the queue grow. Whether one is
    still in the cache, and still in no pack, is to be seen when it is taken. Nothing is kept unless it is
    ``wanted``: there are functions that do not see the store, or somebody fills it.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._waiting: dict[SetKey, deque[tuple[float, Ints]]] = {}
        self._is_here: dict[SetKey, Bools] = {}

    def add(self, key: SetKey, size: int, indices: Ints, now: float) -> None:
        """Samples of a set of that size have come."""
        is_here = self._is_here.setdefault(key, np.zeros(size, dtype=np.bool_))
        fresh = indices[~is_here[indices]]
        if fresh.size:
            is_here[fresh] = True
            self._waiting.setdefault(key, deque()).append((now, fresh))

    def first(self) -> tuple[SetKey, float] | None:
        """The set whose first sample has waited longest, and since when."""
        since = {key: waiting[0][0] for key, waiting in self._waiting.items()}
        return min(since.items(), key=lambda entry: entry[1]) if since else None

    def holds(self, key: SetKey, count: int) -> bool:
        """Whether so many of a set are here."""
        return sum(indices.size for _, indices in itertools.islice(self._waiting[key], count)) >= count

    def take(self, key: SetKey, count: int) -> Ints:
        """The first of a set, up to so many, removed."""
        waiting, taken = self._waiting[key], []
        while waiting and count:
            since_s, indices = waiting.popleft()
            if indices.size > count:
                waiting.appendleft((since_s, indices[count:]))
            taken.append(indices[:count])
            count -= taken[-1].size
        found = np.concatenate(taken)
        self._is_here[key][found] = False
        if not waiting:
            del self._waiting[key], self._is_here[key]
        return found
