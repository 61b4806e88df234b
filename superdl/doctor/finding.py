"""What a check found: its verdict, what was seen, what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Finding", "Found", "Verdict", "bad", "combined", "doubtful", "good", "size_text", "skipped"]


_NEXT_UNIT = 1024


class Verdict(enum.StrEnum):
    """How a check ended."""

    GOOD = "ok"
    DOUBTFUL = "warn"
    """Training may work, and may not."""
    BAD = "fail"
    SKIPPED = "skip"
    """It could not be looked at; the reason says why."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a look gave. ``remedy`` is empty where nothing is to be done; ``measured`` is for programs."""

    verdict: Verdict
    reason: str
    remedy: str = ""
    measured: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of a run found, and in how many seconds."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""
    seconds: float = 0.0
    measured: Mapping[str, float | int | str] = field(default_factory=dict)


def good(reason: str, **measured: float | str) -> Found:
    """All is well."""
    return Found(Verdict.GOOD, reason, "", measured)


def doubtful(reason: str, remedy: str, **measured: float | str) -> Found:
    """It may work."""
    return Found(Verdict.DOUBTFUL, reason, remedy, measured)


def bad(reason: str, remedy: str, **measured: float | str) -> Found:
    """It will not work."""
    return Found(Verdict.BAD, reason, remedy, measured)


def skipped(reason: str, remedy: str = "") -> Found:
    """It was not looked at; ``remedy`` says how it could be."""
    return Found(Verdict.SKIPPED, reason, remedy)


def combined(founds: Sequence[Found]) -> Found:
    """Several as one: the worst verdict, all reasons, the remedies of what is not well."""
    order = (Verdict.BAD, Verdict.DOUBTFUL, Verdict.GOOD, Verdict.SKIPPED)
    measured = {name: value for found in founds for name, value in found.measured.items()}
    return Found(
        min((found.verdict for found in founds), key=order.index),
        "; ".join(found.reason for found in founds),
        "; ".join(found.remedy for found in founds if found.remedy),
        measured,
    )


def size_text(size: float) -> str:
    """So many bytes, for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < _NEXT_UNIT:
            return f"{size:,.0f} {unit}"
        size /= _NEXT_UNIT
    return f"{size:,.2f} GiB"
