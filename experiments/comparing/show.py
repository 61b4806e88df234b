"""Shows a comparison: one table and sentences on a console, and ``report.html`` with plots beside.

What the page says beside the figures is in ``reporting/templates/comparison.html``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table as ConsoleTable

from superdl.experiments.comparing.figures import mean_by_name
from superdl.experiments.reporting.page import Column, Table, facts_table, render
from superdl.experiments.reporting.plots import Line, Plot, draw_bars, draw_lines, height_of_bars, plot_of
from superdl.experiments.reporting.quantities import ABSENT, number, seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.console import Console

    from superdl.experiments.comparing.comparison import Comparison
    from superdl.experiments.comparing.figures import Figure, Spread
    from superdl.experiments.reporting.plots import Drawing

__all__ = ["comparison_page", "print_comparison"]

_PLOTTED = ("images_per_s", "wait_percent", "cpu_ms_per_image", "usd_per_epoch")
_PLOTTED_WHOLE = ("usd_per_epoch", "decodes_per_image", "cpu_s", "usd", "wall_s", "first_batch_s")
_MACHINE = ("cpu", "platform", "usable_cpus", "device", "device_name", "python")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, and what it says and leaves out."""
    if comparison.measured:
        repeats = max(len(comparison.figures_of(arm.name)) for arm in comparison.arms)
        title = f"{comparison.name}: median of {repeats} repeat(s), and below it least to most"
        table = ConsoleTable(title=title, box=SIMPLE_HEAD, padding=0)
        for heading in ("figure", "unit"):
            table.add_column(heading, overflow="fold")
        for arm in comparison.arms:
            table.add_column(arm.title, justify="right", overflow="fold")
        for figure in comparison.shown():
            cells = [_cell(comparison.spread(arm.name, figure.key), "\n") for arm in comparison.arms]
            table.add_row(figure.title, figure.unit, *cells)
        console.print(table)
    lines = [f"comparison {comparison.name}: {comparison.status} in {comparison.took_s:.1f} s"]
    if comparison.reason:
        lines.append(f"reason: {comparison.reason}")
    lines += [" ".join(point) for point in comparison.words()]
    lines.append(f"written to {comparison.directory}")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def comparison_page(comparison: Comparison) -> str:
    """The page as HTML."""
    planned = len(comparison.arms) * comparison.repeats
    if comparison.status == "finished":  # of runs that were found, arms may have several each
        planned = len(comparison.rounds)
    machine = {name: comparison.environment[name] for name in _MACHINE if name in comparison.environment}
    whole = comparison.of_whole_runs
    counted = "after the warm-up" if comparison.warmup_epochs else "of all epochs"
    return render(
        "comparison.html",
        title=f"{comparison.name}: {', '.join(arm.title for arm in comparison.arms)}",
        subtitle=(
            f"{comparison.status}, begun {comparison.started_at}, {comparison.measured} of {planned} rounds "
            f"measured in {seconds(comparison.took_s)}"
        ),
        comparison=comparison,
        side_by_side=_side_by_side(comparison),
        cpu_by_part=_cpu_by_part(comparison, counted),
        rounds=_rounds(comparison),
        plots=(
            _plot_of_figures(comparison, set(_PLOTTED) - whole, counted),
            _plot_of_figures(comparison, whole.intersection(_PLOTTED_WHOLE), "of the whole run"),
            _plot_of_parts(comparison),
            _plot_over_time(comparison),
        ),
        settings=list(_settings(comparison)),
        machine=facts_table("Machine", machine) if machine else None,
    )


def _cell(spread: Spread | None, between: str, end: str = "") -> str:
    """The median, and, where it is not the only value, the least and the most ``between`` it and the end."""
    if spread is None:
        return ABSENT
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)}{between}{number(spread.least)} to {number(spread.most)}{end}"


def _side_by_side(comparison: Comparison) -> Table:
    columns = (Column("figure", words=True), Column("unit", words=True))
    spreads = {
        figure: [comparison.spread(arm.name, figure.key) for arm in comparison.arms]
        for figure in comparison.shown()
    }
    return Table(
        "Median of the repeats, in brackets the least and the most.",
        columns + tuple(Column(arm.title) for arm in comparison.arms),
        tuple(
            (figure.title, figure.unit, *(_cell(one, " [", "]") for one in of_arms))
            for figure, of_arms in spreads.items()
        ),
    )


def _cpu_of_arms(comparison: Comparison) -> dict[str, dict[str, float]]:
    """CPU by image and part, of each arm by its title."""
    return {
        arm.title: mean_by_name([one.cpu_ms_by_group for one in comparison.figures_of(arm.name)])
        for arm in comparison.arms
    }


def _cpu_by_part(comparison: Comparison, counted: str) -> Table | None:
    by_arm = _cpu_of_arms(comparison)
    groups = dict.fromkeys(name for used in by_arm.values() for name in used)
    rows = tuple((name, *(number(used.get(name)) for used in by_arm.values())) for name in groups)
    columns = (Column("processes", words=True), *(Column(title, "ms/image") for title in by_arm))
    return Table(f"CPU {counted} by part, mean of the repeats", columns, rows) if rows else None


def _rounds(comparison: Comparison) -> Table:
    shown = comparison.shown()
    columns = (
        Column("round"),
        Column("arm", words=True),
        Column("repeat"),
        *(Column(figure.title, figure.unit) for figure in shown),
        Column("in", words=True),
    )
    rows = []
    for one in comparison.rounds:
        values = [number(getattr(one.figures, figure.key, None)) for figure in shown]
        rows.append((str(one.round.number), one.round.arm, str(one.round.repeat), *values, one.folder))
    return Table("In the order in which they ran", columns, tuple(rows))


def _plot_of_figures(comparison: Comparison, keys: Collection[str], of_what: str) -> Plot | None:
    drawings = [_bars(comparison, figure) for figure in comparison.shown() if figure.key in keys]
    return plot_of(
        f"Figures {of_what}: bars are medians of the repeats, whiskers reach from the least to the most.",
        drawings,
        columns=min(2, len(drawings)),
        row_in=height_of_bars(len(comparison.arms)),
    )


def _bars(comparison: Comparison, figure: Figure) -> Drawing:
    spreads = [comparison.spread(arm.name, figure.key) for arm in comparison.arms]
    below = [None if one is None else one.median - one.least for one in spreads]
    above = [None if one is None else one.most - one.median for one in spreads]
    return partial(
        draw_bars,
        title=f"{figure.title} ({'more' if figure.more_is_better else 'less'} is better)",
        label=figure.unit,
        categories=[arm.title for arm in comparison.arms],
        series={figure.title: [None if one is None else one.median for one in spreads]},
        spread=(below, above),
    )


def _plot_of_parts(comparison: Comparison) -> Plot | None:
    """Whose the CPU time is."""
    by_arm = _cpu_of_arms(comparison)
    groups = dict.fromkeys(name for used in by_arm.values() for name in used)
    series = {name: [used.get(name, 0.0) for used in by_arm.values()] for name in groups}
    series = {name: values for name, values in series.items() if max(values) > 0}
    if not series:
        return None
    draw = partial(draw_bars, title="CPU by part", label="ms/image", categories=list(by_arm), series=series)
    row_in = height_of_bars(len(by_arm) * len(series))
    return plot_of("Whose the CPU time is, mean of the repeats.", [draw], row_in=row_in)


def _plot_over_time(comparison: Comparison) -> Plot | None:
    """Throughput in the order of rounds, so that a machine that changes meanwhile is seen."""
    if comparison.repeats == 1 or not comparison.measured:
        return None
    lines = []
    for arm in comparison.arms:
        measured = [
            (one.round.number, one.figures.images_per_s)
            for one in comparison.rounds
            if one.round.arm == arm.name and one.figures is not None
        ]
        lines.append(Line(arm.title, [at for at, _ in measured], [speed for _, speed in measured]))
    draw = partial(draw_lines, title="throughput by round", x_label="round", y_label="images/s", whole=True)
    return plot_of(
        "Rounds in the order in which they ran: what changes for all arms alike is the machine's.",
        [partial(draw, lines=lines)],
    )


def _settings(comparison: Comparison) -> Iterator[Table]:
    """What each arm sets, its loader's settings, and what trials set."""
    for arm in comparison.arms:
        if arm.values:
            yield facts_table(f"{arm.title} sets", arm.values)
        if arm.settings:
            yield facts_table(f"Settings of {arm.title}'s loader", arm.settings)
    trials: dict[str, Any] = comparison.spec.get("trials") or {}
    if trials:
        columns = (Column("trial", words=True), Column("sets", words=True))
        told = {
            name: ", ".join(f"{key}={value}" for key, value in one.items()) for name, one in trials.items()
        }
        yield Table("Trials", columns, tuple(told.items()))
