"""The tables of a run's page, each from the run's files alone.

A table by pass is a list of columns: a further figure of a pass is one more line in one of these lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.page import Column, Table, table_of
from superdl.experiments.reporting.quantities import ABSENT, aligned, count, number, share, size
from superdl.experiments.reporting.run_findings import STALL_CAUSES, stalls_of, step_times_by_epoch

if TYPE_CHECKING:
    from superdl.experiments.reporting.run_files import Pass, RunFiles

__all__ = ["GROUPS", "run_tables"]

GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "supervisor", "other")
"""The parts of a run, in the order in which tables and plots have them."""

_Value = float | None
_Cells = Sequence[str]


def run_tables(run: RunFiles) -> dict[str, Table | None]:
    """All tables by name; None where the files do not tell."""
    bill = run.known.get("bill")
    return {
        "passes": _by_pass("Passes over the data", run.passes, _PASSES),
        "time": _by_pass("Time of loading and computing", run.passes, _TIME),
        "step_times": _step_times(run),
        "status": _by_pass(
            "Status checks", [one for one in run.passes if one.job.get("status_calls")], _STATUS
        ),
        "stalls": _stalls(run),
        "causes": _causes(run),
        "processors": _processors(run),
        "gpus": _gpus(run),
        "bill": _bill(bill) if bill else None,
        "epoch_costs": _epoch_costs(bill) if bill and bill["epochs"] and bill["usd"] else None,
    }


def _counts(values: Iterable[_Value]) -> _Cells:
    return [count(value) for value in values]


def _percents(values: Iterable[_Value]) -> _Cells:
    return aligned([None if value is None else 100 * value for value in values])


def _milliseconds(values: Iterable[_Value]) -> _Cells:
    return aligned([None if value is None else 1000 * value for value in values])


def _cores(values: Sequence[_Value]) -> _Cells:
    return aligned(values, 2)


class _OfPass(NamedTuple):
    """A column of a table by pass: how cells are written, and the value of a pass.

    ``optional``: it is left out where no pass has a value.
    """

    name: str
    unit: str
    written: Callable[[Sequence[_Value]], _Cells]
    value: Callable[[Pass], _Value]
    optional: bool = False


def _figure(name: str) -> Callable[[Pass], _Value]:
    return lambda one: one.figures.get(name)


def _counter(name: str) -> Callable[[Pass], _Value]:
    return lambda one: one.job.get(name)


_PASSES = (
    _OfPass("images", "", _counts, _figure("samples")),
    _OfPass("steps", "", _counts, _figure("batches")),
    _OfPass("time", "s", aligned, _figure("wall_s")),
    _OfPass("throughput", "images/s", aligned, _figure("images_per_s")),
    _OfPass("loss", "mean", aligned, _figure("loss")),
    _OfPass("top-1", "% right", _percents, _figure("accuracy")),
    _OfPass("top-5", "% right", _percents, _figure("top5_accuracy"), optional=True),
    _OfPass("waiting", "% of time", _percents, lambda one: one.wait_share),
    _OfPass("first batch", "s", aligned, _figure("first_batch_s")),
)
"""How each pass went."""
_TIME = (
    _OfPass("time", "s", aligned, _figure("wall_s")),
    _OfPass("waiting", "s", aligned, _figure("wait_s")),
    _OfPass("computing", "s", aligned, _figure("compute_s")),
    _OfPass("reading", "s, sum", aligned, _figure("read_s")),
    _OfPass("fetching", "s, sum", aligned, _counter("fetch_s")),
    _OfPass("decoding", "s, sum", aligned, _counter("decode_s")),
    _OfPass("writing", "s, sum", aligned, _counter("push_s")),
    _OfPass("found", "samples", _counts, _figure("hits")),
    _OfPass("missed", "samples", _counts, _figure("misses")),
    _OfPass("produced", "samples", _counts, _counter("samples_produced")),
    _OfPass("retried", "samples", _counts, _counter("retries")),
    _OfPass("failed", "samples", _counts, _counter("samples_failed")),
)
"""Where the time of loading went, and what was done."""
_STATUS = (
    _OfPass("calls", "", _counts, _counter("status_calls")),
    _OfPass("in the background", "ms", _milliseconds, _counter("status_s")),
    _OfPass("thereof CPU", "ms", _milliseconds, _counter("status_cpu_s")),
    _OfPass(
        "each call", "ms", _milliseconds, lambda one: share(one.job.get("status_s"), one.job["status_calls"])
    ),
    _OfPass("trainer waited", "ms", _milliseconds, _counter("status_wait_s")),
    _OfPass(
        "trainer waited",
        "% of time",
        _percents,
        lambda one: share(one.job.get("status_wait_s"), one.figures["wall_s"]),
    ),
)
"""What asking the coordinator for the plan has cost."""


def _by_pass(caption: str, passes: Sequence[Pass], columns: Iterable[_OfPass]) -> Table | None:
    """A table with a row for each pass; None where there is none."""
    if not passes:
        return None
    shown = [(Column("pass", words=True), [one.name for one in passes])]
    for column in columns:
        values = [column.value(one) for one in passes]
        if not column.optional or any(value is not None for value in values):
            shown.append((Column(column.name, column.unit), list(column.written(values))))
    return table_of(caption, shown)


def _stalls(run: RunFiles) -> Table | None:
    """Why the trainer waited, by pass, with a column for each cause that there was."""
    told = [one for one in run.passes if one.figures.get("stalls")]
    there = {cause for one in told for cause in stalls_of(one)}
    causes = [cause for cause in STALL_CAUSES if cause in there] + sorted(there - STALL_CAUSES.keys())

    def of_stalls(name: str) -> Callable[[Pass], _Value]:
        return lambda one: one.figures["stalls"][name]

    def waited_for(cause: str) -> Callable[[Pass], _Value]:
        return lambda one: stalls_of(one).get(cause, 0.0)

    def bound_by_computing(one: Pass) -> _Value:
        stalls = one.figures["stalls"]
        return share(stalls["steps"] - stalls["stalled"], stalls["steps"])

    def share_of_time(one: Pass) -> _Value:
        return share(one.figures["stalls"]["wait_s"], one.figures["wall_s"])

    columns = (
        _OfPass("steps", "", _counts, of_stalls("steps")),
        _OfPass("stalled", "steps", _counts, of_stalls("stalled")),
        _OfPass("bound by computing", "% of steps", _percents, bound_by_computing),
        *(_OfPass(cause.replace("_", " "), "s", aligned, waited_for(cause)) for cause in causes),
        _OfPass("all stalls", "s", aligned, of_stalls("wait_s")),
        _OfPass("all stalls", "% of time", _percents, share_of_time),
    )
    return _by_pass("Stalls by cause", told, columns)


def _causes(run: RunFiles) -> Table | None:
    """What the causes that there were mean."""
    there = {cause for one in run.passes for cause in stalls_of(one)}
    named = [(name, cause) for name, cause in STALL_CAUSES.items() if name in there]
    if not there:
        return None
    columns = ("cause", "the trainer waited since", "what helps")
    rows = tuple((name.replace("_", " "), cause.meaning, cause.remedy) for name, cause in named)
    return Table("What the causes mean", tuple(Column(name, words=True) for name in columns), rows)


def _step_times(run: RunFiles) -> Table | None:
    """Mean step times as they were printed."""
    by_epoch = step_times_by_epoch(run)
    steps = sorted({step for times in by_epoch.values() for step in times})
    if not steps:
        return None
    of_epochs = [
        (Column(f"epoch {epoch + 1}", "ms"), _milliseconds([times.get(step) for step in steps]))
        for epoch, times in by_epoch.items()
    ]
    return table_of("Mean step times", [(Column("up to step", words=True), _counts(steps)), *of_epochs])


def _processors(run: RunFiles) -> Table | None:
    """What each phase used of processors, memory and the GPU."""
    phases: list[dict[str, Any]] = (run.known.get("utilization") or {}).get("phases") or []
    if not phases:
        return None
    of_pass = {(one.epoch, one.split): one.figures for one in run.passes}
    passes = [of_pass.get((phase["epoch"], phase["split"]), {}) for phase in phases]
    walls = [phase["wall_s"] for phase in phases]
    cpu_s = [sum(group["cpu_s"] for group in phase["groups"].values()) for phase in phases]
    computing = [share(one.get("compute_s"), wall_s) for one, wall_s in zip(passes, walls, strict=True)]
    columns = [
        (Column("phase", words=True), [_phase_name(phase) for phase in phases]),
        (Column("time", "s"), aligned(walls)),
        (Column("computing", "% of time"), _percents(computing)),
    ]
    for name in GROUPS:
        if any(name in phase["groups"] for phase in phases):
            used = [phase["groups"].get(name, {}).get("cpu_cores") for phase in phases]
            columns.append((Column(name, "cores"), _cores(used)))
    together = [share(used, wall_s) for used, wall_s in zip(cpu_s, walls, strict=True)]
    columns.append((Column("all", "cores"), _cores(together)))
    if run.ranks == 1:  # else the CPU is rank 0's, and the images are of all ranks
        each = [share(used, one.get("samples")) for used, one in zip(cpu_s, passes, strict=True)]
        columns.append((Column("CPU", "ms/image"), _milliseconds(each)))
    columns.append((Column("memory", "most"), [_memory(phase) for phase in phases]))
    if any(phase["gpu_percent"] is not None or phase["gpu_memory_bytes_max"] for phase in phases):
        columns += [
            (Column("GPU", "% busy"), aligned([phase["gpu_percent"] for phase in phases])),
            (Column("GPU memory", "most"), [size(phase["gpu_memory_bytes_max"]) for phase in phases]),
        ]
    return table_of("Processors in use, by phase", columns)


def _phase_name(phase: dict[str, Any]) -> str:
    return str(phase["split"]) if phase["epoch"] is None else f"{phase['epoch'] + 1} {phase['split']}"


def _memory(phase: dict[str, Any]) -> str:
    """The parts' highest shares of memory, added up; absent where that of a part was not read."""
    pss = [group["pss_bytes_max"] for group in phase["groups"].values()]
    return ABSENT if None in pss else size(sum(pss))


def _gpus(run: RunFiles) -> Table | None:
    """What the GPU of each rank did, from the first training step on."""
    begun_s = min((steps.begun_at_s for steps in run.steps.values()), default=0.0)
    rows = []
    for rank, samples in run.usage_by_rank.items():
        told = [one for one in samples if one.subject == "gpu" and one.at_s >= begun_s]
        if told:
            busy = _mean([one.gpu_percent for one in told if one.gpu_percent is not None])
            used = max(one.gpu_memory_bytes or 0 for one in told)
            rows.append((str(rank), len(told), busy, size(used), size(told[-1].gpu_memory_total_bytes)))
    if not rows:
        return None
    ranks, looks, busy_shares, most, in_all = zip(*rows, strict=True)
    return table_of(
        "GPUs while training, by rank",
        [
            (Column("rank", words=True), ranks),
            (Column("looked at", "times"), _counts(looks)),
            (Column("busy", "% of time, mean"), aligned(busy_shares)),
            (Column("memory used", "most"), most),
            (Column("memory", "in all"), in_all),
        ],
    )


def _bill(bill: dict[str, Any]) -> Table:
    """What was paid for what."""
    lines, epochs = bill["lines"], [one["usd"] for one in bill["epochs"]]
    total = "what has a price here" if any(line["usd"] is None for line in lines) else "all of it"
    dollars = [
        (Column("the run", "USD"), [*(line["usd"] for line in lines), bill["usd"]]),
    ]
    if epochs:
        firsts = [line["by_epoch"][0] if line["by_epoch"] else None for line in lines]
        dollars.append((Column("first epoch", "USD"), [*firsts, epochs[0]]))
    if len(epochs) > 1:
        later = [_mean(line["by_epoch"][1:]) for line in lines]
        dollars.append((Column("an epoch after it", "USD, mean"), [*later, _mean(epochs[1:])]))
    return table_of(
        "The bill",
        [
            (Column("what", words=True), [*(line["name"] for line in lines), total]),
            *((column, [number(value) for value in values]) for column, values in dollars),
            (Column("how", words=True), [*(line["how"] for line in lines), ""]),
        ],
        total=True,
    )


def _epoch_costs(bill: dict[str, Any]) -> Table:
    """What each epoch cost, and a million images at its price."""
    epochs = [*bill["epochs"], bill]
    return table_of(
        "Cost by epoch, validation with it",
        [
            (Column("epoch", words=True), [*(str(one["epoch"] + 1) for one in bill["epochs"]), "the run"]),
            (Column("cost", "USD"), aligned([one["usd"] for one in epochs])),
            (
                Column("a million training images", "USD"),
                aligned([one["usd_per_million_images"] for one in epochs]),
            ),
        ],
        total=True,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
