"""Puts a prediction beside a measurement: a run by ``superdl run`` gives the speeds of its parts, of which
the simulator makes a prediction of the whole; and the whole was measured too.

Taken from the run: sizes, batches, epochs, workers, seconds of decoding, fetching, pushing and reading, and
what a step keeps the trainer. Everything else (who waits for what, and how long) is the simulator's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.experiments.simulator.predict import print_rows
from superdl.experiments.simulator.spec import DatasetSpec, JobSpec
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from superdl.experiments.simulator.predict import JobPrediction, Prediction
    from superdl.experiments.simulator.spec import SimulationSpec

__all__ = ["beside_each_other", "print_beside", "with_measured"]

_GB = 2**30
_SPLITS = ("train", "val")
_SECONDS = ("fetch_s", "decode_s", "push_s")
_FORMATS = (1, 2)
"""Of reports; each has what those before it had."""


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
    measured = {split: passes for split in _SPLITS if (passes := _passes(report, split))}
    datasets, jobs = [], []
    for split, passes in measured.items():
        batches, samples = _total(passes, "batches"), passes[0]["samples"]
        record_bytes = round(_total(passes, "size_bytes") / _total(passes, "samples"))
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
                read_gb_per_s=batch_bytes / max(_total(passes, "read_s") / batches, 1e-9) / _GB,
                handover_s=next((job.handover_s for job in spec.jobs if job.name == split), 0.0),
                follows=None if split == "train" else "train",
            )
        )
    counted = [one["job"] for passes in measured.values() for one in passes]
    produced = max(1.0, _total(counted, "samples_produced"))
    each_s: dict[str, Any] = {name: _total(counted, name) / produced for name in _SECONDS}
    functions = replace(
        spec.functions,
        kind="pool",
        concurrency=max(1, (report["environment"].get("usable_cpus") or 1) - 1),
        fetch_parallel=1,
        **each_s,
    )
    return report, replace(
        spec, minutes=None, datasets=tuple(datasets), jobs=tuple(jobs), functions=functions
    )


def beside_each_other(report: Mapping[str, Any], prediction: Prediction) -> list[dict[str, Any]]:
    """What was measured, beside what is predicted; ``ratio`` is None where nothing was measured."""
    figures = []
    for job in prediction.jobs:
        passes = _passes(report, job.name)
        measured, simulated = _figures(passes), _figures(_plain_passes(job))
        measured["invocations"] = sum(one["job"]["invocations"] for one in passes)
        simulated["invocations"] = job.invocations
        for name, value in measured.items():
            ratio = simulated[name] / value if value else None
            pair = {"measured": value, "simulated": simulated[name], "ratio": ratio}
            figures.append({"name": f"{job.name}: {name}", **pair})
    return figures


def print_beside(run: str, figures: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print a row for each figure."""
    rows = [
        {
            "figure": figure["name"],
            "measured": f"{figure['measured']:,.4g}",
            "simulated": f"{figure['simulated']:,.4g}",
            "ratio": "-" if figure["ratio"] is None else f"{figure['ratio']:.2f}",
        }
        for figure in figures
    ]
    print_rows(f"{run}, measured and simulated", rows, console)


def _plain_passes(job: JobPrediction) -> list[dict[str, float]]:
    names = ("samples", "hits", "wall_s", "wait_s", "first_batch_s")
    return [{name: getattr(one, name) for name in names} for one in job.passes]


def _figures(passes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What the passes over one split come to, measured or simulated."""
    wall_s, wait_s, samples = (max(_total(passes, name), 1e-9) for name in ("wall_s", "wait_s", "samples"))
    return {
        "images/s": samples / wall_s,
        "time in passes (s)": wall_s,
        "waiting (s)": wait_s,
        "stall share": wait_s / wall_s,
        "first batch (s)": passes[0]["first_batch_s"],
        "waiting after the first epoch (s)": _total(passes[1:], "wait_s"),
        "hit rate": _total(passes, "hits") / samples,
    }


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
    if not isinstance(report, dict) or report.get("format") not in _FORMATS or "epochs" not in report:
        raise ConfigError(f"{path} is no report of superdl run in format {' or '.join(map(str, _FORMATS))}")
    if report.get("status") != "finished" or not report["epochs"]:
        raise ConfigError(f"{path} is of a run that has not finished ({report.get('status')}); take another")
    if report["spec"]["loader"]["kind"] != "super":
        raise ConfigError(f"{path} is of a run with another loader ({report['spec']['loader']['kind']})")
    if any(one["job"] is None for split in _SPLITS for one in _passes(report, split)):
        raise ConfigError(
            f"{path} lacks counters of functions, since the coordinator did not tell; take another"
        )
    return report
