"""Lanes that may have something to look ahead to, the earliest deadline first."""

from __future__ import annotations

import heapq
from typing import TypeAlias

__all__ = ["DeadlineQueue", "LaneKey"]

LaneKey: TypeAlias = tuple[str, int]
"""A lane, by its job and rank."""

_SLACK = 64


class DeadlineQueue:
    """A heap of lanes by deadline; equal deadlines go in the order of arrival, so that runs repeat exactly.

    A lane's entry is never searched for: a newer one, or none, makes it void.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LaneKey]] = []
        self._valid: dict[LaneKey, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, lane: LaneKey) -> bool:
        return lane in self._valid

    def add(self, lane: LaneKey, deadline_s: float) -> None:
        """Add a lane, or give it another deadline."""
        self._count += 1
        self._valid[lane] = self._count
        heapq.heappush(self._heap, (deadline_s, self._count, lane))
        if len(self._heap) > 2 * len(self._valid) + _SLACK:
            self._heap = [entry for entry in self._heap if self._valid.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, lane: LaneKey) -> None:
        """Remove a lane, if it is there."""
        self._valid.pop(lane, None)

    def soonest_s(self) -> float | None:
        """The earliest deadline; ``None`` if no lane is left."""
        while self._heap:
            deadline_s, number, lane = self._heap[0]
            if self._valid.get(lane) == number:
                return deadline_s
            heapq.heappop(self._heap)
        return None

    def pop(self) -> LaneKey | None:
        """The lane with the earliest deadline, removed; ``None`` if no lane is left."""
        if self.soonest_s() is None:
            return None
        lane = heapq.heappop(self._heap)[2]
        del self._valid[lane]
        return lane
