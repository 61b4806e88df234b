"""Puts a prediction beside a measurement: a run by ``superdl run`` gives the speeds of its parts, of which
the simulator makes a prediction of the whole; and the whole was measured too.

Taken from the run: sizes, batches, epochs, workers, seconds of decoding, fetching, pushing and reading, and
what a step keeps the trainer. Everything else (who waits for what, and how long) is the simulator's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.reporting.run_report import REPORT_FORMAT
from superdl.experiments.simulator.spec import DatasetSpec, JobSpec
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from superdl.experiments.simulator.predict import JobPrediction, Prediction
    from superdl.experiments.simulator.spec import SimulationSpec

__all__ = ["MeasuredFigure", "beside_each_other", "print_beside", "with_measured"]

_GB = 2**30
_SPLITS = ("train", "val")


class MeasuredFigure(NamedTuple):
    """One figure, measured and simulated."""

    name: str
    measured: float
    simulated: float

    @property
    def ratio(self) -> float | None:
        """Simulated over measured; ``None`` where nothing was measured."""
        return self.simulated / self.measured if self.measured else None


def with_measured(spec: SimulationSpec, path: Path) -> tuple[dict[str, Any], SimulationSpec]:
    """Read the report of a run, and give ``spec`` its data, jobs and speeds.

    Args:
        spec: what else is simulated (the overhead of a request, the cache, prices) is kept.
        path: the run's directory, or its report.json.

    Returns:
        The report, and the spec with what was measured.

    Raises:
        ConfigError: it is no report of a run that has finished with SUPER's loader.
    """
    report = _report(path / "report.json" if path.is_dir() else path)
    loader = report["spec"]["loader"]
    datasets, jobs = [], []
    for split in _SPLITS:
        passes = _passes(report, split)
        if not passes:
            continue
        batches, samples = _total(passes, "batches"), passes[0]["samples"]
        record_bytes = round(_total(passes, "size_bytes") / _total(passes, "samples"))
        read_s = _total(passes, "read_s") / batches
        batch_bytes = min(loader["batch_size"], samples) * record_bytes
        datasets.append(DatasetSpec(name=split, samples=samples, record_bytes=record_bytes, source_bytes=0))
        jobs.append(
            JobSpec(
                name=split,
                dataset=split,
                batch_size=loader["batch_size"],
                step_s=(_total(passes, "wall_s") - _total(passes, "wait_s")) / batches,
                epochs=len(passes),
                shuffle=split == "train",
                workers=max(1, loader["num_workers"]),
                read_gb_per_s=batch_bytes / max(read_s, 1e-9) / _GB,
                handover_s=next((job.handover_s for job in spec.jobs if job.name == split), 0.0),
                follows=None if split == "train" else "train",
            )
        )
    counted = [one["job"] for split in _SPLITS for one in _passes(report, split)]
    produced = max(1, sum(one["samples_produced"] for one in counted))
    functions = replace(
        spec.functions,
        kind="pool",
        concurrency=max(1, (report["environment"].get("usable_cpus") or 1) - 1),
        fetch_parallel=1,
        **{name: sum(one[name] for one in counted) / produced for name in ("fetch_s", "decode_s", "push_s")},
    )
    return report, replace(
        spec, minutes=None, datasets=tuple(datasets), jobs=tuple(jobs), functions=functions
    )


def beside_each_other(report: Mapping[str, Any], prediction: Prediction) -> list[MeasuredFigure]:
    """What was measured, beside what is predicted."""
    jobs = {job.name: job for job in prediction.jobs}
    return [
        figure
        for split in _SPLITS
        if split in jobs
        for figure in _figures_of_split(split, _passes(report, split), jobs[split])
    ]


def print_beside(run: str, figures: Sequence[MeasuredFigure], console: Console) -> None:
    """Print a row for each figure."""
    table = Table(title=f"{run}, measured and simulated", box=SIMPLE_HEAD, padding=0)
    table.add_column("figure", overflow="fold")
    for heading in ("measured", "simulated", "ratio"):
        table.add_column(heading, justify="right", overflow="fold")
    for figure in figures:
        ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(figure.name, f"{figure.measured:,.4g}", f"{figure.simulated:,.4g}", ratio)
    console.print(table)


def _figures_of_split(
    split: str, measured: Sequence[Mapping[str, Any]], job: JobPrediction
) -> list[MeasuredFigure]:
    walls_s = _total(measured, "wall_s"), sum(one.wall_s for one in job.passes)
    waits_s = _total(measured, "wait_s"), sum(one.wait_s for one in job.passes)
    hits = _total(measured, "hits"), sum(one.hits for one in job.passes)
    samples = _total(measured, "samples"), job.samples

    def share(parts: tuple[float, float], wholes: tuple[float, float]) -> tuple[float, float]:
        return parts[0] / max(wholes[0], 1e-9), parts[1] / max(wholes[1], 1e-9)

    figures = {
        "images/s": share(samples, walls_s),
        "time in passes (s)": walls_s,
        "waiting (s)": waits_s,
        "stall share": share(waits_s, walls_s),
        "first batch (s)": (measured[0]["first_batch_s"], job.first_batch_s),
        "waiting after the first epoch (s)": (
            waits_s[0] - measured[0]["wait_s"],
            waits_s[1] - job.passes[0].wait_s,
        ),
        "hit rate": share(hits, samples),
        "invocations": (sum(one["job"]["invocations"] for one in measured), job.invocations),
    }
    return [MeasuredFigure(f"{split}: {name}", *figure) for name, figure in figures.items()]


def _passes(report: Mapping[str, Any], split: str) -> list[dict[str, Any]]:
    return [epoch[split] for epoch in report["epochs"] if epoch.get(split)]


def _total(passes: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(one[name] for one in passes))


def _report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the report {path}: {error}; name a directory of superdl run"
        ) from error
    known = range(1, REPORT_FORMAT + 1)  # each has what those before it had
    if not isinstance(report, dict) or report.get("format") not in known or "epochs" not in report:
        raise ConfigError(f"{path} is no report of superdl run in format 1 to {REPORT_FORMAT}")
    if report.get("status") != "finished" or not report["epochs"]:
        raise ConfigError(f"{path} is of a run that has not finished ({report.get('status')}); take another")
    if report["spec"]["loader"]["kind"] != "super":
        raise ConfigError(f"{path} is of a run with another loader ({report['spec']['loader']['kind']})")
    if any(one["job"] is None for split in _SPLITS for one in _passes(report, split)):
        raise ConfigError(
            f"{path} lacks counters of functions, since the coordinator did not tell; take another"
        )
    return report
