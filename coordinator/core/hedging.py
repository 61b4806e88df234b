"""Races stragglers: a second request for the same samples, where the first takes longer than nearly all do.

The first answer wins; what the other one brings changes nothing but the account (Dean and Barroso, "The Tail
at Scale", 2013). Hedges are made where a function is idle or a reader waits, and never more of them than a
share of all requests.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.samples import SampleState

if TYPE_CHECKING:
    from collections.abc import Container

    from numpy.typing import NDArray

    from coordinator.core.state import RequestInFlight, State

__all__ = ["Stragglers", "stragglers_to_race"]


class Stragglers:
    """Requests in flight by the time at which they become stragglers."""

    def __init__(self) -> None:
        self._later: list[tuple[float, int]] = []
        self._late: dict[int, None] = {}
        self.landings = 0
        self.hedges = 0

    def __len__(self) -> int:
        return len(self._late)

    def watch(self, number: int, late_at_s: float | None) -> None:
        """A request was made; ``None``: it cannot be said when it will be late."""
        if late_at_s is not None:
            heapq.heappush(self._later, (late_at_s, number))

    def become_late(self, now: float, in_flight: Container[int]) -> None:
        """See which have become stragglers."""
        while self._later and self._later[0][0] <= now:
            number = heapq.heappop(self._later)[1]
            if number in in_flight:
                self._late[number] = None

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
        """The stragglers that have no rival, the earliest first."""
        return list(self._late)

    def next_late_s(self) -> float | None:
        """When the next request becomes a straggler, if it has not been answered by then."""
        return self._later[0][0] if self._later else None

    def affordable(self, share: float) -> int:
        """How many more hedges keep within a share of all requests that have ended."""
        return max(0, int(share * self.landings) - self.hedges)


def stragglers_to_race(state: State, now: float) -> list[int]:
    """The stragglers that deserve a rival now."""
    watched = state.stragglers
    allowed = watched.affordable(state.settings.hedge_share) if len(watched) else 0
    allowed = min(allowed, state.concurrency.places(len(state.requests), now))
    if allowed <= 0:
        return []
    awaited = state.awaited.by_set(now)
    idle = state.concurrency.idle(len(state.requests), now)
    chosen: list[int] = []
    for number in watched.late:
        if len(chosen) >= allowed:
            break
        request = state.requests[number]
        if not state.wants(request.samples.dataset):
            continue
        waiting = awaited.get(request.samples)
        if idle > len(chosen) or (waiting is not None and _any_of(state, request, waiting)):
            chosen.append(number)
    return chosen


def _any_of(state: State, request: RequestInFlight, waiting: NDArray[np.int64]) -> bool:
    in_flight = state.set_of(request.samples).among(waiting, SampleState.IN_FLIGHT)
    return bool(np.isin(in_flight, request.indices).any())
