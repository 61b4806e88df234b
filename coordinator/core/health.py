"""Whether an executor is worth asking: a circuit breaker for each, where there is another to turn to.

What refuses, or fails several times in a row, is left alone for a while that doubles each time; then one
request tries it, and a success lets it have all again (the circuit breaker of Nygard, "Release It!", 2007).
"""

from __future__ import annotations

import math

__all__ = ["LONGEST_S", "Health"]

_FAILURES = 3
_FIRST_S = 0.5
LONGEST_S = 30.0
"""So long at most it is left alone."""


class Health:
    """What is known of an executor's failures since it last did anything well."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause_s = 0.0
        self._aside_since_s = -math.inf
        self.reason = ""
        """Why it was set aside last; empty once it has worked again."""
        self.spoils = False
        """Whether what it wrote last, of what was read back, came out otherwise."""

    def refused(self, reason: str, made_s: float, now: float) -> None:
        """It took no request, which was made then: it is throttled, or gone."""
        self._set_aside(reason, made_s, now)

    def failed(self, reason: str, made_s: float, now: float) -> None:
        """A request came to nothing there, which may be the executor's fault or a sample's."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self._set_aside(reason, made_s, now)

    def worked(self) -> None:
        """It produced something, or said why one sample cannot be."""
        if self.spoils:  # what it says of that is not to be believed
            return
        self._failures = 0
        self._pause_s = 0.0
        self.reason = ""

    def does_not_read_back(self, reason: str, now: float) -> None:
        """A record that it wrote is not what it was."""
        self.spoils = True
        self._set_aside(reason, now, now)

    def reads_back(self) -> None:
        """A record that it wrote is what it was."""
        if self.spoils:
            self.spoils = False
            self.worked()

    @property
    def doubtful(self) -> bool:
        """Whether it was set aside, and has not worked since."""
        return self._pause_s > 0

    def aside_until_s(self, longest_s: float = LONGEST_S) -> float:
        """Until when it is left alone; no longer than ``longest_s`` since it was set aside."""
        return self._aside_since_s + min(self._pause_s, longest_s)

    def _set_aside(self, reason: str, made_s: float, now: float) -> None:
        self.reason = reason
        if self.doubtful and made_s <= self._aside_since_s:  # many that were in flight together fail together
            return
        self._pause_s = min(LONGEST_S, 2 * self._pause_s or _FIRST_S)
        self._aside_since_s = now
