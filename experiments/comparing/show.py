"""Print a comparison, and render its page, ``report.html``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from superdl.experiments.comparing.figures import mean_by_name, winner
from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.page import (
    ABSENT,
    Plot,
    Table,
    draw_bars,
    facts_table,
    moment,
    number,
    plot_of,
    render,
    seconds,
)
from superdl.super_wire.display import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.comparing.figures import Spread

_PLOTTED = {"images_per_s", "wait_percent", "cpu_ms_per_image", "usd_per_epoch"}
_MACHINE = ("cpu", "platform", "usable_cpus", "device", "device_name", "python")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print a comparison's table and conclusions."""
    if comparison.rounds:
        title = f"{comparison.name}: median of the repeats, with the range below it"
        heads, rows, _ = _side_by_side(comparison, "\n")
        print_rows(console, heads, rows, title=title, text_columns=2)
    lines = [f"{comparison.status.capitalize()} after {comparison.took_s:.1f} s."]
    if comparison.reason:
        lines.append(f"Reason: {comparison.reason}")
    lines += [" ".join(point) for point in comparison.conclusions()]
    lines.append(f"Written to {comparison.directory}")
    for line in lines:
        say(console, line)


def comparison_page(comparison: Comparison) -> str:
    """Render a comparison as an HTML page."""
    machine = {name: value for name in _MACHINE if (value := comparison.environment.get(name))}
    heads, rows, best = _side_by_side(comparison, " [", "]")
    return render(
        "comparison.html",
        title=f"{comparison.name}: {', '.join(arm.name for arm in comparison.arms)}",
        subtitle=(
            f"{comparison.status}, started {moment(comparison.started_at)}, "
            f"{counted(len(comparison.rounds), 'round')} in {seconds(comparison.took_s)}"
        ),
        comparison=comparison,
        side_by_side=Table("Median of the repeats, with the range in brackets", heads, rows, best=best),
        cpu_by_part=_cpu_by_part(comparison),
        rounds=_rounds(comparison),
        plot=_plot(comparison),
        settings=list(_settings(comparison)),
        machine=facts_table("Machine", machine) if machine else None,
    )


def _side_by_side(
    comparison: Comparison, between: str, end: str = ""
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[int | None]]:
    """Return the column heads, a row for each figure, and the winner's column in each row."""
    names = [arm.name for arm in comparison.arms]
    rows: list[tuple[str, ...]] = []
    columns: list[int | None] = []
    for figure in comparison.shown():
        spreads = comparison.spreads(figure.key)
        best = winner(figure, spreads)
        winner_cell = ABSENT
        if best is not None:
            winner_cell = best[0] if best[1] is None else f"{best[0]}, {number(best[1])} times better"
        cells = (spread_cell(spread, between, end) for spread in spreads.values())
        rows.append((figure.title, figure.unit, *cells, winner_cell))
        columns.append(best and 2 + names.index(best[0]))
    return ("figure", "unit", *names, "winner"), rows, columns


def spread_cell(spread: Spread | None, between: str, end: str = "") -> str:
    """Format the median, followed by the range if the values differ."""
    if spread is None:
        return ABSENT
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)}{between}{number(spread.least)} to {number(spread.most)}{end}"


def _scope(comparison: Comparison) -> str:
    return "after the warm-up" if comparison.warmup_epochs else "of all epochs"


def _cpu_by_part(comparison: Comparison) -> Table | None:
    by_arm = {
        arm.name: mean_by_name([figures.cpu_ms_by_group for figures in comparison.figures_of(arm.name)])
        for arm in comparison.arms
    }
    groups = dict.fromkeys(name for used in by_arm.values() for name in used)
    rows = [(name, *(used.get(name) for used in by_arm.values())) for name in groups]
    heads = ("processes", *(f"{arm} (ms/image)" for arm in by_arm))
    caption = f"CPU {_scope(comparison)} by part, mean of the repeats"
    return Table(caption, heads, rows) if rows else None


def _rounds(comparison: Comparison) -> Table:
    shown = comparison.shown()
    titles = (f"{figure.title} ({figure.unit})" if figure.unit else figure.title for figure in shown)
    rows = [
        (
            report.number,
            report.arm,
            report.repeat,
            *(getattr(report.figures, figure.key, None) for figure in shown),
            report.folder,
        )
        for report in comparison.rounds
    ]
    heads = ("round", "arm", "repeat", *titles, "directory")
    return Table("Rounds in the order in which they ran", heads, rows)


def _plot(comparison: Comparison) -> Plot | None:
    drawings = []
    for figure in comparison.shown():
        spreads = comparison.spreads(figure.key)
        if figure.key in _PLOTTED:
            better = "more is better" if figure.more_is_better else "less is better"
            scope = ", of whole runs" if figure.whole and comparison.warmup_epochs else ""
            title = f"{figure.title}{scope} ({better})"
            draw = partial(draw_bars, title=title, label=figure.unit)
            bars = {name: None if spread is None else spread.median for name, spread in spreads.items()}
            below = [spread and spread.median - spread.least for spread in spreads.values()]
            above = [spread and spread.most - spread.median for spread in spreads.values()]
            drawings.append(partial(draw, bars=bars, spread=(below, above)))
    return plot_of(
        f"Figures {_scope(comparison)}: bars show the median of the repeats, whiskers the range.",
        drawings,
        columns=min(2, len(drawings)),
        row_in=0.9 + 0.34 * len(comparison.arms),
    )


def _settings(comparison: Comparison) -> Iterator[Table]:
    for arm in comparison.arms:
        if arm.values:
            yield facts_table(f"Settings of {arm.name}", arm.values)
    trials = (comparison.spec.get("trials") or {}).items()
    if trials:
        values = {name: ", ".join(f"{key}={value}" for key, value in each.items()) for name, each in trials}
        yield facts_table("Settings of the trials", values)
