"""Resource use of a run: CPU and memory of its processes by group, and its GPU."""

from __future__ import annotations

from superdl.experiments.monitoring.monitor import (
    HostUsage,
    PhaseUsage,
    Utilization,
    UtilizationMonitor,
    host_usages,
    workers_of,
)
from superdl.experiments.monitoring.readings import GROUPS, GpuReading, ProcessGroups, meter_of

__all__ = [
    "GROUPS",
    "GpuReading",
    "HostUsage",
    "PhaseUsage",
    "ProcessGroups",
    "Utilization",
    "UtilizationMonitor",
    "host_usages",
    "meter_of",
    "workers_of",
]
