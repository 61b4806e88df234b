"""Render a run's page, ``report.html``, from the run's files, even if the run was killed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import yaml

from superdl.experiments.output import write_whole
from superdl.experiments.reporting.page import (
    PAGE_NAME,
    Plot,
    draw_lines,
    facts_table,
    moment,
    plot_of,
    render,
    times,
)
from superdl.experiments.reporting.run_files import RunFiles, read_run
from superdl.experiments.reporting.run_report import findings, tiles
from superdl.experiments.reporting.tables import run_tables

if TYPE_CHECKING:
    from pathlib import Path

_MAX_POINTS = 320  # in a plot; more would not be visible
_PERCENT_TOP = 102.0  # a line at 100% stays fully visible


def write_run_page(directory: Path) -> Path:
    """Write a run's page to the run's directory, and return the page's path."""
    path = directory / PAGE_NAME
    write_whole(run_page(read_run(directory)), path)
    return path


def run_page(run: RunFiles) -> str:
    """Render a run as an HTML page."""
    facts, loader = run.facts, run.facts["spec"]["loader"]["kind"]
    environment = facts["environment"]
    summary = {
        "loader": loader,
        "functions": facts["executor"],
        "device": environment["device"],
        "ranks": run.ranks if run.ranks > 1 else None,
        "strategy": facts["strategy"] if run.ranks > 1 else None,
        "precision": facts["precision"],
        "model": facts["model"],
        "started": moment(facts["started_at"]),
    }
    settings = facts["loader_settings"]
    return render(
        "run.html",
        title=f"Run {run.name}: {run.status}",
        subtitle=", ".join(f"{what} {value}" for what, value in summary.items() if value),
        run=run,
        facts=facts,
        tiles=tiles(run),
        findings=findings(run),
        notes=facts["notes"],
        tables=run_tables(run),
        learning=_learning(run),
        of_rank_0=f" This covers rank 0 of {run.ranks}, and all that it started." if run.ranks > 1 else "",
        bill=facts["bill"],
        settings=facts_table(f"Settings of loader {loader}", settings) if settings else None,
        spec=yaml.safe_dump(facts["spec"], sort_keys=False),
        environment=environment,
    )


# ----------------------------------------------------------------------------------------------- plot


def _learning(run: RunFiles) -> Plot | None:
    losses = {"training, by step": _over_steps(run, "loss")}
    accuracies = {"training, by step": _over_steps(run, "accuracy", 100.0)}

    def validation(name: str, factor: float = 1.0) -> tuple[list[float], list[float | None]]:
        values = [times(epoch_pass.metrics[name], factor) for epoch_pass in run.validated]
        return [epoch_pass.epoch + 1 for epoch_pass in run.validated], values

    if run.validated:
        losses["validation"] = validation("loss")
        accuracies["validation, top-1"] = validation("accuracy", 100.0)
        if run.validated[-1].metrics["top5_accuracy"] is not None:
            accuracies["validation, top-5"] = validation("top5_accuracy", 100.0)
    draw = partial(draw_lines, x_label="epochs done")
    drawings = [
        partial(draw, title="Loss", y_label="loss (cross entropy, nats)", lines=losses),
        partial(draw, title="Accuracy", y_label="correct images (%)", lines=accuracies, top=_PERCENT_TOP),
    ]
    caption = "Left: loss, lower is better. Right: percentage of images classified correctly."
    return plot_of(caption, drawings if run.passes else [], columns=2)


def _over_steps(run: RunFiles, name: str, factor: float = 1.0) -> tuple[list[float], list[float | None]]:
    """Return the x and y values of a training metric's curve, thinned out to at most ``_MAX_POINTS``."""
    points = run.facts["learning"]
    points = points[:: -(-len(points) // _MAX_POINTS) or 1]
    return [point["epochs_done"] for point in points], [times(point[name], factor) for point in points]
