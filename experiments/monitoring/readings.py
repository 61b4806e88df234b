"""Read a run's resource use: CPU and memory by group of processes, GPU through NVML.

Only descendants of the trainer are visible: a coordinator, cache or function elsewhere is absent, not zero.
The package `nvidia-ml-py` (module `pynvml`) is optional and imported only to make a meter.
`experiments.monitoring.monitor` decides when to read.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

__all__ = ["GROUPS", "GpuMeter", "GpuReading", "GroupReading", "ProcessGroups", "group_of", "meter_of"]

GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "other")
"""The groups of a run's processes, in the order of tables and plots."""

_SERVERS = ("valkey-server", "redis-server")
_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")
_PSS_SHARE = 0.005
"""Bound in cores. For PSS the system walks a process's pages: 1.5 ms for a trainer of 500 MB."""


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The current use of a group.

    ``cpu_s`` is CPU time, user and system, since reading began. It includes ended processes, up to the last
    reading before they ended. ``pss_bytes`` divides shared memory among its users, so that it can be added
    up. It is None if skipped because of its cost, or if the system does not report it (Linux does).
    """

    processes: int
    cpu_s: float
    rss_bytes: int
    pss_bytes: int | None


@dataclass(slots=True)
class _Seen:
    group: str
    cpu_s: float


class ProcessGroups:
    """The descendants of a process, sorted into `GROUPS`."""

    def __init__(
        self, trainer: psutil.Process | None = None, group: Callable[[psutil.Process], str] | None = None
    ) -> None:
        """Start counting the CPU time of this process, or ``trainer``, and its descendants.

        ``group`` returns the group of a process, in place of :func:`group_of`.
        """
        self._trainer = trainer or psutil.Process()
        self._group = group or self._below_a_trainer
        self._command = self._trainer.cmdline()
        self._seen: dict[psutil.Process, _Seen] = {}
        self._before_s = _cpu_s(self._trainer)
        self._pss_due_s = 0.0

    def read(self) -> dict[str, GroupReading]:
        """Read every group that has, or had, a process."""
        rss: dict[str, int] = defaultdict(int)
        running: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in (self._trainer, *self._trainer.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # ended: its last reading counts
                group = self._see(process)
                rss_bytes = process.memory_info().rss
                if rss_bytes:  # else it has ended and waits for its parent
                    rss[group] += rss_bytes
                    running[group].append(process)
        pss = self._pss(running)
        used: dict[str, float] = defaultdict(float)
        for seen in self._seen.values():
            used[seen.group] += seen.cpu_s
        used[self._seen[self._trainer].group] -= self._before_s
        return {
            name: GroupReading(len(running[name]), used[name], rss[name], pss.get(name))
            for name in GROUPS
            if name in used
        }

    def _pss(self, running: Mapping[str, Sequence[psutil.Process]]) -> dict[str, int]:
        """Return the PSS of each group, or nothing if the next reading is not due."""
        if time.perf_counter() < self._pss_due_s:
            return {}
        begun_s = time.thread_time()
        read = {name: [_pss_bytes(process) for process in processes] for name, processes in running.items()}
        self._pss_due_s = time.perf_counter() + (time.thread_time() - begun_s) / _PSS_SHARE
        return {name: sum(filter(None, values)) for name, values in read.items() if None not in values}

    def _see(self, process: psutil.Process) -> str:
        """Record the process, by id and start, and return its group."""
        cpu_s = _cpu_s(process)
        seen = self._seen.setdefault(process, _Seen("other", cpu_s))
        seen.cpu_s = cpu_s
        with contextlib.suppress(psutil.ZombieProcess):  # it has no command, but keeps its group
            # Each time: between fork and exec a child still has its parent's command.
            seen.group = self._group(process)
        return seen.group

    def _below_a_trainer(self, process: psutil.Process) -> str:
        if process == self._trainer:
            return "trainer"
        return group_of(process.name(), process.cmdline(), self._command)


def group_of(name: str, command: Sequence[str], trainers: Sequence[str]) -> str:
    """Return the group of a descendant, from its name and both commands."""
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    if f"{module}.".startswith("superdl.lambda_prefetch.worker."):
        return "functions"
    if f"{module}.".startswith("superdl.coordinator."):
        return "coordinator"
    if name in _SERVERS or (command and Path(command[0]).name in _SERVERS):
        return "cache"
    if list(command) == list(trainers) or any(mark in word for word in command for mark in _MULTIPROCESSING):
        return "workers"
    return "other"


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _pss_bytes(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return getattr(process.memory_full_info(), "pss", None)
    return None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU, for all its processes; None if unavailable (as with MIG).

    ``busy_percent`` is the share of the driver's last sample period (a sixth of a second to a second) in
    which some kernel ran: 100 means never idle, not fully used.
    """

    busy_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


def meter_of(device: torch.device) -> GpuMeter | None:
    """Return the meter of the GPU ``device``; None for other devices.

    Raises:
        ConfigError: the GPU cannot be read; the message has the reason.
    """
    if device.type != "cuda":
        return None
    import torch  # always available in a run; reading reports needs none

    return GpuMeter(str(torch.cuda.get_device_properties(device).uuid))


class GpuMeter:
    """One GPU by its UUID, which CUDA_VISIBLE_DEVICES neither hides nor reorders."""

    def __init__(self, uuid: str) -> None:
        """Find the GPU.

        Raises:
            ConfigError: the package is not installed, or the driver does not know this GPU.
        """
        try:
            import pynvml  # needs the optional package
        except ImportError as error:
            raise ConfigError(
                f"no GPU utilisation: the package nvidia-ml-py cannot be imported ({error}); "
                "pip install 'superdl[train]'",
            ) from error
        self._nvml: Any = pynvml
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError as error:
            raise ConfigError(
                f"no GPU utilisation: NVML does not give {name} ({error}); see nvidia-smi"
            ) from error

    def read(self) -> GpuReading:
        """Read the GPU now; takes well below a millisecond."""
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
        return GpuReading(
            busy_percent=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
        )

    def close(self) -> None:
        """Shut NVML down."""
        self._nvml.nvmlShutdown()

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Return NVML's answer; None if this GPU, or its driver, has none."""
        try:
            return question(self._handle)
        except self._nvml.NVMLError:
            return None
