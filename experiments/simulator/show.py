"""Shows predictions as a table, and writes them as JSON; every row says that it was simulated."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from superdl.experiments.simulator.predict import JobPrediction, Prediction
    from superdl.experiments.simulator.spec import SimulationSpec

__all__ = ["FORMAT", "print_predictions", "to_mapping"]

FORMAT = 1

_JOBS_SHOWN = 12
_SMALL = 0.1
_WIDE = 110
_HEADINGS = {  # with what a narrow terminal can do without
    "images\n/s": True,
    "batches\n/s/job": True,
    "stall\n%": True,
    "hits\n%": True,
    "first\n(s)": True,
    "functions\nmean": True,
    "\npeak": False,
    "\ninvocations": False,
    "decoded\n/read": False,
    "$ per\nepoch": True,
    "$ per\njob": True,
    "\n$": False,
}
_JOB_HEADINGS = ("epochs", "images/s", "batches/s", "stall %", "hits %", "first (s)", "$")


def to_mapping(spec: SimulationSpec, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return all as plain values for JSON."""
    return {
        "format": FORMAT,
        "simulated": True,
        "name": spec.name,
        "spec": spec.to_mapping(),
        "rows": [prediction.to_mapping() for prediction in predictions],
    }


def print_predictions(spec: SimulationSpec, predictions: Sequence[Prediction], console: Console) -> None:
    """Print a row for each point of the sweep, and the jobs where there is one point and few of them."""
    table = Table(title=f"{spec.name}, simulated", box=SIMPLE_HEAD, padding=0)
    swept = list(predictions[0].swept)
    table.add_column("\nrow")
    shown = [console.width >= _WIDE or needed for needed in _HEADINGS.values()]
    for heading in (*(f"\n{key}" for key in swept), *itertools.compress(_HEADINGS, shown)):
        table.add_column(heading, justify="right", overflow="fold")
    for prediction in predictions:
        cells = itertools.compress(_cells(prediction), shown)
        table.add_row("simulated", *(f"{prediction.swept[key]:g}" for key in swept), *cells)
    console.print(table)
    if len(predictions) == 1:
        _print_jobs(predictions[0].jobs, console)
    for prediction in predictions:
        console.print(
            f"simulated {prediction.virtual_s:,.1f} virtual s in {prediction.simulated_in_s:.1f} s: "
            f"{prediction.events:,} events, {prediction.samples_read:,} samples read, "
            f"{prediction.samples_produced:,} produced; peak memory {prediction.memory_mib:,} MiB; "
            f"functions ${_money(prediction.usd_functions)}, GETs ${_money(prediction.usd_source)}, "
            f"trainers ${_money(prediction.usd_trainers)}, cache ${_money(prediction.usd_cache)}",
            highlight=False,
            soft_wrap=True,
        )


def _print_jobs(jobs: Sequence[JobPrediction], console: Console) -> None:
    if len(jobs) > _JOBS_SHOWN:
        slow = sorted((job for job in jobs if job.samples), key=lambda job: -job.stall_share)[:3]
        worst = ", ".join(f"{job.name} {100 * job.stall_share:.1f}%" for job in slow)
        console.print(f"{len(jobs):,} jobs (all in --json); most stalled: {worst}", highlight=False)
        return
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("job, simulated", overflow="fold")
    for heading in _JOB_HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")
    for job in jobs:
        table.add_row(
            job.name,
            f"{job.epochs:.3g}",
            f"{job.images_per_s:,.0f}",
            f"{job.batches_per_s:.3g}",
            f"{100 * job.stall_share:.1f}",
            f"{100 * job.hit_rate:.1f}",
            f"{job.first_batch_s:.2f}",
            _money(job.usd),
        )
    console.print(table)


def _cells(row: Prediction) -> tuple[str, ...]:
    return (
        f"{row.images_per_s:,.0f}",
        f"{row.batches_per_s_per_job:.3g}",
        f"{100 * row.stall_share:.1f}",
        f"{100 * row.hit_rate:.1f}",
        f"{row.first_batch_s:.2f}",
        f"{row.functions_mean:,.1f}",
        f"{row.functions_peak:,}",
        f"{row.invocations:,}",
        f"{row.samples_produced / max(row.samples_read, 1):.3f}",
        _money(row.usd_per_epoch),
        _money(row.usd_per_job),
        _money(row.usd),
    )


def _money(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= _SMALL or not usd else f"{usd:.2g}"
