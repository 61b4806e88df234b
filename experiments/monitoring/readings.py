"""Read resource use of a trainer and its descendants: CPU and memory by group, GPU through NVML."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

# In the order of tables.
GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "other")

_SERVERS = ("valkey-server", "redis-server")
_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The current use of a group."""

    processes: int
    # User and system, since reading began. Ended processes count up to their last reading.
    cpu_s: float
    rss_bytes: int
    # Divides shared memory among its users, so that it adds up; None if not read, or not on Linux.
    pss_bytes: int | None


class ProcessGroups:
    """The descendants of a process, sorted into `GROUPS`, and their CPU time from now on."""

    def __init__(self, trainer: psutil.Process | None = None) -> None:
        self._trainer = trainer or psutil.Process()
        self._command = self._trainer.cmdline()
        self._before_s = _cpu_s(self._trainer)
        # Group and CPU seconds of each process seen, by id and start.
        self._seen: dict[psutil.Process, tuple[str, float]] = {}

    def read(self, *, with_pss: bool = False) -> dict[str, GroupReading]:
        """Read every group that has, or had, a process."""
        rss: dict[str, int] = defaultdict(int)
        running: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in (self._trainer, *self._trainer.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # ended: its last reading counts
                group = self._group_of(process)
                self._seen[process] = (group, _cpu_s(process))
                rss_bytes = process.memory_info().rss
                if rss_bytes:  # else it has ended and waits for its parent
                    rss[group] += rss_bytes
                    running[group].append(process)
        used: dict[str, float] = defaultdict(float, {self._seen[self._trainer][0]: -self._before_s})
        for group, cpu_s in self._seen.values():
            used[group] += cpu_s
        return {
            name: GroupReading(
                len(running[name]), used[name], rss[name], _pss_bytes(running[name]) if with_pss else None
            )
            for name in GROUPS
            if name in used
        }

    def _group_of(self, process: psutil.Process) -> str:
        # Each time: between fork and exec a child still has its parent's command.
        if process == self._trainer:
            return "trainer"
        try:
            return group_of(process.name(), process.cmdline(), self._command)
        except psutil.ZombieProcess:  # it has no command, but keeps its group
            return self._seen.get(process, ("other", 0.0))[0]


def group_of(name: str, command: Sequence[str], trainers: Sequence[str]) -> str:
    """Return the group of a descendant, from its name and both commands."""
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    if f"{module}.".startswith("superdl.lambda_prefetch.worker."):
        return "functions"
    if f"{module}.".startswith("superdl.coordinator."):
        return "coordinator"
    if name in _SERVERS or (command and Path(command[0]).name in _SERVERS):
        return "cache"
    # A forked worker has its trainer's command.
    if list(command) == list(trainers) or any(mark in word for word in command for mark in _MULTIPROCESSING):
        return "workers"
    return "other"


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _pss_bytes(processes: Sequence[psutil.Process]) -> int | None:
    with contextlib.suppress(psutil.Error, AttributeError):  # one has just ended; only Linux has it
        return sum(process.memory_full_info().pss for process in processes)
    return None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU, for all its processes; None if unavailable (as with MIG)."""

    # The share of the driver's last sample period (a sixth of a second to a second) in
    # which some kernel ran: 100 means never idle, not fully used.
    busy_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


def meter_of(device: torch.device) -> GpuMeter | None:
    """Return the meter of the GPU ``device``; None for other devices."""
    if device.type != "cuda":
        return None
    import torch  # always available in a run; reading reports needs none

    return GpuMeter(str(torch.cuda.get_device_properties(device).uuid))


class GpuMeter:
    """One GPU by its UUID.

    Raises:
        ConfigError: the package is not installed, or the driver does not know this GPU.
    """

    def __init__(self, uuid: str) -> None:
        try:
            import pynvml  # needs the optional package
        except ImportError as error:
            raise ConfigError(
                f"no GPU utilisation: the package nvidia-ml-py cannot be imported ({error}); "
                "pip install 'superdl[train]'",
            ) from error
        self._nvml: Any = pynvml
        self.close = pynvml.nvmlShutdown
        # CUDA_VISIBLE_DEVICES neither hides nor reorders UUIDs.
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
        memory = self._known(self._nvml.nvmlDeviceGetMemoryInfo)
        rates = self._known(self._nvml.nvmlDeviceGetUtilizationRates)
        return GpuReading(
            busy_percent=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
        )

    def _known(self, query: Callable[[Any], Any]) -> Any:
        """Return NVML's answer; None if this GPU, or its driver, has none."""
        try:
            return query(self._handle)
        except self._nvml.NVMLError:
            return None
