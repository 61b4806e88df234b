"""Says in words what a comparison's figures mean, and what they do not allow to be said. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.experiments.comparing.figures import FIGURES
from superdl.experiments.reporting.quantities import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.experiments.comparing.figures import Figure, Spread

__all__ = ["are_apart", "conclusions", "probability_of_apart"]

_RARELY = 0.2
"""Where equal arms lie apart more often by chance, the words ask for more repeats."""


def are_apart(first: Spread, second: Spread) -> bool | None:
    """Whether every repeat of the one is below every repeat of the other; None: one ran once."""
    if min(len(first.values), len(second.values)) == 1:
        return None
    return first.most < second.least or second.most < first.least


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

    ``spreads`` are by the figure's key and the arm's name, the first arm first; ``failed`` are numbers of
    rounds by the arm's name, ``whole`` the keys of figures that have the warm-up in them.
    """
    points = []
    repeats: dict[str, int] = {}
    for figure in FIGURES:
        measured = {name: spread for name, spread in spreads[figure.key].items() if spread is not None}
        repeats |= {name: max(repeats.get(name, 0), len(each.values)) for name, each in measured.items()}
        first, *others = measured or [""]
        said = [_sentence(figure, first, other, measured) for other in others]
        if said:
            points.append((f"{figure.title[0].upper()}{figure.title[1:]}:", " ".join(said)))
    if points and not any(spreads["usd"].values()):
        points.append(("Cost:", "not compared, since cost.machine names no machine of the price table."))
    titles = [one.title for one in FIGURES if one.key in whole and any(spreads[one.key].values())]
    points.append(("Warm-up:", _about_warmup(warmup_epochs, ", ".join(titles))))
    if len(repeats) > 1:
        points.append(("Chance:", _about_chance(repeats)))
    lost = ", ".join(f"{rounds} of {name}" for name, rounds in (failed or {}).items())
    return (*points, ("Failed:", f"rounds that failed are in no figure: {lost}.")) if lost else tuple(points)


def _sentence(figure: Figure, first: str, second: str, measured: Mapping[str, Spread]) -> str:
    one, other = measured[first], measured[second]
    values = f"{first} {number(one.median)}, {second} {number(other.median)} {figure.unit}"
    apart = are_apart(one, other)
    if one.values == other.values:
        return f"{values}: equal."
    if apart is False:
        return f"{values}; the ranges overlap: no difference can be told."
    doubt = "" if apart else "; an arm ran once, so nobody knows the spread"
    better = first if (one.median > other.median) == figure.more_is_better else second
    least, most = sorted((one.median, other.median))
    if not least:
        return f"{values}: {better} is better, by all of it{doubt}."
    if number(most / least) == number(1.0):
        return f"{values}: equal to three digits{doubt}."
    return f"{values}: {better} is better, by a factor of {number(most / least)}{doubt}."


def _about_warmup(epochs: int, titles: str) -> str:
    if not epochs:
        return "no epoch is left out as such; the cold start is in every figure."
    which = "the first epoch" if epochs == 1 else f"the first {epochs} epochs"
    return f"{which} of each run is counted in figures of the whole run alone{': ' * bool(titles)}{titles}."


def _about_chance(repeats: Mapping[str, int]) -> str:
    """What chance alone does to the two arms that are most exposed to it, by how often each arm ran."""
    once = [name for name, times in repeats.items() if times == 1]
    if once:
        return f"{', '.join(once)} ran once; run more repeats before you believe a difference (--repeats 3)."
    first, *others = repeats.values()
    probability, second = max((probability_of_apart(first, other), other) for other in others)
    wanted = "; more repeats would tell more" if probability > _RARELY else ""
    return (
        f"where two arms are alike, the ranges of {first} and {second} repeats lie apart in one figure of "
        f"{round(1 / probability)} all the same{wanted}."
    )
