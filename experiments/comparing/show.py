"""Display a comparison: on a console, and as ``report.html`` with plots.

The page's text is in ``reporting/templates/comparison.html``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from superdl.experiments.comparing.figures import mean_by_name, winner
from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.page import (
    Plot,
    Table,
    draw_bars,
    facts_table,
    height_of_bars,
    plot_of,
    render,
)
from superdl.experiments.reporting.quantities import ABSENT, number, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.console import Console

    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.comparing.figures import Figure, Spread
    from superdl.experiments.reporting.page import Drawing

__all__ = ["comparison_page", "print_comparison", "spread_cell"]

_PLOTTED = {"images_per_s", "wait_percent", "cpu_ms_per_image", "usd_per_epoch"}
_MACHINE = ("cpu", "platform", "usable_cpus", "device", "device_name", "python")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, its conclusions and what it leaves out."""
    if comparison.measured:
        title = f"{comparison.name}: median of the repeats, and below it least to most"
        rows = [
            (
                figure.title,
                figure.unit,
                *(spread_cell(spread, "\n") for spread in spreads.values()),
                _winner_cell(best),
            )
            for figure, spreads, best in _side_by_side(comparison)
        ]
        heads = ("figure", "unit", *(arm.name for arm in comparison.arms), "winner")
        print_rows(console, heads, rows, title=title, words=2)
    lines = [f"comparison {comparison.name}: {comparison.status} in {comparison.took_s:.1f} s"]
    if comparison.reason:
        lines.append(f"reason: {comparison.reason}")
    lines += [" ".join(point) for point in comparison.words()]
    lines.append(f"written to {comparison.directory}")
    for line in lines:
        say(console, line)


def comparison_page(comparison: Comparison) -> str:
    """Return the page as HTML."""
    planned = len(comparison.arms) * comparison.repeats
    if comparison.status == "finished":  # arms made elsewhere may differ in runs
        planned = len(comparison.rounds)
    machine = {name: comparison.environment[name] for name in _MACHINE if name in comparison.environment}
    counted = "after the warm-up" if comparison.warmup_epochs else "of all epochs"
    shown = comparison.shown()
    names = [arm.name for arm in comparison.arms]
    return render(
        "comparison.html",
        title=f"{comparison.name}: {', '.join(names)}",
        subtitle=(
            f"{comparison.status}, begun {comparison.started_at}, {comparison.measured} of {planned} rounds "
            f"measured in {seconds(comparison.took_s)}"
        ),
        comparison=comparison,
        side_by_side=Table(
            "Median of the repeats, in brackets the least and the most",
            ("figure", "unit", *names, "winner"),
            [
                (
                    figure.title,
                    figure.unit,
                    *(spread_cell(spread, " [", "]") for spread in spreads.values()),
                    _winner_cell(best),
                )
                for figure, spreads, best in _side_by_side(comparison)
            ],
            best=[best and 2 + names.index(best[0]) for _, _, best in _side_by_side(comparison)],
        ),
        cpu_by_part=_cpu_by_part(comparison, counted),
        rounds=Table(
            "In the order in which they ran",
            (
                "round",
                "arm",
                "repeat",
                *(f"{figure.title} ({figure.unit})" if figure.unit else figure.title for figure in shown),
                "in",
            ),
            [
                (
                    report.number,
                    report.arm,
                    report.repeat,
                    *(getattr(report.figures, figure.key, None) for figure in shown),
                    report.folder,
                )
                for report in comparison.rounds
            ],
        ),
        plot=_plot(comparison, _PLOTTED - comparison.of_whole_runs, counted),
        settings=list(_settings(comparison)),
        machine=facts_table("Machine", machine) if machine else None,
    )


def _side_by_side(
    comparison: Comparison,
) -> Iterator[tuple[Figure, dict[str, Spread | None], tuple[str, float | None] | None]]:
    """Yield each figure, its spread by arm, and its winner."""
    for figure in comparison.shown():
        spreads = comparison.spreads(figure.key)
        yield figure, spreads, winner(figure, spreads)


def _winner_cell(best: tuple[str, float | None] | None) -> str:
    """Format the winner and its factor."""
    if best is None:
        return ABSENT
    return best[0] if best[1] is None else f"{best[0]}, {number(best[1])} times better"


def spread_cell(spread: Spread | None, between: str, end: str = "") -> str:
    """Format the median and, if values differ, the least and the most, joined by ``between``."""
    if spread is None:
        return ABSENT
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)}{between}{number(spread.least)} to {number(spread.most)}{end}"


def _cpu_by_part(comparison: Comparison, counted: str) -> Table | None:
    """Tabulate the CPU time per image by group of processes."""
    by_arm = {
        arm.name: mean_by_name([figures.cpu_ms_by_group for figures in comparison.figures_of(arm.name)])
        for arm in comparison.arms
    }
    groups = dict.fromkeys(name for used in by_arm.values() for name in used)
    rows = [(name, *(used.get(name) for used in by_arm.values())) for name in groups]
    heads = ("processes", *(f"{arm} (ms/image)" for arm in by_arm))
    return Table(f"CPU {counted} by part, mean of the repeats", heads, rows) if rows else None


def _plot(comparison: Comparison, keys: Collection[str], of_what: str) -> Plot | None:
    drawings = [_bars(comparison, figure) for figure in comparison.shown() if figure.key in keys]
    return plot_of(
        f"Figures {of_what}: bars are medians of the repeats, whiskers reach from the least to the most.",
        drawings,
        columns=min(2, len(drawings)),
        row_in=height_of_bars(len(comparison.arms)),
    )


def _bars(comparison: Comparison, figure: Figure) -> Drawing:
    spreads = comparison.spreads(figure.key)
    return partial(
        draw_bars,
        title=f"{figure.title} ({'more' if figure.more_is_better else 'less'} is better)",
        label=figure.unit,
        bars={name: None if spread is None else spread.median for name, spread in spreads.items()},
        spread=(
            [None if spread is None else spread.median - spread.least for spread in spreads.values()],
            [None if spread is None else spread.most - spread.median for spread in spreads.values()],
        ),
    )


def _settings(comparison: Comparison) -> Iterator[Table]:
    """Yield tables of the settings of arms, loaders and trials."""
    for arm in comparison.arms:
        if arm.values:
            yield facts_table(f"{arm.name} sets", arm.values)
        if arm.settings:
            yield facts_table(f"Settings of {arm.name}'s loader", arm.settings)
    trials = (comparison.spec.get("trials") or {}).items()
    trial_settings = {
        name: ", ".join(f"{key}={value}" for key, value in values.items()) for name, values in trials
    }
    if trial_settings:
        yield facts_table("What trials set", trial_settings)
