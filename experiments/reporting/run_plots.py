"""The plots of a run's page, each from the run's files alone."""

from __future__ import annotations

import bisect
import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.experiments.reporting.plots import (
    Line,
    draw_bars,
    draw_lines,
    draw_stack,
    height_of_bars,
    plot_of,
    with_marks,
)
from superdl.experiments.reporting.run_findings import STALL_CAUSES, stalls_of, step_times_by_epoch
from superdl.experiments.reporting.run_tables import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from superdl.experiments.reporting.plots import Drawing, Plot
    from superdl.experiments.reporting.run_files import Pass, RunFiles, StepColumns, UsageRow

__all__ = ["run_plots", "thinned"]

_POINTS = 80
"""A plot of a pass has so many at most: what is between them would not be seen."""
_TIMES = 240
_LEAST_S = 0.5
_NAMED = 12
"""So many epochs at most have a bar, or their names in a plot over time."""
_GIB = 2**30
_PERCENT_TOP = 102.0
"""So that a line at 100% is seen whole."""


def run_plots(run: RunFiles) -> dict[str, Plot | None]:
    """All plots by name; None where the files do not tell, or plots cannot be drawn."""
    speeds = _speeds(run)
    steps = _step_parts(run)
    return {
        "speeds": plot_of(
            "Images per second, by epoch; each plot has its own scale.", speeds, columns=len(speeds)
        ),
        "learning": plot_of(
            "Left: loss, lower is better. Right: how many images the model classifies rightly.",
            _learning(run) if run.passes else [],
            columns=2,
        ),
        "steps": plot_of(_about_steps(run), steps, columns=len(steps), one_scale=True),
        "step_times": plot_of(
            "Means over the steps since the one before, waiting and all else with it.", _step_times(run)
        ),
        "stalls": plot_of(
            "Seconds that the trainer waited in each epoch's training pass, by cause.", _stalls(run)
        ),
        "usage": plot_of("What the parts of the run use over time, on each other.", _usage(run)),
        "cost": _cost(run.known.get("bill") or {}),
    }


def thinned(values: Sequence[float] | NDArray[np.float64], most: int) -> tuple[list[int], list[float]]:
    """At most ``most`` means over neighbours in place of many values, and where the first of each stood."""
    if not len(values):
        return [], []
    each = -(-len(values) // most)
    starts = np.arange(0, len(values), each)
    lengths = np.diff([*starts, len(values)])
    return starts.tolist(), (np.add.reduceat(np.asarray(values), starts) / lengths).tolist()


def _of(passes: Iterable[Pass], name: str, factor: float = 1.0) -> list[float | None]:
    values = [one.figures.get(name) for one in passes]
    return [None if value is None else factor * value for value in values]


def _speeds(run: RunFiles) -> list[Drawing]:
    """Images per second of each epoch, training and validation each on a scale of its own."""
    drawings: list[Drawing] = []
    for split, title in (("train", "Training"), ("val", "Validation")):
        passes = [one for one in run.passes if one.split == split]
        epochs, speeds = [one.epoch + 1 for one in passes], _of(passes, "images_per_s")
        label = "images per second"
        if len(passes) > _NAMED:
            draw = partial(draw_lines, x_label="epoch", y_label=label, whole=True)
            drawings.append(partial(draw, title=title, lines=[Line(title, epochs, speeds)]))
        elif passes:
            names = [f"epoch {epoch}" for epoch in epochs]
            draw = partial(draw_bars, label=label, categories=names)
            drawings.append(partial(draw, title=title, series={title: speeds}))
    return drawings


def _learning(run: RunFiles) -> list[Drawing]:
    """Loss and accuracy over epochs; within an epoch, of its steps."""
    losses = [_over_epochs(run, "loss")]
    accuracies = [_over_epochs(run, "accuracy", 100.0)]
    validated = [one for one in run.passes if one.split == "val"]
    ends = [one.epoch + 1 for one in validated]
    if validated:
        losses.append(Line("validation", ends, _of(validated, "loss")))
        accuracies.append(Line("validation, top-1", ends, _of(validated, "accuracy", 100.0)))
        if validated[-1].figures.get("top5_accuracy") is not None:
            accuracies.append(Line("validation, top-5", ends, _of(validated, "top5_accuracy", 100.0)))
    draw = partial(draw_lines, x_label="epochs done")
    return [
        partial(draw, title="Loss", y_label="loss (cross entropy, nats)", lines=losses),
        partial(draw, title="Accuracy", y_label="images right (%)", lines=accuracies, top=_PERCENT_TOP),
    ]


def _over_epochs(run: RunFiles, name: str, factor: float = 1.0) -> Line:
    """A column of the training steps, over the share of epochs done."""
    xs: list[float] = []
    ys: list[float | None] = []
    most = max(10, 4 * _POINTS // max(1, len(run.trained)))
    for one in run.trained:
        values = getattr(run.steps.get((one.epoch, one.split)), name, ())
        places, means = thinned(values, most)
        xs += [one.epoch + (place + 1) / len(values) for place in places]
        ys += [None if math.isnan(mean) else factor * mean for mean in means]
    return Line("training, by step", xs, ys)


def _about_steps(run: RunFiles) -> str:
    on_gpu = ((run.manifest or {}).get("software") or {}).get("device") == "cuda"
    overlap = " On a GPU computing goes on behind the process, so that a step may take less." * on_gpu
    return (
        "What the steps of the first epoch and of the last consist of, means where there are many. Other is "
        f"what a step keeps the process for beside its computing.{overlap}{run.rank_0_note}"
    )


def _step_parts(run: RunFiles) -> list[Drawing]:
    """What the steps of the first training pass and of the last consist of."""
    there = [one for one in run.trained if (one.epoch, one.split) in run.steps]
    shown = there[:1] + there[1:][-1:]
    return [_parts_of(one, run.steps[one.epoch, one.split]) for one in shown]


def _parts_of(one: Pass, steps: StepColumns) -> Drawing:
    """Waiting, computing and what is left; on a GPU, computing goes on behind the host's back."""
    wait, compute = (1000 * np.asarray(column) for column in (steps.wait_s, steps.compute_s))
    rest = np.maximum(0.0, 1000 * np.asarray(steps.total_s) - wait - compute)
    layers = {"waiting for data": wait, "computing": compute, "other": rest}
    xs, _ = thinned(wait, _POINTS)
    return partial(
        draw_stack,
        title=f"Epoch {one.epoch + 1}" + ("" if one.complete else ", in part"),
        x_label="step",
        y_label="time of a step (ms)",
        xs=xs,
        layers={name: thinned(values, _POINTS)[1] for name, values in layers.items()},
        end=float(len(wait)),
        whole=True,
    )


def _step_times(run: RunFiles) -> list[Drawing]:
    """Mean step times as they were printed, of the epochs shown."""
    lines = [
        Line(f"epoch {epoch + 1}", list(times), [1000 * mean_s for mean_s in times.values()])
        for epoch, times in step_times_by_epoch(run).items()
    ]
    draw = partial(draw_lines, x_label="step of the epoch", y_label="time of a step (ms)", whole=True)
    return [partial(draw, title="Mean step time", lines=lines)] if lines else []


def _stalls(run: RunFiles) -> list[Drawing]:
    """Seconds of stalls by cause, for each epoch."""
    told = [stalls_of(one) for one in run.trained]
    causes = [name for name in STALL_CAUSES if any(stalls.get(name) for stalls in told)]
    causes += sorted({name for stalls in told for name in stalls} - STALL_CAUSES.keys())
    layers = {name.replace("_", " "): [stalls.get(name, 0.0) for stalls in told] for name in causes}
    epochs = [float(one.epoch + 1) for one in run.trained]
    draw = partial(draw_stack, title="Stalls by cause", x_label="epoch", y_label="waiting (s)", whole=True)
    return [partial(draw, xs=epochs, layers=layers)] if causes else []


def _cost(bill: dict[str, Any]) -> Plot | None:
    """What was paid for what; None where it is one thing at most."""
    lines = {line["name"]: line["usd"] for line in bill.get("lines", ()) if line["usd"]}
    if len(lines) < 2:  # noqa: PLR2004  # nothing to compare
        return None
    series = {"the run": list(lines.values())}
    draw = partial(
        draw_bars, title="Cost of the run", label="US dollars", categories=list(lines), series=series
    )
    return plot_of("US dollars by what they were paid for.", [draw], row_in=height_of_bars(len(lines)))


def _usage(run: RunFiles) -> list[Drawing]:
    """Cores in use by part, and the GPUs, over the time of the run, with the begin of each epoch marked."""
    times = sorted({row.at_s for row in run.usage})
    if len(times) < 2:  # noqa: PLR2004  # from one look to the next
        return []
    begins = {
        f"epoch {epoch + 1}": steps.begun_at_s - times[0]
        for (epoch, split), steps in sorted(run.steps.items())
        if split == "train"
    }
    marks = begins if len(begins) <= _NAMED else {}
    return [with_marks(draw, marks) for draw in (_cores_in_use(run, times), *_gpus(run, times[0]))]


def _cores_in_use(run: RunFiles, times: Sequence[float]) -> Drawing:
    """Each sample tells of the time since the one before.

    Samples on the borders of passes may follow others at once: means over half a second at least.
    """
    edges, layers = cores_by_part(run.usage, times)
    return partial(
        draw_stack,
        title="Processor cores in use",
        x_label="time since the run began (s)",
        y_label="cores",
        xs=[at - times[0] for at in edges[:-1]],
        layers=layers,
        end=times[-1] - times[0],
    )


def cores_by_part(
    usage: Sequence[UsageRow], times: Sequence[float]
) -> tuple[list[float], dict[str, list[float]]]:
    """When the means begin and the last one ends, and the mean cores of each part between."""
    least_s = max(_LEAST_S, (times[-1] - times[0]) / _TIMES)
    edges = [times[0]]
    for at in times[1:]:
        if at - edges[-1] >= least_s:
            edges.append(at)
    edges = [*edges[:-1], times[-1]] if len(edges) > 1 else [times[0], times[-1]]
    before = dict(zip(times[1:], times, strict=False))
    used: dict[str, list[float]] = {}
    for row in usage:
        if row.cpu_cores is not None and row.at_s in before:
            work = used.setdefault(row.subject, [0.0] * (len(edges) - 1))
            place = min(bisect.bisect_left(edges, row.at_s), len(edges) - 1) - 1
            work[place] += row.cpu_cores * (row.at_s - before[row.at_s])
    lengths = [later - at for at, later in itertools.pairwise(edges)]
    means = {
        name: [work / length for work, length in zip(used[name], lengths, strict=True)]
        for name in GROUPS
        if name in used
    }
    return edges, means


def _gpus(run: RunFiles, begin_s: float) -> list[Drawing]:
    """How busy the GPUs are and what of their memory is used, a line for each rank."""
    rows = {rank: [row for row in usage if row.subject == "gpu"] for rank, usage in run.usage_by_rank.items()}
    most = max((_gib(row.gpu_memory_total_bytes) or 0.0 for told in rows.values() for row in told), default=0)
    drawings: list[Drawing] = []
    for title, unit, value, top in (
        ("GPU: time in which some kernel ran", "%", lambda row: row.gpu_percent, _PERCENT_TOP),
        ("GPU: memory in use", "GiB", lambda row: _gib(row.gpu_memory_bytes), most or None),
    ):
        lines = [line for rank, told in rows.items() if (line := _line(rank, told, value, begin_s))]
        draw = partial(draw_lines, x_label="time since the run began (s)", y_label=unit, top=top)
        if lines:
            drawings.append(partial(draw, title=title, lines=lines))
    return drawings


def _line(
    rank: int, rows: Iterable[UsageRow], value: Callable[[UsageRow], float | None], begin_s: float
) -> Line | None:
    there = [(row.at_s - begin_s, known) for row in rows if (known := value(row)) is not None]
    places, ys = thinned([known for _, known in there], _TIMES)
    return Line(f"rank {rank}", [there[place][0] for place in places], ys) if there else None


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / _GIB
