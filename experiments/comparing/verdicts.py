"""What the figures of two arms allow to be said: the ratio of their medians, and whether ranges lie apart.

Pure; the figures are `experiments.comparing.figures`'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.experiments.comparing.figures import Spread

__all__ = ["Verdict", "chance_of_apart", "verdict_of"]

_REPEATS_LEAST = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """One arm's figure beside another's.

    ``ratio`` is of the medians, the first over the second; None where the second is zero. ``apart``: every
    repeat of the one is below every repeat of the other. None: an arm was run once, so nobody knows its
    spread.
    """

    ratio: float | None
    apart: bool | None


def verdict_of(first: Spread, second: Spread) -> Verdict:
    """Compare a figure of two arms."""
    ratio = first.median / second.median if second.median else None
    if min(len(first.values), len(second.values)) < _REPEATS_LEAST:
        return Verdict(ratio, None)
    return Verdict(ratio, first.most < second.least or second.most < first.least)


def chance_of_apart(first: int, second: int) -> float:
    """How likely the ranges of two equal arms lie apart, by so many repeats of each: by chance alone.

    Of all orders in which that many values can fall, two have those of one arm first.
    """
    return min(1.0, 2 / math.comb(first + second, first))
