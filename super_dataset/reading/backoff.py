"""How long a reader waits between attempts, and when it stops: bounded twice, by time and by number."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Backoff"]

_FIRST_S = 0.005
_LONGEST_S = 1.0
_LEAST_SHARE = 0.5  # of the nominal delay; the rest is jitter, so that readers do not ask in step


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential from 5 ms to 1 s, jittered downwards by up to a half.

    That is "equal jitter" of M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """

    total_s: float
    """Bound on the whole wait, in seconds."""

    @property
    def attempts(self) -> int:
        """Bound on the number of attempts: as many as fit into the total time at the shortest delays.

        So time runs out first, unless the clock stands still.
        """
        doublings = math.ceil(math.log2(_LONGEST_S / _FIRST_S))
        return 2 + doublings + math.ceil(self.total_s / (_LONGEST_S * _LEAST_SHARE))

    def delay_s(self, attempt: int, jitter: float) -> float:
        """Seconds to wait after failure number ``attempt``, from 1; ``jitter`` is uniform in [0, 1)."""
        nominal_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 1, 32))
        return nominal_s * (_LEAST_SHARE + (1 - _LEAST_SHARE) * jitter)
