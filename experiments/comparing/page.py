"""``report.html`` of a comparison: what it says in words, tables and plots, one file that works offline.

Built of the blocks of `experiments.reporting`, which also say where plots need a package that is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.figures import mean_by_name
from superdl.experiments.comparing.show import cell
from superdl.experiments.reporting import Bars, Chart, Column, Line, Lines, Page, Series, Table
from superdl.experiments.reporting.quantities import number, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from superdl.experiments.comparing.figures import Figure
    from superdl.experiments.comparing.report import Comparison, RoundReport

__all__ = ["comparison_page", "write_page"]

_PLOTTED = ("images_per_s", "wait_percent", "cpu_ms_per_image", "usd_per_epoch")
_PLOTTED_WHOLE = ("usd_per_epoch", "decodes_per_image", "cpu_s", "usd", "wall_s", "first_batch_s")
_MACHINE = ("cpu", "platform", "usable_cpus", "device", "device_name", "python")


def write_page(comparison: Comparison, directory: Path) -> None:
    """Write ``report.html``; a reader sees the old file or the new one."""
    comparison_page(comparison).write(directory / "report.html")


def comparison_page(comparison: Comparison) -> Page:
    """Build the page."""
    names = ", ".join(arm.title for arm in comparison.arms)
    page = Page(f"{comparison.name}: {names}", _subtitle(comparison))
    if comparison.reason:
        page.note(f"{comparison.status}: {comparison.reason}")
    if any(arm.simulated for arm in comparison.arms):
        page.note("Arms that are marked (simulated) were predicted by a simulator, not measured.")
    if any(one.figures is not None for one in comparison.rounds):
        _figures(page, comparison)
        _over_time(page, comparison)
    _rounds(page, comparison)
    _what_ran(page, comparison)
    return page


def _subtitle(comparison: Comparison) -> str:
    done = sum(one.figures is not None for one in comparison.rounds)
    planned = len(comparison.arms) * comparison.repeats
    if comparison.status == "finished":  # of runs that were found, arms may have several each
        planned = len(comparison.rounds)
    return (
        f"{comparison.status}, begun {comparison.started_at}, {done} of {planned} rounds measured in "
        f"{seconds(comparison.took_s)}"
    )


def _figures(page: Page, comparison: Comparison) -> None:
    page.heading("What the figures say")
    page.points(comparison.words())
    page.heading("Side by side")
    columns = (Column("figure", words=True), Column("unit", words=True))
    arms = tuple(Column(arm.title) for arm in comparison.arms)
    rows = [
        (
            figure.title,
            figure.unit,
            *(_bracketed(cell(comparison.spread(arm.name, figure.key), " [")) for arm in comparison.arms),
        )
        for figure in comparison.shown()
    ]
    caption = "Median of the repeats, in brackets the least and the most."
    page.table(Table(caption, columns + arms, tuple(rows)))
    page.small(
        "Throughput is training images over the time of the training passes; of runs at once, over the time "
        "from the first epoch of the first to the end of the last. Waiting is the share of training time in "
        "which the loop was blocked on its loader. CPU is that of every process of an arm, the model's own "
        "work with it. Decodes are images fetched and decoded for all runs of an arm together, training and "
        "validation, for each image of the set."
    )
    whole = comparison.of_whole_runs
    _plot(page, comparison, [key for key in _PLOTTED if key not in whole], _counted(comparison))
    _plot(page, comparison, [key for key in _PLOTTED_WHOLE if key in whole], "of the whole run")
    _plot_groups(page, comparison)


def _counted(comparison: Comparison) -> str:
    return "after the warm-up" if comparison.warmup_epochs else "of all epochs"


def _bracketed(text: str) -> str:
    return f"{text}]" if "[" in text else text


def _plot(page: Page, comparison: Comparison, keys: Sequence[str], of_what: str) -> None:
    charts: list[Chart] = [_bars(comparison, figure) for figure in comparison.shown() if figure.key in keys]
    if charts:
        caption = (
            f"Figures {of_what}: bars are medians of the repeats, whiskers reach from the least to the most."
        )
        page.plot(caption, charts, columns=min(2, len(charts)))


def _bars(comparison: Comparison, figure: Figure) -> Bars:
    spreads = [comparison.spread(arm.name, figure.key) for arm in comparison.arms]
    series = Series(
        figure.title,
        tuple(None if one is None else one.median for one in spreads),
        tuple(None if one is None else one.least for one in spreads),
        tuple(None if one is None else one.most for one in spreads),
    )
    better = "more is better" if figure.more_is_better else "less is better"
    titles = tuple(arm.title for arm in comparison.arms)
    return Bars(f"{figure.title} ({better})", figure.unit, titles, (series,), horizontal=True)


def _plot_groups(page: Page, comparison: Comparison) -> None:
    """Whose the CPU time is."""
    by_arm = {
        arm.title: mean_by_name([one.cpu_ms_by_group for one in comparison.figures_of(arm.name)])
        for arm in comparison.arms
    }
    groups = list(dict.fromkeys(name for used in by_arm.values() for name in used))
    if not groups:
        return
    rows = tuple((name, *(number(used.get(name)) for used in by_arm.values())) for name in groups)
    columns = (Column("processes", words=True), *(Column(title, "ms/image") for title in by_arm))
    page.table(Table(f"CPU {_counted(comparison)} by part, mean of the repeats", columns, rows))
    series = tuple(
        Series(name, tuple(used.get(name, 0.0) for used in by_arm.values()))
        for name in groups
        if max(used.get(name, 0.0) for used in by_arm.values()) > 0
    )
    bars = Bars("CPU by part", "ms/image", tuple(by_arm), series, horizontal=True)
    page.plot("Whose the CPU time is, mean of the repeats.", [bars])


def _over_time(page: Page, comparison: Comparison) -> None:
    """Throughput in the order of rounds, so that a machine that changes meanwhile is seen."""
    if comparison.repeats == 1:
        return
    lines = []
    for arm in comparison.arms:
        measured = [
            (float(one.round.number), one.figures.images_per_s)
            for one in comparison.rounds
            if one.round.arm == arm.name and one.figures is not None
        ]
        xs, ys = tuple(x for x, _ in measured), tuple(y for _, y in measured)
        lines.append(Line(arm.title, xs, ys, marked=True))
    chart = Lines("throughput by round", "round", "images/s", tuple(lines), whole=True)
    page.plot(
        "Rounds in the order in which they ran: what changes for all arms alike is the machine's.", [chart]
    )


def _rounds(page: Page, comparison: Comparison) -> None:
    page.heading("Every round")
    shown = comparison.shown()
    columns = (
        Column("round"),
        Column("arm", words=True),
        Column("repeat"),
        *(Column(figure.title, figure.unit) for figure in shown),
        Column("in", words=True),
    )
    rows = tuple(
        (
            str(one.round.number),
            one.round.arm,
            str(one.round.repeat),
            *(number(_value(one, figure)) for figure in shown),
            one.folder,
        )
        for one in comparison.rounds
    )
    page.table(Table("In the order in which they ran", columns, rows))
    for one in comparison.rounds:
        if one.failure is not None:
            page.note(one.failure)


def _value(one: RoundReport, figure: Figure) -> float | None:
    value: float | None = None if one.figures is None else getattr(one.figures, figure.key)
    return value


def _what_ran(page: Page, comparison: Comparison) -> None:
    page.heading("What ran")
    for arm in comparison.arms:
        if arm.values:
            page.facts(f"{arm.title} sets", {key: str(value) for key, value in arm.values.items()})
        if arm.settings:
            page.facts(f"Settings of {arm.title}'s loader", _told(arm.settings))
        if arm.trials:
            page.paragraph(f"{arm.title} has {len(arm.trials)} runs at once: {', '.join(arm.trials)}.")
    trials = comparison.spec.get("trials") or {}
    if trials:
        rows = tuple(
            (name, ", ".join(f"{key}={value}" for key, value in values.items()))
            for name, values in trials.items()
        )
        page.table(Table("Trials", (Column("trial", words=True), Column("sets", words=True)), rows))
    machine = {name: str(comparison.environment[name]) for name in _MACHINE if name in comparison.environment}
    if machine:
        page.facts("Machine", machine)
    page.small(
        "Beside this file: compare.json and compare.csv have every figure of every round, spec.yaml repeats "
        "the comparison, and each run's own directory has its steps, samples, manifest and report."
    )


def _told(settings: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in settings.items()}
