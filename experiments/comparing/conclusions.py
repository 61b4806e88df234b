"""Says in words what a comparison's figures mean, and what they do not allow to be said. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from superdl.experiments.comparing.figures import FIGURES
from superdl.experiments.reporting.quantities import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.experiments.comparing.figures import Figure, Spread

__all__ = ["Difference", "conclusions", "difference_of", "probability_of_apart"]

_REPEATS_LEAST = 2
_RARELY = 0.2
"""Where equal arms lie apart more often by chance, the words ask for more repeats."""


class Difference(NamedTuple):
    """One arm's figure beside another's.

    ``ratio`` is of the medians, the first over the second; None where the second is zero. ``apart``: every
    repeat of the one is below every repeat of the other. None: an arm ran once, so its spread is not known.
    """

    ratio: float | None
    apart: bool | None


def difference_of(first: Spread, second: Spread) -> Difference:
    """Compare a figure of two arms."""
    ratio = first.median / second.median if second.median else None
    if min(len(first.values), len(second.values)) < _REPEATS_LEAST:
        return Difference(ratio, None)
    return Difference(ratio, first.most < second.least or second.most < first.least)


def probability_of_apart(first: int, second: int) -> float:
    """How likely the ranges of two equal arms lie apart by chance alone, by so many repeats of each.

    Of all orders in which that many values can fall, two have those of one arm first.
    """
    return min(1.0, 2 / math.comb(first + second, first))


def conclusions(
    spreads: Mapping[str, Mapping[str, Spread | None]],
    warmup_epochs: int,
    *,
    failed: Mapping[str, int] | None = None,
    whole: frozenset[str] = frozenset(),
) -> tuple[tuple[str, str], ...]:
    """Return sentences, each after its subject: of every figure the first arm beside each other one.

    ``spreads`` are by the figure's key and the arm's title, the first arm first; ``failed`` are numbers of
    rounds by the arm's title, ``whole`` the keys of figures that have the warm-up in them.
    """
    points = []
    for figure in FIGURES:
        measured = {name: spread for name, spread in spreads[figure.key].items() if spread is not None}
        names = list(measured)
        said = [_sentence(figure, names[0], other, measured) for other in names[1:]]
        if said:
            points.append((f"{figure.title[0].upper()}{figure.title[1:]}:", " ".join(said)))
    if points and not any(spreads["usd"].values()):
        points.append(("Cost:", "not compared, since cost.machine names no machine of the price table."))
    of_whole = [
        figure.title for figure in FIGURES if figure.key in whole and any(spreads[figure.key].values())
    ]
    points.append(("Warm-up:", _about_warmup(warmup_epochs, of_whole)))
    repeats: dict[str, int] = {}
    for by_arm in spreads.values():
        for title, spread in by_arm.items():
            if spread is not None:
                repeats[title] = max(repeats.get(title, 0), len(spread.values))
    if len(repeats) > 1:
        points.append(("Chance:", _about_chance(repeats)))
    lost = ", ".join(f"{number} of {title}" for title, number in (failed or {}).items())
    return (*points, ("Failed:", f"rounds that failed are in no figure: {lost}.")) if lost else tuple(points)


def _sentence(figure: Figure, first: str, second: str, measured: Mapping[str, Spread]) -> str:
    difference = difference_of(measured[first], measured[second])
    values = (
        f"{first} {number(measured[first].median)}, {second} {number(measured[second].median)} {figure.unit}"
    )
    if measured[first].values == measured[second].values:
        return f"{values}: equal."
    if difference.apart is False:
        return f"{values}; the ranges overlap: no difference can be told."
    pair = (first, second) if (measured[first].median > measured[second].median) else (second, first)
    better, worse = pair if figure.more_is_better else pair[::-1]
    once = [name for name in (first, second) if len(measured[name].values) == 1]
    doubt = f"; {_ran_once(once, 2)}, so nobody knows the spread" if once else ""
    if not difference.ratio:
        return f"{values}: less by all of it for {better}{doubt}."
    factor = number(max(difference.ratio, 1 / difference.ratio))
    if factor == number(1.0):
        return f"{values}: equal to three digits{doubt}."
    said = figure.sentence.format(better=better, worse=worse, factor=factor)
    return f"{said} ({values}){doubt}."


def _about_warmup(epochs: int, of_whole: Sequence[str]) -> str:
    if not epochs:
        return "no epoch is left out as such; the cold start is in every figure."
    which = (
        "the first epoch of each run counts"
        if epochs == 1
        else f"the first {epochs} epochs of each run count"
    )
    return f"{which} in figures of the whole run alone{': ' if of_whole else ''}{', '.join(of_whole)}."


def _ran_once(names: Sequence[str], of: int) -> str:
    return "each ran once" if len(names) == of else f"{' and '.join(names)} ran once"


def _about_chance(repeats: Mapping[str, int]) -> str:
    """What chance alone does to the two arms that are most exposed to it, by how often each arm ran."""
    once = [name for name, times in repeats.items() if times == 1]
    if once:
        told = _ran_once(once, len(repeats))
        return f"{told}; run more repeats before you believe a difference (--repeats 3)."
    first, *others = repeats.values()
    probability, second = max((probability_of_apart(first, other), other) for other in others)
    wanted = "; more repeats would tell more" if probability > _RARELY else ""
    of_each = f"{first} repeats each" if first == second else f"{first} and {second} repeats"
    return (
        f"where two arms are alike, the ranges of {of_each} lie apart in one figure of "
        f"{round(1 / probability)} all the same{wanted}."
    )
