"""Leases: a rank that shows no sign of life for a while is no longer looked ahead for, until it comes back.

Asking for batches and read reports renew a lease. One that has lapsed forgets nothing: where the rank stands
is kept for ``forget_s`` (see :mod:`superdl.coordinator.core.forgetting`), what only it will read is dropped
before what others will.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.deadlines import LaneKey
    from superdl.coordinator.core.jobs import Job, Lane
    from superdl.coordinator.core.state import State

__all__ = ["LeaseQueue", "lapse", "renew"]


class LeaseQueue:
    """Lanes by the time at which their lease may end: one entry each, looked at again if it was renewed."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, LaneKey]] = []
        self._watched: set[LaneKey] = set()

    def watch(self, lane: LaneKey, ends_s: float) -> None:
        """Watch a lane; nothing, if it is watched."""
        if lane not in self._watched:
            self._watched.add(lane)
            heapq.heappush(self._heap, (ends_s, lane))

    def next_end_s(self) -> float | None:
        """When the next lease may end; ``None`` if none is watched."""
        return self._heap[0][0] if self._heap else None

    def take_ended(self, now: float) -> list[LaneKey]:
        """The lanes whose time has come; they are watched no longer."""
        ended = []
        while self._heap and self._heap[0][0] <= now:
            ended.append(heapq.heappop(self._heap)[1])
            self._watched.remove(ended[-1])
        return ended


def renew(state: State, job: Job, lane: Lane, now: float) -> None:
    """A rank shows a sign of life."""
    lane.last_seen_s = now
    state.leases.watch((job.name, lane.rank), now + state.settings.lease_s)
    if lane.lapsed:
        lane.lapsed = False
        job.lapsed_changed()
        state.wake(job, lane)


def lapse(state: State, now: float) -> None:
    """See whose lease has ended."""
    for name, rank in state.leases.take_ended(now):
        found = state.lane(name, rank)
        if found is None:
            continue
        job, lane = found
        ends_s = lane.last_seen_s + state.settings.lease_s
        if ends_s > now:
            state.leases.watch((name, rank), ends_s)
            continue
        lane.lapsed = True
        job.lapsed_changed()
        state.rest(job, rank)
        state.want(lane, 0)
