"""What a run used, by phase: the start, then each pass. Plain values, and how they follow from samples.

Taking samples is left to `experiments.monitoring.monitor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.monitoring.gpu import GpuReading
    from superdl.experiments.monitoring.process_groups import GroupReading

__all__ = ["GroupUsage", "PhaseUsage", "Sample", "Utilization", "phase_usage"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything; ``clock_s`` is of a clock that never jumps, ``at_s`` a Unix timestamp."""

    clock_s: float
    at_s: float
    groups: dict[str, GroupReading]
    gpu: GpuReading | None


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What a group of processes used in a phase; ``cpu_cores`` is CPU seconds per second."""

    processes_max: int
    cpu_s: float
    cpu_cores: float
    rss_bytes_max: int
    pss_bytes_max: int | None


@dataclass(frozen=True, slots=True)
class PhaseUsage:
    """A phase: ``start`` (before the first pass; ``epoch`` is None), or a pass, ``train`` or ``val``.

    CPU seconds are exact to the system's tick, since each phase begins and ends with a sample; highest
    figures and the GPU's mean are of ``samples``. What was not there, a group or the GPU, is absent, not 0.
    """

    epoch: int | None
    split: str
    wall_s: float
    samples: int
    groups: dict[str, GroupUsage]
    gpu_percent: float | None
    gpu_memory_bytes_max: int | None

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all groups."""
        return sum(group.cpu_s for group in self.groups.values())


@dataclass(frozen=True, slots=True)
class Utilization:
    """All phases of a run, and what looking cost: ``sampling_cpu_s``, which is part of the trainer's."""

    interval_s: float
    samples: int
    sampling_cpu_s: float
    phases: tuple[PhaseUsage, ...]


def phase_usage(epoch: int | None, split: str, samples: Sequence[Sample]) -> PhaseUsage:
    """Sum a phase up from its samples, of which the first is its begin and the last its end."""
    first, last = samples[0], samples[-1]
    wall_s = last.clock_s - first.clock_s
    groups = {}
    for name, reading in last.groups.items():
        before = first.groups.get(name)
        cpu_s = max(0.0, reading.cpu_s - (0.0 if before is None else before.cpu_s))
        seen = [sample.groups[name] for sample in samples if name in sample.groups]
        groups[name] = GroupUsage(
            processes_max=max(one.processes for one in seen),
            cpu_s=cpu_s,
            cpu_cores=cpu_s / wall_s if wall_s > 0 else 0.0,
            rss_bytes_max=max(one.rss_bytes for one in seen),
            pss_bytes_max=max((one.pss_bytes for one in seen if one.pss_bytes is not None), default=None),
        )
    # The first sample tells of what the GPU did before the phase.
    gpu = [sample.gpu for sample in samples[1:] if sample.gpu is not None]
    memory = [one.memory_bytes for one in gpu if one.memory_bytes is not None]
    busy = [one.busy_percent for one in gpu if one.busy_percent is not None]
    return PhaseUsage(
        epoch=epoch,
        split=split,
        wall_s=wall_s,
        samples=len(samples),
        groups=groups,
        gpu_percent=sum(busy) / len(busy) if busy else None,
        gpu_memory_bytes_max=max(memory, default=None),
    )
