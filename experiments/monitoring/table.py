"""Shows what a run used, phase by phase, as a table that fits 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.experiments.monitoring.usage import PhaseUsage, Utilization

__all__ = ["utilization_table"]

_ABSENT = "-"
_SHOWN = ("trainer", "workers", "functions", "cache", "coordinator")
_MIB = 2**20


def utilization_table(used: Utilization, images: Mapping[tuple[int | None, str], int]) -> Table:
    """Return the table; ``images`` are those of each pass, by epoch and split."""
    has_gpu = any(phase.gpu_memory_bytes_max is not None for phase in used.phases)
    table = Table(title="cores in use, by phase and part", box=SIMPLE_HEAD, padding=0)
    table.add_column("\nphase", overflow="fold")
    headings = [f"\n{name}" for name in _SHOWN] + ["CPU ms\n/image", "memory\n(MiB)"]
    for heading in headings + (["GPU\n(%)", "GPU\n(MiB)"] if has_gpu else []):
        table.add_column(heading, justify="right", overflow="fold")
    for phase in used.phases:
        cells = [_cores(phase, name) for name in _SHOWN]
        cells += [_cpu_per_image(phase, images.get((phase.epoch, phase.split))), _memory(phase)]
        if has_gpu:
            gpu_bytes = phase.gpu_memory_bytes_max
            cells.append(_ABSENT if phase.gpu_percent is None else f"{phase.gpu_percent:.0f}")
            cells.append(_ABSENT if gpu_bytes is None else f"{gpu_bytes / _MIB:,.0f}")
        table.add_row(phase.split if phase.epoch is None else f"{phase.epoch + 1} {phase.split}", *cells)
    return table


def _cores(phase: PhaseUsage, name: str) -> str:
    return f"{phase.groups[name].cpu_cores:.2f}" if name in phase.groups else _ABSENT


def _cpu_per_image(phase: PhaseUsage, images: int | None) -> str:
    return f"{1000 * phase.cpu_s / images:.2f}" if images else _ABSENT


def _memory(phase: PhaseUsage) -> str:
    """The groups' highest PSS, added up; absent where that of a group was not read."""
    pss = [group.pss_bytes_max for group in phase.groups.values() if group.pss_bytes_max is not None]
    return f"{sum(pss) / _MIB:,.0f}" if len(pss) == len(phase.groups) else _ABSENT
