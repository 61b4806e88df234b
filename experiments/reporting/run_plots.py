"""The plots of a run's page, drawn from the run's files alone."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.experiments.monitoring import GROUPS
from superdl.experiments.reporting.page import draw_lines, draw_stack, plot_of
from superdl.experiments.reporting.run_findings import causes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from superdl.experiments.reporting.page import Drawing, Plot, Values
    from superdl.experiments.reporting.run_files import Pass, RunFiles, UsageRow

    Line = tuple[Sequence[float], Values]

__all__ = ["run_plots", "thinned"]

_POINTS = 80
"""The maximum number of points in a plot of a pass; more would not be visible."""
_USUAL_PERCENT = 95.0
_CLIPPED_AT = 1.5
"""Clip a chart of steps at this multiple of the 95th percentile if a step exceeds twice that."""
_TIMES = 240
_LEAST_S = 0.5
_PERCENT_TOP = 102.0
"""Leaves room above 100%, so that a line there is fully visible."""


def run_plots(run: RunFiles) -> dict[str, Plot | None]:
    """Return all plots by name; None if there is no data or no way to draw."""
    return {
        "learning": plot_of(
            "Left: loss, lower is better. Right: how many images the model classifies rightly.",
            _learning(run) if run.passes else [],
            columns=2,
        ),
        "steps": plot_of(
            "What the steps of the first epoch and of the last consist of, means where there are many. Much "
            "longer steps are cut, and marked with their time. Other is the rest of a step, "
            "during which a GPU computes on."
            f"{run.rank_0_note}",
            _step_parts(run),
            columns=2,
        ),
        "stalls": plot_of(
            "Seconds that the trainer waited in each epoch's training pass, by cause.", _stalls(run)
        ),
        "usage": plot_of(
            "What the parts of the run use over time, on each other; dots are where epochs begin.",
            _usage(run),
        ),
    }


def thinned(values: Sequence[float] | NDArray[np.float64], most: int) -> tuple[list[int], list[float]]:
    """Average neighbours into at most ``most`` means; return their indices and means."""
    if not len(values):
        return [], []
    starts = np.arange(0, len(values), -(-len(values) // most))
    lengths = np.diff([*starts, len(values)])
    return starts.tolist(), (np.add.reduceat(np.asarray(values), starts) / lengths).tolist()


def _over_passes(passes: Iterable[Pass], name: str, factor: float = 1.0) -> Line:
    points = [(epoch_pass.epoch + 1, epoch_pass.figures.get(name)) for epoch_pass in passes]
    return [epoch for epoch, _ in points], [None if value is None else factor * value for _, value in points]


def _learning(run: RunFiles) -> list[Drawing]:
    """Plot loss and accuracy over epochs, with training steps within each epoch."""
    losses = {"training, by step": _over_steps(run, "loss")}
    accuracies = {"training, by step": _over_steps(run, "accuracy", 100.0)}
    validated = [epoch_pass for epoch_pass in run.passes if epoch_pass.split == "val"]
    if validated:
        losses["validation"] = _over_passes(validated, "loss")
        accuracies["validation, top-1"] = _over_passes(validated, "accuracy", 100.0)
        if validated[-1].figures.get("top5_accuracy") is not None:
            accuracies["validation, top-5"] = _over_passes(validated, "top5_accuracy", 100.0)
    draw = partial(draw_lines, x_label="epochs done")
    return [
        partial(draw, title="Loss", y_label="loss (cross entropy, nats)", lines=losses),
        partial(draw, title="Accuracy", y_label="images right (%)", lines=accuracies, top=_PERCENT_TOP),
    ]


def _over_steps(run: RunFiles, name: str, factor: float = 1.0) -> Line:
    """Return a column of the training steps over the number of epochs done."""
    xs: list[float] = []
    ys: list[float | None] = []
    most = max(10, 4 * _POINTS // max(1, len(run.trained)))
    for (epoch, split), steps in sorted(run.steps.items()):
        if split == "train":
            places, means = thinned(steps[name], most)
            xs += [epoch + (place + 1) / len(steps) for place in places]
            ys += [None if math.isnan(mean) else factor * mean for mean in means]
    return xs, ys


def _step_parts(run: RunFiles) -> list[Drawing]:
    """Plot the parts of steps in the first and last training passes, on one scale."""
    recorded = [train_pass for train_pass in run.trained if (train_pass.epoch, train_pass.split) in run.steps]
    drawings = []
    heights: list[float] = []
    for train_pass in recorded[:1] + recorded[1:][-1:]:
        steps = run.steps[train_pass.epoch, train_pass.split]
        wait, compute = 1000 * steps["wait_s"], 1000 * steps["compute_s"]
        rest = np.maximum(0.0, 1000 * steps["total_s"] - wait - compute)
        parts = {"waiting for data": wait, "computing": compute, "other": rest}
        layers = {name: thinned(values, _POINTS)[1] for name, values in parts.items()}
        heights += map(sum, zip(*layers.values(), strict=True))
        draw = partial(draw_stack, title=f"Epoch {train_pass.epoch + 1}")
        draw = partial(draw, x_label="step", y_label="time of a step (ms)", xs=thinned(wait, _POINTS)[0])
        drawings.append(partial(draw, layers=layers, end=float(len(steps))))
    if not heights:
        return []
    usual, most = float(np.percentile(heights, _USUAL_PERCENT)), max(heights)
    top = _CLIPPED_AT * usual if most > 2 * _CLIPPED_AT * usual > 0 else 1.05 * most
    return [partial(draw, top=top) for draw in drawings]


def _stalls(run: RunFiles) -> list[Drawing]:
    """Plot the seconds stalled by cause, for each epoch."""
    layers = {
        cause: [train_pass.stalls.get(cause, 0.0) for train_pass in run.trained]
        for cause in causes_of(run.trained)
    }
    epochs = [train_pass.epoch + 1 for train_pass in run.trained]
    draw = partial(
        draw_stack, title="Stalls by cause", x_label="epoch, from its begin", y_label="waiting (s)"
    )
    return [partial(draw, xs=epochs, layers=layers, end=epochs[-1] + 1)] if layers else []


def _usage(run: RunFiles) -> list[Drawing]:
    """Plot cores in use by part, and GPUs, over time; mark the starts of epochs."""
    rows = run.usage_by_rank.get(0, [])
    times = sorted({row.at_s for row in rows})
    if len(times) < 2:  # noqa: PLR2004  # from one look to the next
        return []
    begins = [steps.begun_at_s - times[0] for (_, split), steps in run.steps.items() if split == "train"]

    def marked(draw: Drawing, axes: Any) -> None:
        draw(axes)
        for begin in begins:
            axes.axvline(begin, color="#000000", linewidth=0.8, linestyle=":", marker="")

    return [partial(marked, draw) for draw in (_cores_in_use(rows, times), *_gpus(run, times[0]))]


def _cores_in_use(rows: Sequence[UsageRow], times: Sequence[float]) -> Drawing:
    """Plot the mean cores used by each part, over intervals of at least half a second."""
    # Samples at pass borders follow others at once, so short intervals would be noisy. Each sample covers the
    # time since the previous.
    span_s = times[-1] - times[0]
    edges = np.linspace(times[0], times[-1], max(2, min(_TIMES, int(span_s / _LEAST_S)) + 1))
    passed_s = dict(zip(times[1:], np.diff(times), strict=True))
    layers = {}
    for name in GROUPS:
        known = [
            row for row in rows if row.subject == name and row.cpu_cores is not None and row.at_s in passed_s
        ]
        work = [passed_s[row.at_s] * (row.cpu_cores or 0.0) for row in known]
        used, _ = np.histogram([row.at_s for row in known], edges, weights=work)
        if known:
            layers[name] = (used / np.diff(edges)).tolist()
    draw = partial(draw_stack, title="Processor cores in use", y_label="cores", layers=layers, end=span_s)
    return partial(draw, x_label="time since the run began (s)", xs=(edges[:-1] - times[0]).tolist())


def _gpus(run: RunFiles, begin_s: float) -> list[Drawing]:
    """Plot GPU utilisation and memory in use, a line for each rank."""
    drawings: list[Drawing] = []
    for title, unit, name, factor, top in (
        ("GPU: time in which some kernel ran", "%", "gpu_percent", 1.0, _PERCENT_TOP),
        ("GPU: memory in use", "GiB", "gpu_memory_bytes", 2**-30, None),
    ):
        lines = {}
        for rank, rows in run.usage_by_rank.items():
            known = [
                (row.at_s - begin_s, getattr(row, name)) for row in rows if getattr(row, name) is not None
            ]
            places, ys = thinned([factor * value for _, value in known], _TIMES)
            if known:
                lines[f"rank {rank}"] = ([known[place][0] for place in places], ys)
        draw = partial(draw_lines, x_label="time since the run began (s)", y_label=unit, top=top)
        if lines:
            drawings.append(partial(draw, title=title, lines=lines))
    return drawings
