"""Measure a run's resource use: CPU time by process group, and GPU utilisation and memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import psutil

from superdl.experiments.records import Listener
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    GpuMeter = Callable[[], "GpuReading"]

    from superdl.experiments.records import EpochSummary

_INTERVAL_S = 1.0

# In the order used in tables.
GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "other")

_FUNCTIONS = ("superdl-worker", "superdl-slot")
_SERVERS = ("valkey-server", "redis-server")
_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The number of running processes in a group, and the group's CPU time since counting began.

    ``cpu_s`` includes user and system time. Processes that have ended count up to their last reading.
    """

    processes: int
    cpu_s: float


class ProcessGroups:
    """Sort a process and its descendants into `GROUPS`, and count their CPU time from now on."""

    def __init__(self, trainer: psutil.Process | None = None, *, name: str = "trainer") -> None:
        """Start counting. ``trainer`` (by default this process) belongs to the group ``name``."""
        self._trainer = trainer or psutil.Process()
        self._name = name
        self._command = self._trainer.cmdline()
        self._before_s = _cpu_s(self._trainer)
        # The last group and CPU seconds of each process. psutil compares processes by id and start time.
        self._seen: dict[psutil.Process, tuple[str, float]] = {}

    def read(self) -> dict[str, GroupReading]:
        """Return a reading of every group that has or had a process."""
        running: Counter[str] = Counter()
        for process in (self._trainer, *self._trainer.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended: its last reading counts
                group = self._group_of(process)
                self._seen[process] = (group, _cpu_s(process))
                running[group] += process.status() != psutil.STATUS_ZOMBIE
        used: dict[str, float] = defaultdict(float, {self._seen[self._trainer][0]: -self._before_s})
        for group, cpu_s in self._seen.values():
            used[group] += cpu_s
        return {name: GroupReading(running[name], used[name]) for name in GROUPS if name in used}

    def _group_of(self, process: psutil.Process) -> str:
        # Read the command every time: between fork and exec, a child still has its parent's.
        if process == self._trainer:
            return self._name
        try:
            return group_of(process.name(), process.cmdline(), self._command)
        except psutil.ZombieProcess:  # it no longer has a command
            return self._seen.get(process, ("other", 0.0))[0]


def group_of(name: str, command: Sequence[str], trainers: Sequence[str]) -> str:
    """Return a descendant's group, given its name, its command and the trainer's command."""
    module = command[command.index("-m") + 1] if "-m" in command[:-1] else ""
    # Forks of the coordinator have its command, so worker and slots name themselves.
    if name in _FUNCTIONS or module == "superdl.lambda_prefetch.worker":
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


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU, which covers all processes on it. Unsupported values are None.

    ``busy_percent`` is the share of the driver's last sample period (a sixth of a second to a second) in
    which any kernel ran. A value of 100 means that the GPU was never idle, not that it was fully used.
    """

    busy_percent: float | None
    memory_bytes: int | None


def gpu_meter(device: torch.device) -> GpuMeter | None:
    """Return a function that reads the GPU ``device``, or None if ``device`` is not a GPU.

    Raises:
        ConfigError: nvidia-ml-py is not installed, or the driver is not available.
    """
    if device.type != "cuda":
        return None
    import torch  # always available in a run; reading reports needs none

    try:
        torch.cuda.device_memory_used(device)
    except Exception as error:  # ImportError, RuntimeError, or one of NVML's own
        raise ConfigError(
            f"cannot measure GPU utilisation: {error}. Run pip install 'superdl[train]', and see nvidia-smi."
        ) from error

    def read() -> GpuReading:
        busy_percent = memory_bytes = None
        with contextlib.suppress(Exception):  # not supported with MIG
            busy_percent = float(torch.cuda.utilization(device))
        with contextlib.suppress(Exception):  # must not end the run
            memory_bytes = int(torch.cuda.device_memory_used(device))
        return GpuReading(busy_percent, memory_bytes)

    return read


# ---------------------------------------------------------------------------------- samples and phases


class Sample(NamedTuple):
    """A sample taken at ``clock_s`` on a monotonic clock, which is ``at_s`` in Unix time."""

    clock_s: float
    at_s: float
    groups: dict[str, GroupReading]
    gpu: GpuReading | None


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """A group's resource use in a phase. ``cpu_cores`` is CPU seconds per second of wall time."""

    processes_max: int
    cpu_s: float
    cpu_cores: float


@dataclass(frozen=True, slots=True)
class PhaseUsage:
    """Resource use in a phase: ``start``, for which ``epoch`` is None, or a ``train`` or ``val`` pass.

    CPU seconds have the resolution of a clock tick. Maxima and GPU means are taken over ``samples`` samples.
    Groups without processes are absent. GPU values are None without a GPU.
    """

    epoch: int | None
    split: str
    wall_s: float
    samples: int
    groups: dict[str, GroupUsage]
    gpu_percent: float | None
    gpu_memory_bytes_max: int | None
    ended_at_s: float = 0.0  # a Unix timestamp


class UtilizationMonitor(Listener):
    """A listener that samples this process, its descendants and the GPU until `close` is called.

    A background thread takes the samples. The main thread adds one at the start and end of each pass.
    """

    def __init__(self, gpu: GpuMeter | None = None, *, interval_s: float = _INTERVAL_S) -> None:
        """Start sampling every ``interval_s`` seconds."""
        self._gpu = gpu
        self._interval_s = interval_s
        self._processes = ProcessGroups()
        self._lock = threading.Lock()
        self._phase: tuple[int | None, str] | None = (None, "start")
        self._samples: list[Sample] = []  # of the current phase; between phases, the last one
        self._phases: list[PhaseUsage] = []
        self._ended = threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="superdl-utilization", daemon=True)
        self._thread.start()

    def phases(self) -> tuple[PhaseUsage, ...]:
        """Return all completed phases."""
        with self._lock:
            return tuple(self._phases)

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # a listener's signature
        """Take one sample, which ends the previous phase and starts the next."""
        self._turn((epoch, split))

    def on_epoch_end(self, summary: EpochSummary) -> None:  # noqa: ARG002  # a listener's signature
        """End the epoch's last phase."""
        self._turn(None)

    def close(self) -> None:
        """Stop the thread and end the current phase."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._turn(None)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            with self._lock:
                self._sample()

    def _turn(self, phase: tuple[int | None, str] | None) -> None:
        with self._lock:
            self._sample()
            if self._phase is not None:
                self._phases.append(phase_usage(*self._phase, self._samples))
            self._phase, self._samples = phase, self._samples[-1:]

    def _sample(self) -> None:
        gpu = None if self._gpu is None else self._gpu()
        if self._phase is None:
            # Between phases, keep only the newest sample, with which the next phase begins.
            self._samples.clear()
        self._samples.append(Sample(time.perf_counter(), time.time(), self._processes.read(), gpu))


def _used_s(name: str, before: Sample, after: Sample) -> float:
    used_s = before.groups[name].cpu_s if name in before.groups else 0.0
    return max(0.0, after.groups[name].cpu_s - used_s)


def phase_usage(epoch: int | None, split: str, samples: Sequence[Sample]) -> PhaseUsage:
    """Summarise a phase from its samples, which include one at its start and one at its end."""
    first, last = samples[0], samples[-1]
    wall_s = last.clock_s - first.clock_s
    groups = {}
    for name in last.groups:
        cpu_s = _used_s(name, first, last)
        usages = [sample.groups[name] for sample in samples if name in sample.groups]
        groups[name] = GroupUsage(
            processes_max=max(usage.processes for usage in usages),
            cpu_s=cpu_s,
            cpu_cores=cpu_s / wall_s if wall_s > 0 else 0.0,
        )
    # The first sample covers the time before the phase.
    gpu = [sample.gpu for sample in samples[1:] if sample.gpu is not None]
    memory = [reading.memory_bytes for reading in gpu if reading.memory_bytes is not None]
    busy = [reading.busy_percent for reading in gpu if reading.busy_percent is not None]
    return PhaseUsage(
        epoch,
        split,
        wall_s,
        len(samples),
        groups,
        gpu_percent=fmean(busy) if busy else None,
        gpu_memory_bytes_max=max(memory, default=None),
        ended_at_s=last.at_s,
    )
