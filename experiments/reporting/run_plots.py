"""The charts of a run's page, each from the run's files alone. Drawing them is left to `plots`."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from experiments.reporting.charts import Bars, Line, Lines, Mark, Series, Stack, thinned
from experiments.reporting.run_words import STALL_CAUSES, stalls_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.reporting.run_files import Pass, RunFiles, StepColumns

__all__ = ["learning_charts", "speed_charts", "stalls_chart", "step_charts", "usage_charts"]

_POINTS = 80
"""A plot of a pass has so many at most: what is between them would not be seen."""
_TIMES = 240
_NAMED = 12
"""So many passes at most have their names in a plot over time."""
_GIB = 2**30
_GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "supervisor", "other")


def speed_charts(run: RunFiles) -> list[Bars]:
    """Images per second of each epoch, training and validation each on a scale of its own."""
    charts = []
    for split, title in (("train", "Training"), ("val", "Validation")):
        told = [one for one in run.passes if one.split == split]
        if told:
            series = (Series(title, _of(told, "images_per_s")),)
            epochs = tuple(str(one.epoch + 1) for one in told)
            charts.append(
                Bars(title, "images per second", epochs, series, "epoch", numbered=len(told) <= _NAMED)
            )
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
        f"Epoch {one.epoch + 1}" + ("" if one.complete else " (not finished)"),
        "step",
        "time of a step (ms)",
        tuple(float(x) for x in xs),
        tuple(Series(name, values) for name, values in zip(names, layers, strict=True)),
        end=float(len(columns)),
        whole=True,
    )


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
    """Each sample tells of the time since the one before."""
    spans = {at: index - 1 for index, at in enumerate(times)}
    lengths = [later - at for at, later in itertools.pairwise(times)]
    used: dict[str, list[float]] = {}
    for row in run.usage:
        if row.cpu_cores is not None and spans[row.at_s] >= 0:
            column = used.setdefault(row.subject, [0.0] * len(lengths))
            column[spans[row.at_s]] = row.cpu_cores
    names = [name for name in _GROUPS if name in used]
    seconds = {name: [a * b for a, b in zip(used[name], lengths, strict=True)] for name in names}
    xs, columns = thinned(times[:-1], [lengths, *seconds.values()], _TIMES)
    widths, works = columns[0], columns[1:]
    layers = tuple(
        Series(
            name, tuple(work / width if width > 0 else 0.0 for work, width in zip(one, widths, strict=True))
        )
        for name, one in zip(names, works, strict=True)
    )
    begin_s = times[0]
    return Stack(
        "Processor cores in use",
        "time since the run began (s)",
        "cores",
        tuple(x - begin_s for x in xs),
        layers,
        marks=marks,
        end=times[-1] - begin_s,
    )


def _gpu_charts(run: RunFiles, begin_s: float, marks: tuple[Mark, ...]) -> list[Stack | Lines]:
    rows = [row for row in run.usage if row.subject == "gpu"]
    charts: list[Stack | Lines] = []
    label = "time since the run began (s)"
    busy = [(row.at_s - begin_s, row.gpu_percent) for row in rows if row.gpu_percent is not None]
    if busy:
        xs, (ys,) = thinned([at for at, _ in busy], [[value for _, value in busy]], _TIMES)
        line = Line("busy", xs, ys)
        charts.append(Lines("GPU: time in which some kernel ran", label, "%", (line,), marks, 102.0))
    memory = [(row.at_s - begin_s, row.gpu_memory_bytes) for row in rows if row.gpu_memory_bytes is not None]
    if memory:
        xs, (ys,) = thinned([at for at, _ in memory], [[value / _GIB for _, value in memory]], _TIMES)
        total = max((row.gpu_memory_total_bytes or 0 for row in rows), default=0) / _GIB or None
        charts.append(Lines("GPU: memory in use", label, "GiB", (Line("used", xs, ys),), marks, total))
    return charts
