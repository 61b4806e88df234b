"""The charts of a run's page, each from the run's files alone. Drawing them is left to `plots`."""

from __future__ import annotations

import bisect
import itertools
import math
from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.charts import Bars, Line, Lines, Mark, Series, Stack, thinned
from superdl.experiments.reporting.run_words import STALL_CAUSES, stalls_of, step_times_by_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles, StepColumns

__all__ = [
    "cost_chart",
    "learning_charts",
    "speed_charts",
    "stalls_chart",
    "step_charts",
    "step_times_chart",
    "usage_charts",
]

_POINTS = 80
"""A plot of a pass has so many at most: what is between them would not be seen."""
_TIMES = 240
_LEAST_S = 0.5
_NAMED = 12
"""So many epochs at most have a bar, or their names in a plot over time."""
_GIB = 2**30
_GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "supervisor", "other")


def speed_charts(run: RunFiles) -> list[Bars | Lines]:
    """Images per second of each epoch, training and validation each on a scale of its own."""
    charts: list[Bars | Lines] = []
    for split, title in (("train", "Training"), ("val", "Validation")):
        told = [one for one in run.passes if one.split == split]
        speeds, label = _of(told, "images_per_s"), "images per second"
        if len(told) > _NAMED:
            line = Line(title, tuple(float(one.epoch + 1) for one in told), speeds)
            charts.append(Lines(title, "epoch", label, (line,), whole=True))
        elif told:
            epochs = tuple(str(one.epoch + 1) for one in told)
            charts.append(Bars(title, label, epochs, (Series(title, speeds),), "epoch"))
    return charts


def learning_charts(run: RunFiles) -> list[Lines]:
    """Loss and accuracy over epochs; within an epoch, of its steps."""
    losses: list[Line] = []
    tops: list[Line] = []
    for name, pick, into in (("training", "loss", losses), ("training", "accuracy", tops)):
        xs, ys = _over_epochs(run, pick)
        into.append(Line(f"{name}, by step", xs, ys))
    validated = [one for one in run.passes if one.split == "val"]
    ends = tuple(float(one.epoch + 1) for one in validated)
    if validated:
        losses.append(Line("validation", ends, _of(validated, "loss"), marked=True))
        tops.append(Line("validation, top-1", ends, _percents(_of(validated, "accuracy")), marked=True))
        if validated[-1].figures.get("top5_accuracy") is not None:
            top5 = _percents(_of(validated, "top5_accuracy"))
            tops.append(Line("validation, top-5", ends, top5, marked=True))
    tops[0] = Line(tops[0].name, tops[0].xs, _percents(tops[0].ys))
    return [
        Lines("Loss", "epochs done", "loss (cross entropy, nats)", tuple(losses)),
        Lines("Accuracy", "epochs done", "images right (%)", tuple(tops), top=102.0),
    ]


def _of(passes: Sequence[Pass], name: str) -> tuple[float | None, ...]:
    return tuple(one.figures.get(name) for one in passes)


def _percents(values: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else 100 * value for value in values)


def _over_epochs(run: RunFiles, name: str) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """A column of the training steps, over the share of epochs done."""
    xs: list[float] = []
    ys: list[float] = []
    each = max(10, 4 * _POINTS // max(1, len(run.trained)))
    for one in run.trained:
        steps = run.steps.get((one.epoch, one.split))
        if steps is None:
            continue
        values = getattr(steps, name)
        places, (means,) = thinned(range(1, len(values) + 1), [values], each)
        xs += [one.epoch + place / len(values) for place in places]
        ys += means
    return tuple(xs), tuple(None if math.isnan(y) else y for y in ys)


def step_charts(run: RunFiles) -> list[Stack]:
    """What the steps of the first training pass and of the last consist of."""
    there = [one for one in run.trained if (one.epoch, one.split) in run.steps]
    shown = there[:1] + there[1:][-1:]
    return [_step_chart(one, run.steps[one.epoch, one.split]) for one in shown]


def _step_chart(one: Pass, steps: StepColumns) -> Stack:
    """Waiting, computing and what is left; on a GPU, computing goes on behind the host's back."""
    columns = list(zip(steps.wait_s, steps.compute_s, steps.total_s, strict=True))
    waits = [1000 * wait for wait, _, _ in columns]
    computes = [1000 * compute for _, compute, _ in columns]
    rests = [1000 * max(0.0, total - wait - compute) for wait, compute, total in columns]
    xs, layers = thinned(range(len(columns)), [waits, computes, rests], _POINTS)
    names = ("waiting for data", "computing", "other")
    return Stack(
        f"Epoch {one.epoch + 1}" + ("" if one.complete else ", in part"),
        "step",
        "time of a step (ms)",
        tuple(float(x) for x in xs),
        tuple(Series(name, values) for name, values in zip(names, layers, strict=True)),
        end=float(len(columns)),
        whole=True,
    )


def step_times_chart(run: RunFiles) -> Lines | None:
    """Mean step times as they were printed, of the epochs shown; None where none were asked for."""
    by_epoch = step_times_by_epoch(run)
    if not by_epoch:
        return None
    lines = [
        Line(f"epoch {epoch + 1}", tuple(map(float, times)), tuple(1000 * value for value in times.values()))
        for epoch, times in by_epoch.items()
    ]
    return Lines("Mean step time", "step of the epoch", "time of a step (ms)", tuple(lines), whole=True)


def stalls_chart(run: RunFiles) -> Stack | None:
    """Seconds of stalls by cause, for each epoch; None where nobody told any."""
    told = [(one, stalls_of(one)) for one in run.trained]
    causes = [name for name in STALL_CAUSES if any(stalls.get(name) for _, stalls in told)]
    causes += sorted({name for _, stalls in told for name in stalls} - STALL_CAUSES.keys())
    if not causes:
        return None
    return Stack(
        "Stalls by cause",
        "epoch",
        "waiting (s)",
        tuple(float(one.epoch + 1) for one, _ in told),
        tuple(
            Series(name.replace("_", " "), tuple(stalls.get(name, 0.0) for _, stalls in told))
            for name in causes
        ),
        whole=True,
    )


def cost_chart(bill: dict[str, Any]) -> Bars | None:
    """What was paid for what; None where it is one thing at most."""
    lines = [line for line in bill["lines"] if line["usd"]]
    if len(lines) < 2:  # noqa: PLR2004  # nothing to compare
        return None
    names = tuple(line["name"] for line in lines)
    series = (Series("the run", tuple(line["usd"] for line in lines)),)
    return Bars("Cost of the run", "US dollars", names, series, horizontal=True)


def usage_charts(run: RunFiles) -> list[Stack | Lines]:
    """Cores in use by part, and the GPU, over the time of the run."""
    if not run.usage:
        return []
    begin_s = run.usage[0].at_s
    times = sorted({row.at_s for row in run.usage})
    if len(times) < 2:  # noqa: PLR2004  # from one look to the next
        return []
    marks = tuple(
        Mark(steps.begun_at_s - begin_s, f"epoch {epoch + 1}")
        for (epoch, split), steps in sorted(run.steps.items())
        if split == "train"
    )
    marks = marks if len(marks) <= _NAMED else ()
    charts: list[Stack | Lines] = [_cores_chart(run, times, marks)]
    return charts + _gpu_charts(run, begin_s, marks)


def _cores_chart(run: RunFiles, times: Sequence[float], marks: tuple[Mark, ...]) -> Stack:
    """Each sample tells of the time since the one before.

    Samples on the borders of passes may follow others at once: means over half a second at least.
    """
    least_s = max(_LEAST_S, (times[-1] - times[0]) / _TIMES)
    edges = [times[0]]
    for at in times[1:]:
        if at - edges[-1] >= least_s:
            edges.append(at)
    edges = [*edges[:-1], times[-1]] if len(edges) > 1 else [times[0], times[-1]]
    before = dict(zip(times[1:], times, strict=False))
    used: dict[str, list[float]] = {}
    for row in run.usage:
        if row.cpu_cores is not None and row.at_s in before:
            work = used.setdefault(row.subject, [0.0] * (len(edges) - 1))
            place = min(bisect.bisect_left(edges, row.at_s), len(edges) - 1) - 1
            work[place] += row.cpu_cores * (row.at_s - before[row.at_s])
    lengths = [later - at for at, later in itertools.pairwise(edges)]
    layers = tuple(
        Series(name, tuple(work / length for work, length in zip(used[name], lengths, strict=True)))
        for name in _GROUPS
        if name in used
    )
    return Stack(
        "Processor cores in use",
        "time since the run began (s)",
        "cores",
        tuple(at - times[0] for at in edges[:-1]),
        layers,
        marks=marks,
        end=times[-1] - times[0],
    )


def _gpu_charts(run: RunFiles, begin_s: float, marks: tuple[Mark, ...]) -> list[Stack | Lines]:
    """How busy the GPUs are and what of their memory is used, a line for each rank."""
    rows = {rank: [row for row in usage if row.subject == "gpu"] for rank, usage in run.usage_by_rank.items()}
    busy = [
        _line(f"rank {rank}", [(row.at_s - begin_s, row.gpu_percent) for row in told])
        for rank, told in rows.items()
    ]
    used = [
        _line(f"rank {rank}", [(row.at_s - begin_s, _gib(row.gpu_memory_bytes)) for row in told])
        for rank, told in rows.items()
    ]
    most = max((_gib(row.gpu_memory_total_bytes) or 0.0 for told in rows.values() for row in told), default=0)
    label = "time since the run began (s)"
    charts: list[Stack | Lines] = []
    for title, unit, lines, top in (
        ("GPU: time in which some kernel ran", "%", busy, 102.0),
        ("GPU: memory in use", "GiB", used, most or None),
    ):
        there = tuple(line for line in lines if line is not None)
        if there:
            charts.append(Lines(title, label, unit, there, marks, top))
    return charts


def _line(name: str, points: Sequence[tuple[float, float | None]]) -> Line | None:
    there = [(x, y) for x, y in points if y is not None]
    if not there:
        return None
    xs, (ys,) = thinned([x for x, _ in there], [[y for _, y in there]], _TIMES)
    return Line(name, xs, ys)


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / _GIB
