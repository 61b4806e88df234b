"""The page of a run, ``report.html``, made from its files at any time, even for a killed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.experiments.monitoring import GROUPS
from superdl.experiments.output import write_whole
from superdl.experiments.reporting.page import (
    PAGE_NAME,
    Cell,
    Plot,
    Table,
    draw_lines,
    facts_table,
    plot_of,
    render,
    share,
    times,
)
from superdl.experiments.reporting.run_files import Pass, RunFiles, read_run
from superdl.experiments.reporting.run_report import findings, tiles
from superdl.super_wire.waits import WAITS

if TYPE_CHECKING:
    from pathlib import Path

_ROWS_MOST = 40
_POINTS = 320  # of a plot, at most; more would not be visible
_PERCENT_TOP = 102.0  # leaves room above 100%, so that a line there is fully visible
_Value = Callable[[Pass], Cell]


def write_run_page(directory: Path) -> Path:
    """Write the page of a run into its directory and return its path."""
    path = directory / PAGE_NAME
    write_whole(run_page(read_run(directory)), path)
    return path


def run_page(run: RunFiles) -> str:
    """Return the page of a run as HTML."""
    facts, loader = run.facts, (run.spec.get("loader") or {}).get("kind", "")
    environment = facts.get("environment") or {}
    summary = {
        "loader": loader,
        "functions": facts.get("executor"),
        "device": environment.get("device"),
        "ranks": run.ranks if run.ranks > 1 else None,
        "strategy": facts.get("strategy") if run.ranks > 1 else None,
        "precision": facts.get("precision"),
        "model": facts.get("model"),
        "begun": facts.get("started_at"),
    }
    settings = facts.get("loader_settings") or {}
    return render(
        "run.html",
        title=f"Run {run.name}: {run.status}",
        subtitle=", ".join(f"{what} {value}" for what, value in summary.items() if value),
        run=run,
        facts=facts,
        tiles=tiles(run),
        findings=findings(run),
        notes=(*facts.get("notes", ()), *run.troubles),
        tables=run_tables(run),
        learning=_learning(run),
        of_rank_0=f" This is rank 0 of {run.ranks} ranks, with all that it started." if run.ranks > 1 else "",
        bill=facts.get("bill"),
        settings=facts_table(f"Settings of loader {loader}", settings) if settings else None,
        spec_lines="\n".join(_leaves(run.spec)),
        environment=environment,
        hardware=environment.get("hardware") or {},
    )


def _leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield each value of a spec as ``dotted.key=value``, skipping empty sections."""
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={'null' if value is None else value}"


# --------------------------------------------------------------------------------------------- tables


def run_tables(run: RunFiles) -> dict[str, Table | None]:
    """Return all tables by name, or None for those whose data is missing from the files."""
    bill = run.facts.get("bill")
    causes = [cause for cause in WAITS if any(cause in epoch_pass.stalls for epoch_pass in run.passes)]
    meanings = [(cause, WAITS[cause].meaning, WAITS[cause].remedy) for cause in causes]
    heads = ("cause", "the trainer waited because", "what helps")
    return {
        "passes": _by_pass("Passes over the data", run.passes, _PASSES),
        "time": _by_pass("Time of loading and computing", run.passes, _TIME),
        "stalls": _stalls(run, causes),
        "causes": Table("What the causes mean", heads, meanings) if causes else None,
        "processors": _processors(run),
        "hosts": _hosts(run),
        "bill": _bill(bill) if bill else None,
    }


def _figure(name: str, factor: float = 1) -> _Value:
    return lambda one: times(one.figures.get(name), factor)


def _counter(name: str) -> _Value:
    return lambda one: one.job.get(name)


def _percent(part: float | None, whole: float | None) -> Cell:
    return times(share(part, whole), 100)


# A new figure of a pass needs one line in one of these mappings.
_PASSES: dict[str, _Value] = {
    "images": _figure("samples"),
    "steps": _figure("batches"),
    "time (s)": _figure("wall_s"),
    "throughput (images/s)": _figure("images_per_s"),
    "loss (mean)": _figure("loss"),
    "top-1 (% right)": _figure("accuracy", 100),
    "top-5 (% right)": _figure("top5_accuracy", 100),
    "waiting (% of time)": lambda one: _percent(one.figures["wait_s"], one.figures["wall_s"]),
    "first batch (s)": _figure("first_batch_s"),
    "skipped (steps, float16)": lambda one: one.figures.get("skipped") or None,
}
_TIME: dict[str, _Value] = {
    "time (s)": _figure("wall_s"),
    "waiting (s)": _figure("wait_s"),
    "computing (s)": _figure("compute_s"),
    "reading (s, sum)": _figure("read_s"),
    "fetching (s, sum)": _counter("fetch_s"),
    "decoding (s, sum)": _counter("decode_s"),
    "writing (s, sum)": _counter("push_s"),
    "cache hits (samples)": _figure("hits"),
    "misses (samples)": _figure("misses"),
    "store reads (samples)": _figure("straight"),
    "produced (samples)": _counter("samples_produced"),
    "retried (samples)": _counter("retries"),
    "failed (samples)": _counter("samples_failed"),
}


def _by_pass(caption: str, passes: Sequence[Pass], values: Mapping[str, _Value]) -> Table | None:
    """Build a table with a row for each pass, without empty columns."""
    columns = {head: [value(epoch_pass) for epoch_pass in passes] for head, value in values.items()}
    columns = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
    names = [epoch_pass.name for epoch_pass in passes]
    rows: list[Sequence[Cell]] = list(zip(names, *columns.values(), strict=True))
    if len(rows) > _ROWS_MOST:
        # Only the first and the last half are shown.
        half = _ROWS_MOST // 2
        rows[half:-half] = [(f"{len(rows) - _ROWS_MOST} more", *[""] * len(columns))]
    return Table(caption, ("pass", *columns), rows) if rows else None


def _stalls(run: RunFiles, causes: Sequence[str]) -> Table | None:
    def stalled(name: str) -> _Value:
        return lambda one: one.figures["stalls"][name]

    def waited_for(cause: str) -> _Value:
        return lambda one: one.stalls.get(cause, 0.0)

    def limited_by_computing(one: Pass) -> Cell:
        steps = one.figures["stalls"]["steps"]
        return _percent(steps - one.figures["stalls"]["stalled"], steps)

    columns = {
        "steps": stalled("steps"),
        "stalled (steps)": stalled("stalled"),
        "limited by computing (% of steps)": limited_by_computing,
        **{f"{cause} (s)": waited_for(cause) for cause in causes},
        "all stalls (s)": stalled("wait_s"),
        "all stalls (% of time)": lambda one: _percent(
            one.figures["stalls"]["wait_s"], one.figures["wall_s"]
        ),
    }
    passes = [epoch_pass for epoch_pass in run.passes if epoch_pass.figures.get("stalls")]
    return _by_pass("Stalls by cause", passes, columns)


def _processors(run: RunFiles) -> Table | None:
    figures = {(epoch_pass.epoch, epoch_pass.split): epoch_pass.figures for epoch_pass in run.passes}
    rows: list[dict[str, Cell]] = []
    for phase in run.phases:
        groups, wall_s = phase["groups"], phase["wall_s"]
        of_pass = figures.get((phase["epoch"], phase["split"]), {})
        cpu_s = sum(group["cpu_s"] for group in groups.values())
        memory = [group["pss_bytes_max"] for group in groups.values()]
        row: dict[str, Cell] = {
            "phase": phase["split"] if phase["epoch"] is None else f"{phase['epoch'] + 1} {phase['split']}",
            "time (s)": wall_s,
            "computing (% of time)": _percent(of_pass.get("compute_s"), wall_s),
        }
        row |= {f"{name} (cores)": groups.get(name, {}).get("cpu_cores") for name in GROUPS}
        row["all (cores)"] = share(cpu_s, wall_s)
        # With several ranks, CPU covers rank 0 only but images cover all ranks.
        images = of_pass.get("samples") if run.ranks == 1 else None
        row["CPU (ms/image)"] = times(share(cpu_s, images), 1000)
        row["memory at its borders (MB)"] = None if None in memory else sum(memory) / 1e6
        row["GPU (% busy)"] = phase["gpu_percent"]
        row["GPU memory (most, MB)"] = times(phase["gpu_memory_bytes_max"], 1e-6)
        rows.append(row)
    heads = [head for head in (rows[0] if rows else ()) if any(row[head] is not None for row in rows)]
    table = Table("Processors in use, by phase", heads, [[row[head] for head in heads] for row in rows])
    return table if rows else None


def _hosts(run: RunFiles) -> Table | None:
    heads = ("worker", "slots", "CPU (% of slots)", "CPU (s)")
    rows = [
        (host["host"], host["slots"], _percent(host["cpu_cores"], host["slots"]), host["cpu_s"])
        for host in run.facts.get("hosts") or ()
        if "slots" in host
    ]
    return Table("CPU of workers during training", heads, rows) if rows else None


def _bill(bill: dict[str, Any]) -> Table:
    priced = all(line["usd"] is not None for line in bill["lines"])
    total = {
        "name": "total" if priced else "everything with a known price",
        "usd": bill["usd"],
        "by_epoch": [epoch["usd"] for epoch in bill["epochs"]],
    }
    rows: list[Sequence[Cell]] = []
    for line in [*bill["lines"], total]:
        first, later = line["by_epoch"][:1], line["by_epoch"][1:]
        means = (fmean(costs) if costs else None for costs in (first, later))
        rows.append((line["name"], line["usd"], *means, line.get("how", "")))
    heads = ("what", "the run (USD)", "first epoch (USD)", "later epochs (USD, mean)", "how")
    return Table("The bill", heads, rows, total=True)


# ----------------------------------------------------------------------------------------------- plot


def _learning(run: RunFiles) -> Plot | None:
    losses = {"training, by step": _over_steps(run, "loss")}
    accuracies = {"training, by step": _over_steps(run, "accuracy", 100.0)}
    validated = [epoch_pass for epoch_pass in run.passes if epoch_pass.split == "val"]

    def validation(name: str, factor: float = 1.0) -> tuple[list[float], list[float | None]]:
        values = [times(epoch_pass.figures.get(name), factor) for epoch_pass in validated]
        return [epoch_pass.epoch + 1 for epoch_pass in validated], values

    if validated:
        losses["validation"] = validation("loss")
        accuracies["validation, top-1"] = validation("accuracy", 100.0)
        if validated[-1].figures.get("top5_accuracy") is not None:
            accuracies["validation, top-5"] = validation("top5_accuracy", 100.0)
    draw = partial(draw_lines, x_label="epochs done")
    drawings = [
        partial(draw, title="Loss", y_label="loss (cross entropy, nats)", lines=losses),
        partial(draw, title="Accuracy", y_label="correct images (%)", lines=accuracies, top=_PERCENT_TOP),
    ]
    caption = "Left: loss, lower is better. Right: percentage of images that the model classifies correctly."
    return plot_of(caption, drawings if run.passes else [], columns=2)


def _over_steps(run: RunFiles, name: str, factor: float = 1.0) -> tuple[list[float], list[float | None]]:
    """Return a column of the training steps over epochs done, averaged where there are many."""
    xs: list[float] = []
    ys: list[float | None] = []
    most = max(10, _POINTS // max(1, len(run.trained)))
    for epoch, steps in sorted(run.learning.items()):
        values = np.asarray(getattr(steps, name))
        starts = np.arange(0, len(values), -(-len(values) // most))
        means = np.add.reduceat(values, starts) / np.diff([*starts, len(values)])
        xs += [epoch + (start + 1) / len(values) for start in starts.tolist()]
        ys += [None if isnan(mean) else factor * mean for mean in means.tolist()]
    return xs, ys
