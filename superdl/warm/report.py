"""What bounds a warming, why it ended, and what it did."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Ended", "Limits", "WarmReport"]


class Ended(enum.StrEnum):
    """Why it ended."""

    ALL = "all"
    FULL = "full"
    MAX_USD = "max_usd"
    SPENDING_CAP = "spending_cap"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds it: US dollars, seconds in which a batch gets no further, seconds in all."""

    max_usd: float = math.inf
    patience_s: float = 120.0
    timeout_s: float = math.inf


@dataclass(slots=True)
class WarmReport:
    """What was done. ``warm`` samples are in the cache, of which ``produced`` were made for this job."""

    samples: int
    ended: Ended = Ended.ALL
    warm: int = 0
    failed: int = 0
    produced: int = 0
    usd: float = 0.0
    gb_s: float = 0.0
    invocations: int = 0
    source_requests: int = 0
    seconds: float = 0.0
    record_bytes: int = 0
    """Of all that are warm."""
    lost: int = 0
    """Samples that were seen in the cache, and were not there any more at the end."""
    dropped: int = 0
    """Samples of anybody's that the cache gave up meanwhile."""
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Key and reason of the first that failed."""
    why: str = ""
    """More words, where it did not end well."""

    @property
    def hits(self) -> int:
        """Samples that were there already, or were made for others meanwhile."""
        return max(0, self.warm - self.produced)

    @property
    def done(self) -> bool:
        """Whether all that was to be warmed is warm."""
        return not (self.failed or self.lost) and (
            self.ended is Ended.ALL or (self.ended is Ended.FULL and self.warm > 0)
        )

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "samples": self.samples,
            "ended": self.ended.value,
            "warm": self.warm,
            "hits": self.hits,
            "produced": self.produced,
            "failed": self.failed,
            "failures": [{"key": key, "reason": reason} for key, reason in self.failures],
            "usd": self.usd,
            "gb_s": self.gb_s,
            "invocations": self.invocations,
            "source_requests": self.source_requests,
            "record_bytes": self.record_bytes,
            "lost": self.lost,
            "dropped": self.dropped,
            "seconds": self.seconds,
            "why": self.why,
        }
