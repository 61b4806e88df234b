"""Says in words what a comparison's figures mean, and what they do not allow to be said. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.comparing.figures import FIGURES
from experiments.comparing.verdicts import chance_of_apart, verdict_of
from experiments.reporting.quantities import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.comparing.figures import Figure, Spread

__all__ = ["conclusions"]

_RARELY = 0.2
"""Where chance alone sets ranges apart more often, more repeats are asked for."""


def conclusions(spreads: Mapping[str, Mapping[str, Spread | None]], warmup_epochs: int) -> tuple[str, ...]:
    """Return sentences about every figure: the first arm beside each other one.

    ``spreads`` are by the figure's key and the arm's name, the first arm first.
    """
    lines = []
    for figure in FIGURES:
        measured = {name: spread for name, spread in spreads[figure.key].items() if spread is not None}
        names = list(measured)
        lines += [_sentence(figure, names[0], other, measured) for other in names[1:]]
    if warmup_epochs:
        of_whole = ", ".join(figure.title for figure in FIGURES if figure.whole)
        lines.append(
            f"The first {warmup_epochs} epoch(s) of each run are warm-up and left out, but for figures of "
            f"the whole run: {of_whole}."
        )
    else:
        lines.append("No epoch is left out as warm-up: the cold start is in every figure.")
    repeats = [
        len(spread.values) for one in spreads.values() for spread in one.values() if spread is not None
    ]
    if repeats and len(spreads[FIGURES[0].key]) > 1:
        lines.append(_about_chance(min(repeats)))
    return tuple(lines)


def _sentence(figure: Figure, first: str, second: str, measured: Mapping[str, Spread]) -> str:
    verdict = verdict_of(measured[first], measured[second])
    values = ", ".join(f"{name} {number(measured[name].median)}" for name in (first, second))
    said = f"{figure.title[0].upper()}{figure.title[1:]} ({figure.unit}): {values}"
    if measured[first].values == measured[second].values:
        return f"{said}; equal."
    if verdict.apart is False:
        return f"{said}; the ranges overlap, no difference can be told."
    if measured[first].median == measured[second].median:
        return f"{said}; no difference."
    better = first if (measured[first].median > measured[second].median) == figure.more_is_better else second
    if not verdict.ratio:
        return f"{said}; {better} is better."
    factor = max(verdict.ratio, 1 / verdict.ratio)
    doubt = "; of one repeat nobody knows the spread" if verdict.apart is None else ""
    return f"{said}; {better} is better by a factor of {number(factor)}{doubt}."


def _about_chance(repeats: int) -> str:
    chance = chance_of_apart(repeats, repeats)
    if repeats == 1:
        return "Each arm ran once: run more repeats before you believe a difference (--repeats 3)."
    warned = ": more repeats would tell more" if chance > _RARELY else ""
    return (
        f"Ranges of {repeats} repeats each lie apart by chance alone once in {round(1 / chance)} figures"
        f"{warned}."
    )
