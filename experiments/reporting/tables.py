"""Tables of a run's passes, stalls, processors and costs, for its page and the console."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from superdl.experiments.monitoring import GROUPS
from superdl.experiments.reporting.page import Cell, Table, share, times
from superdl.super_wire.stall_causes import WAITS

if TYPE_CHECKING:
    from superdl.experiments.reporting.run_files import Pass, RunFiles

_Value = Callable[["Pass"], Cell]


def run_tables(run: RunFiles) -> dict[str, Table | None]:
    """Return all tables by name. A table is None if its data is missing."""
    bill = run.facts["bill"]
    causes = [cause for cause in WAITS if any(cause in epoch_pass.stalls for epoch_pass in run.passes)]
    meanings = [(cause, WAITS[cause].meaning, WAITS[cause].remedy(run.setup)) for cause in causes]
    heads = ("cause", "the trainer waited because", "what helps")
    return {
        "passes": passes_table(run),
        "time": _by_pass("Time of loading and computing", run.passes, _TIME),
        "stalls": _stalls(run, causes),
        "causes": Table("What the causes mean", heads, meanings) if causes else None,
        "processors": _processors(run),
        "hosts": _hosts(run),
        "bill": _bill(bill) if bill else None,
    }


def _metric(name: str, factor: float = 1) -> _Value:
    return lambda each: times(each.metrics.get(name), factor)


def _counter(name: str) -> _Value:
    return lambda each: each.job.get(name)


def _percent(part: float | None, whole: float | None) -> Cell:
    return times(share(part, whole), 100)


# A new metric of a pass needs a line in one of these mappings.
_PASSES: dict[str, _Value] = {
    "images": _metric("samples"),
    "steps": _metric("batches"),
    "time (s)": _metric("wall_s"),
    "throughput (images/s)": _metric("images_per_s"),
    "loss (mean)": _metric("loss"),
    "top-1 (% right)": _metric("accuracy", 100),
    "top-5 (% right)": _metric("top5_accuracy", 100),
    "waiting (% of time)": lambda each: _percent(each.metrics["wait_s"], each.metrics["wall_s"]),
    "first batch (s)": _metric("first_batch_s"),
    "skipped (steps, float16)": lambda each: each.metrics.get("skipped") or None,
}
_TIME: dict[str, _Value] = {
    "time (s)": _metric("wall_s"),
    "waiting (s)": _metric("wait_s"),
    "computing (s)": _metric("compute_s"),
    "reading (s, sum)": _metric("read_s"),
    "fetching (s, sum)": _counter("fetch_s"),
    "decoding (s, sum)": _counter("decode_s"),
    "writing (s, sum)": _counter("push_s"),
    "cache hits (samples)": _metric("hits"),
    "misses (samples)": _metric("misses"),
    "store reads (samples)": _metric("straight"),
    "produced (samples)": _counter("samples_produced"),
    "retried (samples)": _counter("retries"),
    "failed (samples)": _counter("samples_failed"),
}


def passes_table(run: RunFiles) -> Table | None:
    """Return a table of all passes, or None if there are no passes."""
    return _by_pass("Passes over the data", run.passes, _PASSES)


def _by_pass(caption: str, passes: Sequence[Pass], values: Mapping[str, _Value]) -> Table | None:
    """Build a table with a row for each pass, omitting empty columns. Return None if there are no passes."""
    columns = {head: [value(epoch_pass) for epoch_pass in passes] for head, value in values.items()}
    columns = {head: cells for head, cells in columns.items() if any(cell is not None for cell in cells)}
    names = [epoch_pass.name for epoch_pass in passes]
    rows: list[Sequence[Cell]] = list(zip(names, *columns.values(), strict=True))
    return Table(caption, ("pass", *columns), rows) if rows else None


def _stalls(run: RunFiles, causes: Sequence[str]) -> Table | None:
    def stalled(name: str) -> _Value:
        return lambda each: each.metrics["stalls"][name]

    def waited_for(cause: str) -> _Value:
        return lambda each: each.stalls.get(cause, 0.0)

    columns = {
        "steps": stalled("steps"),
        "stalled (steps)": stalled("stalled"),
        **{f"{cause} (s)": waited_for(cause) for cause in causes},
        "all stalls (s)": stalled("wait_s"),
        "all stalls (% of time)": lambda each: _percent(
            each.metrics["stalls"]["wait_s"], each.metrics["wall_s"]
        ),
    }
    passes = [epoch_pass for epoch_pass in run.passes if epoch_pass.metrics.get("stalls")]
    return _by_pass("Stalls by cause", passes, columns)


def _processors(run: RunFiles) -> Table | None:
    metrics = {(epoch_pass.epoch, epoch_pass.split): epoch_pass.metrics for epoch_pass in run.passes}
    rows: list[dict[str, Cell]] = []
    for phase in run.phases:
        groups, wall_s = phase["groups"], phase["wall_s"]
        of_pass = metrics.get((phase["epoch"], phase["split"]), {})
        cpu_s = sum(group["cpu_s"] for group in groups.values())
        row: dict[str, Cell] = {
            "phase": phase["split"] if phase["epoch"] is None else f"{phase['epoch'] + 1} {phase['split']}",
            "time (s)": wall_s,
            "computing (% of time)": _percent(of_pass.get("compute_s"), wall_s),
        }
        row |= {f"{name} (cores)": groups.get(name, {}).get("cpu_cores") for name in GROUPS}
        row["all (cores)"] = share(cpu_s, wall_s)
        # CPU covers rank 0, and images all ranks, so their ratio needs a single rank.
        images = of_pass.get("samples") if run.ranks == 1 else None
        row["CPU (ms/image)"] = times(share(cpu_s, images), 1000)
        row["GPU (% busy)"] = phase["gpu_percent"]
        row["GPU memory (maximum, MB)"] = times(phase["gpu_memory_bytes_max"], 1e-6)
        rows.append(row)
    heads = [head for head in (rows[0] if rows else ()) if any(row[head] is not None for row in rows)]
    table = Table("Processors in use, by phase", heads, [[row[head] for head in heads] for row in rows])
    return table if rows else None


def _hosts(run: RunFiles) -> Table | None:
    rows = [(host["host"], host["slots"], host["cpu_s"]) for host in run.facts.get("hosts") or ()]
    heads = ("worker", "slots", "CPU (s)")
    return Table("CPU of workers on other hosts, during training", heads, rows) if rows else None


def _bill(bill: dict[str, Any]) -> Table:
    priced = all(line["usd"] is not None for line in bill["lines"])
    total = {
        "name": "total" if priced else "total of known prices",
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
