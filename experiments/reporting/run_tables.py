"""The tables of a run's page, each from the run's files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.page import Column, Table, table_of
from superdl.experiments.reporting.quantities import ABSENT, aligned, count, number, share, size
from superdl.experiments.reporting.run_words import STALL_CAUSES, stalls_of, step_times_by_epoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles

__all__ = [
    "bill_table",
    "causes_table",
    "data_time_table",
    "epoch_cost_table",
    "gpus_table",
    "passes_table",
    "processors_table",
    "stalls_table",
    "status_table",
    "step_times_table",
]

_GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "supervisor", "other")
_ROWS = 40
"""A table has so many rows at most; report.json has all."""

_Cells = tuple[Column, "Sequence[str]"]


def _abridged(caption: str, columns: Sequence[_Cells], *, total: bool = False) -> Table:
    """A table of which the middle is left out where it has very many rows."""
    table = table_of(caption, columns, total=total)
    if len(table.rows) <= _ROWS:
        return table
    half = _ROWS // 2
    gap = (f"{len(table.rows) - 2 * half} more", *([""] * (len(table.columns) - 1)))
    return Table(caption, table.columns, (*table.rows[:half], gap, *table.rows[-half:]), total)


def _names(passes: Iterable[Pass]) -> _Cells:
    return Column("pass", words=True), [one.name for one in passes]


def _scaled(factor: float, values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else factor * value for value in values]


def _percents(name: str, unit: str, shares: Iterable[float | None]) -> _Cells:
    return Column(name, unit), aligned(_scaled(100.0, shares))


def _ms(name: str, values: Iterable[float | None], unit: str = "ms") -> _Cells:
    return Column(name, unit), aligned(_scaled(1000.0, values))


def _counts(name: str, values: Iterable[float | None], unit: str = "") -> _Cells:
    return Column(name, unit), [count(value) for value in values]


def passes_table(run: RunFiles) -> Table:
    """How each pass went."""
    passes = run.passes

    def of(name: str) -> list[float | None]:
        return [one.figures.get(name) for one in passes]

    top5 = of("top5_accuracy")
    return _abridged(
        "Passes over the data",
        [
            _names(passes),
            _counts("images", of("samples")),
            _counts("steps", of("batches")),
            (Column("time", "s"), aligned(of("wall_s"))),
            (Column("throughput", "images/s"), aligned(of("images_per_s"))),
            (Column("loss", "mean"), aligned(of("loss"))),
            _percents("top-1", "% right", of("accuracy")),
            *([_percents("top-5", "% right", top5)] if any(value is not None for value in top5) else []),
            _percents("waiting", "% of time", [one.wait_share for one in passes]),
            (Column("first batch", "s"), aligned(of("first_batch_s"))),
        ],
    )


def data_time_table(run: RunFiles) -> Table:
    """Where the time of loading went, and what was done."""
    passes = run.passes

    def of(name: str) -> tuple[str, ...]:
        return aligned([one.figures.get(name) for one in passes])

    def of_job(name: str) -> tuple[str, ...]:
        return aligned([one.job.get(name) for one in passes])

    def samples(name: str, values: Iterable[float | None]) -> _Cells:
        return _counts(name, values, "samples")

    return _abridged(
        "Time of loading and computing",
        [
            _names(passes),
            (Column("time", "s"), of("wall_s")),
            (Column("waiting", "s"), of("wait_s")),
            (Column("computing", "s"), of("compute_s")),
            (Column("reading", "s, sum"), of("read_s")),
            (Column("fetching", "s, sum"), of_job("fetch_s")),
            (Column("decoding", "s, sum"), of_job("decode_s")),
            (Column("writing", "s, sum"), of_job("push_s")),
            samples("found", [one.figures["hits"] for one in passes]),
            samples("missed", [one.figures["misses"] for one in passes]),
            samples("produced", [one.job.get("samples_produced") for one in passes]),
            samples("retried", [one.job.get("retries") for one in passes]),
            samples("failed", [one.job.get("samples_failed") for one in passes]),
        ],
    )


def status_table(run: RunFiles) -> Table | None:
    """What asking the coordinator for the plan has cost; None where nobody counted."""
    told = [one for one in run.passes if one.job.get("status_calls")]
    if not told:
        return None

    def of(name: str) -> list[float | None]:
        return [one.job.get(name) for one in told]

    waits = [share(one.job.get("status_wait_s"), one.figures["wall_s"]) for one in told]
    return _abridged(
        "Status checks",
        [
            _names(told),
            _counts("calls", of("status_calls")),
            _ms("in the background", of("status_s")),
            _ms("thereof CPU", of("status_cpu_s")),
            _ms("each call", [share(one.job.get("status_s"), one.job["status_calls"]) for one in told]),
            _ms("trainer waited", of("status_wait_s")),
            _percents("trainer waited", "% of time", waits),
        ],
    )


def step_times_table(run: RunFiles) -> Table | None:
    """Mean step times as they were printed; None where none were asked for."""
    by_epoch = step_times_by_epoch(run)
    steps = sorted({step for times in by_epoch.values() for step in times})
    if not steps:
        return None
    return _abridged(
        "Mean step times",
        [
            (Column("up to step", words=True), [str(step) for step in steps]),
            *(
                _ms(f"epoch {epoch + 1}", [times.get(step) for step in steps])
                for epoch, times in by_epoch.items()
            ),
        ],
    )


def stalls_table(run: RunFiles) -> Table | None:
    """Why the trainer waited, by pass; None where nobody told."""
    told = [one for one in run.passes if one.figures.get("stalls")]
    if not told:
        return None
    stalls = [one.figures["stalls"] for one in told]
    waits = [stalls_of(one) for one in told]
    causes = [cause for cause in STALL_CAUSES if any(cause in each for each in waits)]
    causes += sorted({cause for each in waits for cause in each} - STALL_CAUSES.keys())
    bound = [share(each["steps"] - each["stalled"], each["steps"]) for each in stalls]
    part = [share(each["wait_s"], one.figures["wall_s"]) for each, one in zip(stalls, told, strict=True)]
    return _abridged(
        "Stalls by cause",
        [
            _names(told),
            _counts("steps", [each["steps"] for each in stalls]),
            _counts("stalled", [each["stalled"] for each in stalls], "steps"),
            _percents("bound by computing", "% of steps", bound),
            *(
                (Column(cause.replace("_", " "), "s"), aligned([each.get(cause, 0.0) for each in waits]))
                for cause in causes
            ),
            (Column("all stalls", "s"), aligned([each["wait_s"] for each in stalls])),
            _percents("all stalls", "% of time", part),
        ],
    )


def causes_table(run: RunFiles) -> Table | None:
    """What the causes that there were mean; None where there was none."""
    there = {cause for one in run.passes for cause in stalls_of(one)}
    named = [(name, cause) for name, cause in STALL_CAUSES.items() if name in there]
    if not there:
        return None
    return table_of(
        "What the causes mean",
        [
            (Column("cause", words=True), [name.replace("_", " ") for name, _ in named]),
            (Column("the trainer waited since", words=True), [cause.meaning for _, cause in named]),
            (Column("what helps", words=True), [cause.remedy for _, cause in named]),
        ],
    )


def processors_table(run: RunFiles) -> Table | None:
    """What each phase used of processors, memory and the GPU; None where nothing was sampled."""
    phases: list[dict[str, Any]] = (run.known.get("utilization") or {}).get("phases") or []
    if not phases:
        return None
    groups = [name for name in _GROUPS if any(name in phase["groups"] for phase in phases)]
    of_pass = {(one.epoch, one.split): one.figures for one in run.passes}
    passes = [of_pass.get((phase["epoch"], phase["split"]), {}) for phase in phases]
    walls = [phase["wall_s"] for phase in phases]
    cpu_s = [sum(group["cpu_s"] for group in phase["groups"].values()) for phase in phases]
    computing = [share(one.get("compute_s"), wall_s) for one, wall_s in zip(passes, walls, strict=True)]
    each = [share(used, one.get("samples")) for used, one in zip(cpu_s, passes, strict=True)]
    alone = run.ranks == 1  # else the CPU is rank 0's, and the images are of all ranks
    columns: list[_Cells] = [
        (Column("phase", words=True), [_phase_name(phase) for phase in phases]),
        (Column("time", "s"), aligned(walls)),
        _percents("computing", "% of time", computing),
        *((Column(name, "cores"), _cores(phases, name)) for name in groups),
        (Column("all", "cores"), aligned([share(*pair) for pair in zip(cpu_s, walls, strict=True)], 2)),
        *([_ms("CPU", each, "ms/image")] if alone else []),
        (Column("memory", "most"), [_memory(phase) for phase in phases]),
    ]
    if any(phase["gpu_percent"] is not None or phase["gpu_memory_bytes_max"] for phase in phases):
        columns += [
            (Column("GPU", "% busy"), aligned([phase["gpu_percent"] for phase in phases])),
            (Column("GPU memory", "most"), [size(phase["gpu_memory_bytes_max"]) for phase in phases]),
        ]
    return _abridged("Processors in use, by phase", columns)


def gpus_table(run: RunFiles) -> Table | None:
    """What the GPU of each rank did, from the first training step on; None where there was none."""
    begun_s = min((steps.begun_at_s for steps in run.steps.values()), default=0.0)
    told = {
        rank: [row for row in rows if row.subject == "gpu" and row.at_s >= begun_s]
        for rank, rows in run.usage_by_rank.items()
    }
    told = {rank: rows for rank, rows in told.items() if rows}
    if not told:
        return None
    busy = [[row.gpu_percent for row in rows if row.gpu_percent is not None] for rows in told.values()]
    used = [[row.gpu_memory_bytes or 0 for row in rows] for rows in told.values()]
    return table_of(
        "GPUs while training, by rank",
        [
            (Column("rank", words=True), [str(rank) for rank in told]),
            _counts("looked at", [len(rows) for rows in told.values()], "times"),
            (Column("busy", "% of time, mean"), aligned([_mean(values) for values in busy])),
            (Column("memory used", "most"), [size(max(values)) for values in used]),
            (Column("memory", "in all"), [size(rows[-1].gpu_memory_total_bytes) for rows in told.values()]),
        ],
    )


def _phase_name(phase: dict[str, Any]) -> str:
    return str(phase["split"]) if phase["epoch"] is None else f"{phase['epoch'] + 1} {phase['split']}"


def _cores(phases: Sequence[dict[str, Any]], name: str) -> tuple[str, ...]:
    return aligned([phase["groups"].get(name, {}).get("cpu_cores") for phase in phases], 2)


def _memory(phase: dict[str, Any]) -> str:
    """The parts' highest shares of memory, added up; absent where that of a part was not read."""
    pss = [group["pss_bytes_max"] for group in phase["groups"].values()]
    return ABSENT if None in pss else size(sum(pss))


def bill_table(bill: dict[str, Any]) -> Table:
    """What was paid for what."""
    lines, epochs = bill["lines"], [one["usd"] for one in bill["epochs"]]
    total = "what has a price here" if any(line["usd"] is None for line in lines) else "all of it"

    def dollars(values: Iterable[float | None]) -> list[str]:
        return [number(value) for value in values]

    columns: list[_Cells] = [
        (Column("what", words=True), [*(line["name"] for line in lines), total]),
        (Column("the run", "USD"), dollars([*(line["usd"] for line in lines), bill["usd"]])),
    ]
    if epochs:
        firsts = [line["by_epoch"][0] if line["by_epoch"] else None for line in lines]
        columns.append((Column("first epoch", "USD"), dollars([*firsts, epochs[0]])))
    if len(epochs) > 1:
        later = [_mean(line["by_epoch"][1:]) for line in lines]
        columns.append((Column("an epoch after it", "USD, mean"), dollars([*later, _mean(epochs[1:])])))
    columns.append((Column("how", words=True), [*(line["how"] for line in lines), ""]))
    return table_of("The bill", columns, total=True)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def epoch_cost_table(bill: dict[str, Any]) -> Table:
    """What each epoch cost, and a million images at its price."""
    epochs = bill["epochs"]
    each = [*(one["usd_per_million_images"] for one in epochs), bill["usd_per_million_images"]]
    return _abridged(
        "Cost by epoch, validation with it",
        [
            (Column("epoch", words=True), [*(str(one["epoch"] + 1) for one in epochs), "the run"]),
            (Column("cost", "USD"), aligned([*(one["usd"] for one in epochs), bill["usd"]])),
            (Column("a million training images", "USD"), aligned(each)),
        ],
        total=True,
    )
