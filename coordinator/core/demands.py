"""Demands: samples to be asked for at a time of their own, outside any lane's look-ahead.

Misses come here (*urgent*: a reader waits) and retries (due after their backoff). What becomes of a demand is
:mod:`superdl.coordinator.core.dispatching`'s.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import SetKey

__all__ = ["BatchPlace", "Demand", "DemandQueue"]


class BatchPlace(NamedTuple):
    """A batch, by its place in a job: at most one reader at a time waits for it."""

    job: str
    rank: int
    epoch: int
    position: int


@dataclass(frozen=True, slots=True, order=True)
class Demand:
    """Samples wanted from ``due_s`` on.

    ``place``: the batch whose reader waits for them, which makes the demand urgent; ``None`` for the others.
    ``alone``: each is to have an invocation of its own, since one of them may crash it. ``failed_by``: the
    executor where they came to nothing, which another one is to be tried before.
    """

    due_s: float
    number: int
    samples: SetKey = field(compare=False)
    indices: NDArray[np.int64] = field(compare=False)
    job: str = field(compare=False)
    place: BatchPlace | None = field(compare=False)
    alone: bool = field(compare=False)
    failed_by: int | None = field(default=None, compare=False)

    @property
    def urgent(self) -> bool:
        """Whether a reader waits."""
        return self.place is not None


class DemandQueue:
    """Urgent demands in order of arrival, then the others in the order in which they are due.

    There is one urgent demand for each batch: readers repeat their misses, which must not make the queue
    grow.
    """

    def __init__(self) -> None:
        self._urgent: dict[BatchPlace, Demand] = {}
        self._arrivals: deque[BatchPlace] = deque()
        self._due: deque[Demand] = deque()
        self._later: list[Demand] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._urgent) + len(self._due) + len(self._later)

    def add(
        self,
        due_s: float,
        samples: SetKey,
        indices: NDArray[np.int64],
        job: str,
        *,
        alone: bool = False,
        failed_by: int | None = None,
    ) -> None:
        """Queue samples to be asked for from ``due_s`` on; nothing, if there are none."""
        if indices.size:
            demand = Demand(due_s, next(self._numbers), samples, indices, job, None, alone, failed_by)
            heapq.heappush(self._later, demand)

    def add_urgent(self, now: float, samples: SetKey, indices: NDArray[np.int64], place: BatchPlace) -> None:
        """Queue what a reader waits for, before all else; it joins what is queued for that batch already."""
        if not indices.size:
            return
        queued = self._urgent.get(place)
        if queued is None:
            demand = Demand(now, next(self._numbers), samples, indices, place.job, place, alone=False)
            self._arrivals.append(place)
        else:
            demand = replace(queued, indices=np.union1d(queued.indices, indices))
        self._urgent[place] = demand

    def put_back(self, demand: Demand, indices: NDArray[np.int64]) -> None:
        """Return what is left of the demand that was taken last to its place at the head."""
        if not indices.size:
            return
        rest = replace(demand, indices=indices)
        if demand.place is None:
            self._due.appendleft(rest)
        else:
            self._urgent[demand.place] = rest
            self._arrivals.appendleft(demand.place)

    def take_due(self) -> Demand | None:
        """The next demand that is due, removed; ``None`` if none is."""
        if self._arrivals:
            return self._urgent.pop(self._arrivals.popleft())
        return self._due.popleft() if self._due else None

    def become_due(self, now: float) -> list[Demand]:
        """The demands whose time has come since the last call; they can be taken from now on."""
        due = []
        while self._later and self._later[0].due_s <= now:
            due.append(heapq.heappop(self._later))
        self._due.extend(due)
        return due

    @property
    def waiting(self) -> bool:
        """Whether a demand is due; it waits for places or room, not for time."""
        return bool(self._urgent or self._due)

    @property
    def next_due_s(self) -> float | None:
        """When the next demand becomes due."""
        return self._later[0].due_s if self._later else None
