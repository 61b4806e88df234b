"""The order in which arms run: interleaved, so that a machine that grows slower or faster meets all alike.

Pure; what runs is `experiments.comparing.arms`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Round", "rounds_of"]


@dataclass(frozen=True, slots=True)
class Round:
    """One go of one arm: ``number`` in the whole, ``repeat`` of the arm, both from 1."""

    number: int
    repeat: int
    arm: str


def rounds_of(arms: Sequence[str], repeats: int) -> tuple[Round, ...]:
    """Return all rounds: in each repeat every arm once, and each repeat begins one arm further on.

    With A, B and C: A B C, B C A, C A B. So over as many repeats as there are arms each has each place once,
    and which arm meets files that nobody has read yet, or a warm processor, is not always the same.
    """
    rounds: list[Round] = []
    for repeat in range(repeats):
        first = repeat % len(arms)
        for arm in (*arms[first:], *arms[:first]):
            rounds.append(Round(len(rounds) + 1, repeat + 1, arm))
    return tuple(rounds)
