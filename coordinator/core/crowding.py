"""Remembers that there was no room in the cache, so that nobody looks for it in vain.

Looking for what to drop costs milliseconds, and more with every job. A search that found too little is futile
for all who may drop no more than it might, until an event has come, and some time has passed so that searches
take a small share of the processor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.deadlines import LaneKey

__all__ = ["Crowding"]

_PAUSE_S = 0.05
_PAUSE_PER_JOB_S = 0.001


@dataclass(slots=True)
class Crowding:
    """The last futile search, and the lanes that wait for room."""

    until_s: float = -math.inf
    events: int = -1
    later_than_s: float = math.inf
    lanes: dict[LaneKey, None] = field(default_factory=dict)

    def note(self, events: int, later_than_s: float, now: float, *, jobs: int) -> None:
        """A search for samples needed later than ``later_than_s`` freed too little, after so many events."""
        self.until_s = now + _PAUSE_S + _PAUSE_PER_JOB_S * jobs
        self.events = events
        self.later_than_s = later_than_s

    def forget(self) -> None:
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
