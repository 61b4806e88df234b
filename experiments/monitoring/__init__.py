"""What a run uses while it goes on: CPU and memory of its processes by their part, and its GPU.

Sampled in one thread whose cost is bounded; what a step or a pass took is measured in `experiments.training`.
"""

from __future__ import annotations

from superdl.experiments.monitoring.monitor import (
    GroupUsage,
    PhaseUsage,
    Utilization,
    UtilizationMonitor,
    utilization_table,
)
from superdl.experiments.monitoring.readings import GpuMeter, GpuReading, ProcessGroups, meter_of

__all__ = [
    "GpuMeter",
    "GpuReading",
    "GroupUsage",
    "PhaseUsage",
    "ProcessGroups",
    "Utilization",
    "UtilizationMonitor",
    "meter_of",
    "utilization_table",
]
