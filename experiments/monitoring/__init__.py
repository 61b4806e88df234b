"""What a run uses while it goes on: CPU and memory of its processes by their part, and its GPU.

Sampled in one thread whose cost is bounded; what a step or a pass took is measured in `experiments.training`.
"""

from __future__ import annotations

from superdl.experiments.monitoring.gpu import GpuMeter, GpuReading, meter_of
from superdl.experiments.monitoring.monitor import UtilizationMonitor
from superdl.experiments.monitoring.usage import GroupUsage, PhaseUsage, Utilization

__all__ = [
    "GpuMeter",
    "GpuReading",
    "GroupUsage",
    "PhaseUsage",
    "Utilization",
    "UtilizationMonitor",
    "meter_of",
]
