"""What a machine is made of, so that figures of two can be compared; no host, user or path names."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch

__all__ = ["describe_hardware"]


def describe_hardware() -> dict[str, Any]:
    """Return the processor, memory and the GPUs that torch may use; memory in bytes."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": os.cpu_count(),
        "usable_cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
    }


def _cpu_model() -> str | None:
    """The processor's name as Linux tells it, else as Python does; None where neither knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor()) or None


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [
        {
            "name": device.name,
            "memory_bytes": device.total_memory,
            "compute_capability": f"{device.major}.{device.minor}",
        }
        for device in devices
    ]
