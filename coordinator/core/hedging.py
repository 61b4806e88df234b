"""Races stragglers: a second request for the same samples, where the first takes longer than nearly all do.

The first answer wins; what the other one brings changes nothing but the account (Dean and Barroso, "The Tail
at Scale", 2013). Hedges are made where a function is idle or a reader waits, and never more of them than a
share of all requests.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.samples import SampleState

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import RequestInFlight, State

__all__ = ["Stragglers", "stragglers_to_race"]

_LOOKED_AT = 64
_LOOK_EVERY_S = 0.05


class Stragglers:
    """Requests in flight by the time at which they become stragglers."""

    def __init__(self) -> None:
        self._later: list[tuple[float, int]] = []
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
        """The stragglers that have no rival, the earliest first, as many as are worth looking at."""
        return list(itertools.islice(self._late, _LOOKED_AT))

    def next_late_s(self) -> float | None:
        """When the next request becomes a straggler, if it has not been answered by then."""
        return self._later[0][0] if self._later else None

    def affordable(self, share: float) -> int:
        """How many more hedges keep within a share of all requests that have ended."""
        return max(0, int(share * self.landings) - self.hedges)


def stragglers_to_race(state: State, now: float) -> list[int]:
    """The stragglers that deserve a rival now."""
    watched = state.stragglers
    places = state.fleet.places(now) if len(watched) else 0
    if places <= 0 or not state.settings.hedge_share:
        return []
    wanted = [number for number in watched.late if state.wants(state.requests[number].samples.dataset)]
    unproven = [number for number in wanted if _is_unproven(state, state.requests[number])][:places]
    allowed = min(watched.affordable(state.settings.hedge_share), places - len(unproven))
    if allowed <= 0:
        return unproven
    wanted = [number for number in wanted if number not in unproven]
    idle = min(allowed, state.fleet.idle(now))
    chosen = wanted[:idle]
    if len(chosen) < allowed and len(state.awaited) and now >= watched.look_again_s:
        watched.look_again_s = now + _LOOK_EVERY_S
        awaited = state.awaited.by_set(now)
        chosen += [number for number in wanted[idle:] if _is_awaited(state, state.requests[number], awaited)]
    return unproven + chosen[:allowed]


def _is_unproven(state: State, request: RequestInFlight) -> bool:
    """Whether the executor of a straggler has never answered, though there is another: no share of all
    requests bounds its rivals, but that it is soon set aside.
    """
    return (
        not state.fleet.members[request.executor].latency.answers
        and len(state.roster_of(request.samples.dataset).members) > 1
    )


def _is_awaited(state: State, request: RequestInFlight, awaited: Mapping[SetKey, NDArray[np.int64]]) -> bool:
    if request.samples not in awaited:
        return False
    in_flight = state.set_of(request.samples).among(awaited[request.samples], SampleState.IN_FLIGHT)
    return bool(np.isin(in_flight, request.indices).any())
