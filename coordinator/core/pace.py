"""How fast a rank consumes: the time between two of its batches, were it never to wait for one.

Reports come in clumps, so the pace is measured over windows of time. A time in which readers had to wait says
little of the job's own pace, unless it was short; and a long pause, as for validation, is no change of pace.
"""

from __future__ import annotations

__all__ = ["Pace"]

_FIRST_S = 0.05
_WINDOW_S = 0.5
_WEIGHT = 0.3
_PAUSE = 8.0


class Pace:
    """A smoothed interval in seconds; a guess, and not ``known``, before it was measured."""

    __slots__ = ("_batches", "_since_s", "_stalls", "interval_s", "known")

    def __init__(self, now: float) -> None:
        self.interval_s = _FIRST_S
        self.known = False
        self.restart(now)

    def restart(self, now: float) -> None:
        """The rank begins anew; what it did before says nothing of the time until its next batch."""
        self._since_s = now
        self._batches = self._stalls = 0

    def read(self, batches: int, now: float, *, stalled: bool) -> None:
        """Batches were read since the last call, for the newest of which a reader had to wait or not."""
        self._batches += batches
        self._stalls += stalled
        passed_s = now - self._since_s
        if passed_s < _WINDOW_S or not self._batches:
            return
        interval_s = min(passed_s / self._batches, self.interval_s * _PAUSE)
        weight = _WEIGHT if self.known else 1.0  # nothing is to be kept of a guess
        if interval_s > self.interval_s:
            weight *= max(0.0, 1.0 - self._stalls / self._batches)
        self.interval_s += (interval_s - self.interval_s) * weight
        self.known = self.known or weight > 0
        self.restart(now)
