"""Measure the resources used by a run: CPU and memory by group of processes, and the GPU through NVML."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from superdl.experiments.records import Listener
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from superdl.experiments.records import EpochSummary

_INTERVAL_S = 1.0
_MAX_SHARE = 0.01  # bound for the thread, in cores: after a costly sample it sleeps longer

# In the order of tables.
GROUPS = ("trainer", "workers", "functions", "cache", "coordinator", "other")

_FUNCTIONS = ("superdl-worker", "superdl-slot")
_SERVERS = ("valkey-server", "redis-server")
_MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The current resource use of a group."""

    processes: int
    # User and system, since reading began. Ended processes count up to their last reading.
    cpu_s: float
    # Divides shared memory among its users, so that it adds up; None if not read, or not on Linux.
    pss_bytes: int | None


class ProcessGroups:
    """The descendants of a process, sorted into `GROUPS`, and their CPU time from now on."""

    def __init__(self, trainer: psutil.Process | None = None, *, name: str = "trainer") -> None:
        """Begin to count the CPU time of ``trainer``, which is in the group ``name``."""
        self._trainer = trainer or psutil.Process()
        self._name = name
        self._command = self._trainer.cmdline()
        self._before_s = _cpu_s(self._trainer)
        # Group and CPU seconds of each process seen, by id and start.
        self._seen: dict[psutil.Process, tuple[str, float]] = {}

    def read(self, *, with_pss: bool = False) -> dict[str, GroupReading]:
        """Read every group that has or had a process."""
        running: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in (self._trainer, *self._trainer.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # ended: its last reading counts
                group = self._group_of(process)
                self._seen[process] = (group, _cpu_s(process))
                if process.memory_info().rss:  # else it has ended and waits for its parent
                    running[group].append(process)
        used: dict[str, float] = defaultdict(float, {self._seen[self._trainer][0]: -self._before_s})
        for group, cpu_s in self._seen.values():
            used[group] += cpu_s
        return {
            name: GroupReading(
                len(running[name]), used[name], _pss_bytes(running[name]) if with_pss else None
            )
            for name in GROUPS
            if name in used
        }

    def _group_of(self, process: psutil.Process) -> str:
        # Each time: between fork and exec a child still has its parent's command.
        if process == self._trainer:
            return self._name
        try:
            return group_of(process.name(), process.cmdline(), self._command)
        except psutil.ZombieProcess:  # it has no command, but keeps its group
            return self._seen.get(process, ("other", 0.0))[0]


def group_of(name: str, command: Sequence[str], trainers: Sequence[str]) -> str:
    """Return the group of a descendant, given its name and both commands."""
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


def _pss_bytes(processes: Sequence[psutil.Process]) -> int | None:
    with contextlib.suppress(psutil.Error, AttributeError):  # one has just ended; only Linux has it
        return sum(process.memory_full_info().pss for process in processes)
    return None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU, over all its processes. Unavailable values (as with MIG) are None."""

    # The share of the driver's last sample period (a sixth of a second to a second) in
    # which some kernel ran: 100 means never idle, not fully used.
    busy_percent: float | None
    memory_bytes: int | None


def meter_of(device: torch.device) -> GpuMeter | None:
    """Return a meter for the GPU ``device``, or None for other devices."""
    if device.type != "cuda":
        return None
    import torch  # always available in a run; reading reports needs none

    return GpuMeter(str(torch.cuda.get_device_properties(device).uuid))


class GpuMeter:
    """A meter for one GPU, identified by its UUID.

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
                f"no GPU utilisation: NVML cannot access {name} ({error}); see nvidia-smi"
            ) from error

    def read(self) -> GpuReading:
        """Read the GPU now, which takes well below a millisecond."""
        memory = self._known(self._nvml.nvmlDeviceGetMemoryInfo)
        rates = self._known(self._nvml.nvmlDeviceGetUtilizationRates)
        return GpuReading(
            busy_percent=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
        )

    def _known(self, query: Callable[[Any], Any]) -> Any:
        """Return NVML's answer, or None if this GPU or its driver does not support the query."""
        try:
            return query(self._handle)
        except self._nvml.NVMLError:
            return None


# ---------------------------------------------------------------------------------- samples and phases


class Sample(NamedTuple):
    """One sample, taken at ``clock_s`` on a monotonic clock, and at the Unix time ``at_s``."""

    clock_s: float
    at_s: float
    groups: dict[str, GroupReading]
    gpu: GpuReading | None


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Resource use of a group of processes in a phase. ``cpu_cores`` is CPU seconds per second."""

    processes_max: int
    cpu_s: float
    cpu_cores: float
    pss_bytes_max: int | None


@dataclass(frozen=True, slots=True)
class PhaseUsage:
    """Resource use in one phase: ``start``, whose ``epoch`` is None, or a ``train`` or ``val`` pass.

    CPU seconds are exact to the system's tick. Maxima and the GPU's mean are over ``samples``, except
    for shares of memory (PSS), which are read at the start and the end of the phase. A missing group or
    GPU is absent, not 0.
    """

    epoch: int | None
    split: str
    wall_s: float
    samples: int
    groups: dict[str, GroupUsage]
    gpu_percent: float | None
    gpu_memory_bytes_max: int | None
    ended_at_s: float = 0.0  # a Unix timestamp


@dataclass(frozen=True, slots=True)
class Utilization:
    """All completed phases of a run."""

    phases: tuple[PhaseUsage, ...]


class UtilizationMonitor(Listener):
    """A listener that samples this process and its descendants until `close`.

    A thread takes samples, and the main thread takes one at the start and the end of each pass.
    """

    def __init__(self, gpu: GpuMeter | None = None, *, interval_s: float = _INTERVAL_S) -> None:
        """Start sampling."""
        self._gpu = gpu
        self._interval_s = interval_s
        self._processes = ProcessGroups()
        self._lock = threading.Lock()
        self._phase: tuple[int | None, str] | None = (None, "start")
        self._samples: list[Sample] = []  # of the current phase, or the last one taken
        self._phases: list[PhaseUsage] = []
        self._ended = threading.Event()
        self._sample(with_pss=True)
        self._thread = threading.Thread(target=self._run, name="superdl-utilization", daemon=True)
        self._thread.start()

    def utilization(self) -> Utilization:
        """Return all completed phases."""
        with self._lock:
            return Utilization(tuple(self._phases))

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # as listeners are called
        """End the previous phase. The pass starts with the same resource reading."""
        self._turn((epoch, split))

    def on_epoch_end(self, summary: EpochSummary) -> None:  # noqa: ARG002  # the same
        """End the last pass of the epoch."""
        self._turn(None)

    def close(self) -> None:
        """Stop the thread, end the current phase, and close the GPU meter."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._turn(None)
        if self._gpu is not None:
            self._gpu.close()

    def _run(self) -> None:
        rest_s = self._interval_s
        while not self._ended.wait(rest_s):
            begun_s = time.thread_time()
            with self._lock:
                self._sample(with_pss=False)
            # Sampling takes at most a hundredth of a core.
            rest_s = max(self._interval_s, (time.thread_time() - begun_s) / _MAX_SHARE)

    def _turn(self, phase: tuple[int | None, str] | None) -> None:
        """Take the sample that ends one phase and starts the next."""
        with self._lock:
            # Not in each sample: for the PSS the system walks all pages of the processes.
            self._sample(with_pss=True)
            if self._phase is not None:
                self._phases.append(phase_usage(*self._phase, self._samples))
            self._phase, self._samples = phase, self._samples[-1:]

    def _sample(self, *, with_pss: bool) -> None:
        gpu = None if self._gpu is None else self._gpu.read()
        groups = self._processes.read(with_pss=with_pss)
        if self._phase is None:
            # Between phases only the newest is kept, to begin the next one.
            self._samples.clear()
        self._samples.append(Sample(time.perf_counter(), time.time(), groups, gpu))


def _used_s(name: str, before: Sample, after: Sample) -> float:
    used_s = before.groups[name].cpu_s if name in before.groups else 0.0
    return max(0.0, after.groups[name].cpu_s - used_s)


def phase_usage(epoch: int | None, split: str, samples: Sequence[Sample]) -> PhaseUsage:
    """Summarise a phase from its samples, including those at its start and end."""
    first, last = samples[0], samples[-1]
    wall_s = last.clock_s - first.clock_s
    groups = {}
    for name in last.groups:
        cpu_s = _used_s(name, first, last)
        usages = [sample.groups[name] for sample in samples if name in sample.groups]
        pss = (usage.pss_bytes for usage in usages if usage.pss_bytes is not None)
        groups[name] = GroupUsage(
            processes_max=max(usage.processes for usage in usages),
            cpu_s=cpu_s,
            cpu_cores=cpu_s / wall_s if wall_s > 0 else 0.0,
            pss_bytes_max=max(pss, default=None),
        )
    # The first sample covers GPU use before the phase.
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
