"""Shows a comparison on a console: one table, and in words what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.reporting.quantities import ABSENT, number

if TYPE_CHECKING:
    from rich.console import Console

    from superdl.experiments.comparing.figures import Spread
    from superdl.experiments.comparing.report import Comparison

__all__ = ["cell", "print_comparison"]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, and what it says and leaves out."""
    if any(one.figures is not None for one in comparison.rounds):
        console.print(_table(comparison))
    lines = [f"comparison {comparison.name}: {comparison.status} in {comparison.took_s:.1f} s"]
    if comparison.reason:
        lines.append(f"reason: {comparison.reason}")
    lines += [" ".join(point) for point in comparison.words()]
    lines.append(f"written to {comparison.directory}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(comparison: Comparison) -> Table:
    repeats = max(len(comparison.figures_of(arm.name)) for arm in comparison.arms)
    table = Table(
        title=f"{comparison.name}: median of {repeats} repeat(s), and below it least to most",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("figure", overflow="fold")
    table.add_column("unit", overflow="fold")
    for arm in comparison.arms:
        table.add_column(arm.title, justify="right", overflow="fold")
    for figure in comparison.shown():
        cells = [cell(comparison.spread(arm.name, figure.key), "\n") for arm in comparison.arms]
        table.add_row(figure.title, figure.unit, *cells)
    return table


def cell(spread: Spread | None, between: str) -> str:
    """The median, and, where it is not the only value, the least and the most ``between`` it and the end."""
    if spread is None:
        return ABSENT
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)}{between}{number(spread.least)} to {number(spread.most)}"
