"""How far the clock of functions on other machines is ahead of this one's.

A request says by the wall clock until when it is worth something, and a function holds that against its own.
So what functions tell of their clocks is compared with this machine's, and where the two differ by seconds
requests are told by theirs. Else a coordinator whose clock is behind would ask for what has always expired.
"""

from __future__ import annotations

import logging
import time

__all__ = ["FunctionClock"]

_log = logging.getLogger(__name__)

_SAME_S = 5.0
"""Less than this may be the way of an answer; a request lasts far longer."""


class FunctionClock:
    """The difference, as answers tell it.

    Attributes:
        ahead_s: what to add to this machine's time to have the functions'; 0 while they are about the same.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def told(self, clock_s: float) -> None:
        """A function has just answered that its clock showed ``clock_s``, Unix time; 0 if it did not tell."""
        if not clock_s:
            return
        ahead_s = clock_s - time.time()
        if abs(ahead_s - self.ahead_s) < _SAME_S:
            return
        self.ahead_s = ahead_s if abs(ahead_s) >= _SAME_S else 0.0
        if self.ahead_s:
            _log.warning(
                "this machine's clock is %.0f s %s that of the functions: requests are told by theirs; set "
                "it right (NTP), since AWS refuses whoever is 5 minutes off",
                abs(ahead_s),
                "behind" if ahead_s > 0 else "ahead of",
            )
        else:
            _log.info("this machine's clock is that of the functions again")
