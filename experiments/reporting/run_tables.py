"""The tables of a run's page, each from the run's files alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.reporting.page import Column, Table
from experiments.reporting.quantities import ABSENT, count, number, percent, points_of, share, size

if TYPE_CHECKING:
    from experiments.reporting.run_files import Pass, RunFiles

__all__ = ["data_time_table", "passes_table", "processors_table", "status_table"]

_GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "supervisor", "other")
_MILLI = 1000.0


def passes_table(run: RunFiles) -> Table:
    """How each pass went."""
    has_top5 = any(one.figures.get("top5_accuracy") is not None for one in run.passes)
    columns = [
        Column("pass", words=True),
        Column("images"),
        Column("steps"),
        Column("time", "s"),
        Column("throughput", "images/s"),
        Column("loss", "mean"),
        Column("top-1", "% right"),
        *([Column("top-5", "% right")] if has_top5 else []),
        Column("waiting", "% of time"),
        Column("first batch", "s"),
    ]
    rows = []
    for one in run.passes:
        figures = one.figures
        rows.append(
            (
                one.name,
                count(figures["samples"]),
                count(figures["batches"]),
                number(figures["wall_s"]),
                number(figures["images_per_s"]),
                number(figures["loss"]),
                _hundredths(figures["accuracy"]),
                *([_hundredths(figures.get("top5_accuracy"))] if has_top5 else []),
                _hundredths(one.wait_share),
                number(figures["first_batch_s"]),
            )
        )
    return Table("Passes over the data", tuple(columns), tuple(rows))


def _hundredths(value: float | None) -> str:
    return points_of(value).removesuffix("%")


def data_time_table(run: RunFiles) -> Table:
    """Where the time of loading went, and what was done."""
    columns = (
        Column("pass", words=True),
        Column("time", "s"),
        Column("trainer waits", "s"),
        Column("workers read the cache", "s, summed"),
        Column("functions fetch", "s, summed"),
        Column("functions decode", "s, summed"),
        Column("functions write", "s, summed"),
        Column("step computes", "s"),
        Column("found", "samples"),
        Column("missed", "samples"),
        Column("produced", "samples"),
        Column("asked again", "samples"),
    )
    rows = []
    for one in run.passes:
        figures, job = one.figures, one.job
        rows.append(
            (
                one.name,
                number(figures["wall_s"]),
                number(figures["wait_s"]),
                number(figures["read_s"]),
                number(job.get("fetch_s")),
                number(job.get("decode_s")),
                number(job.get("push_s")),
                number(figures["compute_s"]),
                count(figures["hits"]),
                count(figures["misses"]),
                count(job.get("samples_produced")),
                count(job.get("retries")),
            )
        )
    return Table("Time of loading and computing", columns, tuple(rows))


def status_table(run: RunFiles) -> Table | None:
    """What asking the coordinator for the plan has cost; None where nobody counted."""
    told = [one for one in run.passes if one.job.get("status_calls")]
    if not told:
        return None
    columns = (
        Column("pass", words=True),
        Column("calls"),
        Column("in the background", "ms"),
        Column("of them CPU", "ms"),
        Column("for each call", "ms"),
        Column("trainer waited", "ms"),
        Column("trainer waited", "% of time"),
    )
    rows = []
    for one in told:
        job = one.job
        each = share(job.get("status_s"), job["status_calls"])
        rows.append(
            (
                one.name,
                count(job["status_calls"]),
                _ms(job.get("status_s")),
                _ms(job.get("status_cpu_s")),
                _ms(each),
                _ms(job.get("status_wait_s")),
                percent(share(job.get("status_wait_s"), one.figures["wall_s"])).removesuffix("%"),
            )
        )
    return Table("Status checks", columns, tuple(rows))


def _ms(value: float | None) -> str:
    return ABSENT if value is None else number(value * _MILLI)


def processors_table(run: RunFiles) -> Table | None:
    """What each phase used of processors, memory and the GPU; None where nothing was sampled."""
    phases: list[dict[str, Any]] = (run.known.get("utilization") or {}).get("phases") or []
    if not phases:
        return None
    groups = [name for name in _GROUPS if any(name in phase["groups"] for phase in phases)]
    has_gpu = any(phase["gpu_percent"] is not None or phase["gpu_memory_bytes_max"] for phase in phases)
    images = {(one.epoch, one.split): one for one in run.passes}
    columns = [
        Column("phase", words=True),
        Column("time", "s"),
        Column("computing", "% of time"),
        *(Column(name, "cores") for name in groups),
        Column("all", "cores"),
        Column("CPU", "ms/image"),
        Column("memory", "of all"),
        *([Column("GPU", "% busy"), Column("GPU memory", "most")] if has_gpu else []),
    ]
    rows = []
    for phase in phases:
        one = images.get((phase["epoch"], phase["split"]))
        cpu_s = sum(group["cpu_s"] for group in phase["groups"].values())
        samples = None if one is None else one.figures["samples"]
        rows.append(
            (
                phase["split"] if phase["epoch"] is None else f"{phase['epoch'] + 1} {phase['split']}",
                number(phase["wall_s"]),
                _computing(one, phase["wall_s"]),
                *(
                    number(phase["groups"][name]["cpu_cores"], 2) if name in phase["groups"] else ABSENT
                    for name in groups
                ),
                number(share(cpu_s, phase["wall_s"]), 2),
                _ms(share(cpu_s, samples)),
                _memory(phase),
                *([number(phase["gpu_percent"]), size(phase["gpu_memory_bytes_max"])] if has_gpu else []),
            )
        )
    return Table("Processors in use, by phase", tuple(columns), tuple(rows))


def _computing(one: Pass | None, wall_s: float) -> str:
    part = None if one is None else share(one.figures["compute_s"], wall_s)
    return percent(part).removesuffix("%")


def _memory(phase: dict[str, Any]) -> str:
    """The parts' highest shares of memory, added up; absent where that of a part was not read."""
    pss = [group["pss_bytes_max"] for group in phase["groups"].values()]
    return ABSENT if None in pss else size(sum(pss))
