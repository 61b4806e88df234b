"""What the functions of the simulated world have done and cost, by the world's own account."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Usage"]


@dataclass
class Usage:
    """Counts, and the number of functions in use over time."""

    invocations: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    samples_produced: int = 0
    cold_starts: int = 0
    throttled: int = 0
    in_use: int = 0
    peak: int = 0
    function_s: float = 0.0
    """Seconds that functions were in use, summed over functions."""
    _changed_s: float = 0.0

    def change(self, by: int, now: float) -> None:
        """So many functions more, or fewer, are in use from now on."""
        self.function_s += self.in_use * (now - self._changed_s)
        self._changed_s = now
        self.in_use += by
        self.peak = max(self.peak, self.in_use)

    def bill(self, *, gb_s: float, source_requests: int) -> None:
        """One invocation."""
        self.invocations += 1
        self.gb_s += gb_s
        self.source_requests += source_requests
