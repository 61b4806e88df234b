"""What a check found."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "Verdict"]


class Verdict(enum.StrEnum):
    """How a check ended."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    """Training may work, and may not."""
    BAD = "bad"
    SKIPPED = "skipped"
    """It could not be looked at; the reason says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's verdict, what was seen, and what to do about it (empty where nothing is to be done)."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""
