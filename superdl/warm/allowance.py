"""How far a job may be let look ahead, so that it fills what is free and spends what is granted, not more.

A coordinator looks a bounded number of batches ahead of the first one that a rank has not reported as read,
and produces all that it finds absent there, dropping other samples where it must. So what has been seen is
reported as read only as far as the batches that come into view fit. Plain arithmetic, no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Allowance", "Means", "batch_size_for"]

_LOOKAHEAD_SHARE = 1 / 8
"""Of room and money: what a first look ahead may take."""

_BATCH_MAX = 256
_BATCHES_LEAST = 16
_BEYOND = 2
"""Batches beyond those given out that are looked at in any case."""

_SCARCE_VIEWS = 4

_TAIL = 4
"""Batches that may stay out although they would just fit: the last in view are not known to be there."""


@dataclass(frozen=True, slots=True)
class Means:
    """What there is to be used up: memory and money, and how much of each a sample takes."""

    free_bytes: float
    sample_bytes: float
    left_usd: float = math.inf
    sample_usd: float = 0.0

    @property
    def by_room(self) -> float:
        """Samples that fit."""
        return max(0.0, self.free_bytes) / self.sample_bytes

    @property
    def by_money(self) -> float:
        """Samples that can be paid for."""
        if not self.sample_usd or self.left_usd == math.inf:
            return math.inf
        return max(0.0, self.left_usd) / self.sample_usd

    @property
    def samples(self) -> float:
        """Samples that can be produced."""
        return min(self.by_room, self.by_money)


def batch_size_for(samples: int, means: Means, *, lookahead: int, sure: bool) -> int:
    """A batch size with which the first look ahead takes a small share of what there is; 0 where there is
    not enough for any. The order of the samples does not depend on it.

    Args:
        samples: of the source.
        means: what there is.
        lookahead: batches that the coordinator looks ahead at most.
        sure: whether what a sample takes is known, and not a guess that the first samples will correct.
    """
    most = max(1, min(_BATCH_MAX, samples // _BATCHES_LEAST))
    if means.samples >= samples + _TAIL * most and sure:
        return most
    if means.samples < min(samples, lookahead + _BEYOND):
        return 0
    share = int(min(means.samples, samples) * _LOOKAHEAD_SHARE / lookahead)
    return max(1, min(most, share))


@dataclass(slots=True)
class Allowance:
    """Where a job stands, in batches: those before ``released`` are reported as read, those before ``seen``
    are known to be in the cache or failed, those before ``accounted`` were so when the means were looked at.
    """

    batches: int
    batch_size: int
    lookahead: int
    seen: int = 0
    accounted: int = 0
    released: int = 0

    @property
    def scarce(self) -> float:
        """With room for fewer samples, every batch counts."""
        return _SCARCE_VIEWS * self.lookahead * self.batch_size

    @property
    def view(self) -> int:
        """The batch up to which the coordinator may have looked ahead."""
        return min(self.batches, self.released + self.lookahead)

    def may_take(self) -> bool:
        """Whether the next batch can be asked for without more coming into view."""
        return self.view == self.batches or self.seen + 1 + _BEYOND <= self.view

    def releasable(self, means: Means) -> int:
        """How many of the seen batches may be reported as read now."""
        waiting = self.seen - self.released
        if self.view == self.batches:
            return waiting
        payable = int(means.samples / self.batch_size)
        return max(0, min(waiting, self.accounted + payable - self.released - self.lookahead))
