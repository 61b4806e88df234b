"""Sample resource use, also at the borders of passes, and summarise it by phase."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from superdl.experiments.monitoring.readings import ProcessGroups
from superdl.experiments.output import RowLog
from superdl.experiments.records import Listener
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from superdl.experiments.monitoring.readings import GpuMeter, GpuReading, GroupReading
    from superdl.experiments.records import CountedLoader, EpochSummary
    from superdl.sampler.stats import WorkerUse

_log = logging.getLogger(__name__)

UTILIZATION_COLUMNS = (
    *("at_s", "epoch", "split", "subject", "processes", "cpu_s", "cpu_cores", "rss_bytes", "pss_bytes"),
    *("gpu_percent", "gpu_memory_bytes", "gpu_memory_total_bytes"),
)
_INTERVAL_S = 1.0
_MAX_SHARE = 0.01  # bound for the thread, in cores: after a costly sample it sleeps longer


class Sample(NamedTuple):
    """One sample; ``clock_s`` is of a monotonic clock, ``at_s`` a Unix timestamp."""

    clock_s: float
    at_s: float
    groups: dict[str, GroupReading]
    gpu: GpuReading | None


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """A phase's use by a group of processes; ``cpu_cores`` is CPU seconds per second."""

    processes_max: int
    cpu_s: float
    cpu_cores: float
    rss_bytes_max: int
    pss_bytes_max: int | None


@dataclass(frozen=True, slots=True)
class PhaseUsage:
    """A phase: ``start`` (``epoch`` is None), or a pass, ``train`` or ``val``.

    CPU seconds are exact to the system's tick; maxima and the GPU's mean are over ``samples``, but for
    shares of memory (PSS), which are read at the phase's borders. A
    missing group or GPU is absent, not 0.
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

    A thread takes samples, and the main thread one at each border of a pass. A file that cannot be
    written stops the writing, not the training; `failure` then has the reason.
    """

    def __init__(
        self,
        directory: Path,
        gpu: GpuMeter | None = None,
        *,
        name: str = "utilization",
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """Create ``<name>.jsonl`` in ``directory`` and start sampling."""
        self.failure: str | None = None
        # The last reading; None without a GPU.
        self.last_gpu: GpuReading | None = None
        self._rows = RowLog(directory, name)
        self._gpu = gpu
        self._interval_s = interval_s
        self._processes = ProcessGroups()
        self._lock = threading.Lock()
        self._phase: tuple[int | None, str] | None = (None, "start")
        self._samples: list[Sample] = []  # of the present phase, or the last one taken
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
        """End the previous phase; the pass begins with the same sample."""
        self._turn((epoch, split))

    def on_epoch_end(self, summary: EpochSummary) -> None:  # noqa: ARG002  # the same
        """End the last pass of the epoch."""
        self._turn(None)

    def close(self) -> None:
        """Stop the thread, end the current phase, and close the files and the GPU's meter."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._turn(None)
        self._rows.close()
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
        """Take the sample that ends one phase and begins the next."""
        with self._lock:
            # Not in each sample: for the PSS the system walks all pages of the processes.
            self._sample(with_pss=True)
            if self._phase is not None:
                self._phases.append(phase_usage(*self._phase, self._samples))
            self._phase, self._samples = phase, self._samples[-1:]

    def _sample(self, *, with_pss: bool) -> None:
        self.last_gpu = None if self._gpu is None else self._gpu.read()
        groups = self._processes.read(with_pss=with_pss)
        sample = Sample(time.perf_counter(), time.time(), groups, self.last_gpu)
        rows = list(self._row_values(sample, self._samples[-1] if self._samples else None))
        if self._phase is None:
            # Between phases only the newest is kept, to begin the next one.
            self._samples.clear()
        self._samples.append(sample)
        if self.failure is None:
            try:
                self._rows.write(rows)
            except OSError as error:
                self.failure = f"utilisation was not written to the end: {error}"
                _log.warning("%s", self.failure)

    def _row_values(self, sample: Sample, before: Sample | None) -> Iterator[dict[str, object]]:
        epoch, split = self._phase or (None, None)
        empty = dict.fromkeys(UTILIZATION_COLUMNS) | {"at_s": sample.at_s, "epoch": epoch, "split": split}
        for name, group in sample.groups.items():
            cores = None
            if before is not None:
                cores = _cpu_s(name, before, sample) / (sample.clock_s - before.clock_s)
            yield empty | {"subject": name, "cpu_cores": cores} | asdict(group)
        if sample.gpu is not None:
            yield empty | {
                "subject": "gpu",
                "gpu_percent": sample.gpu.busy_percent,
                "gpu_memory_bytes": sample.gpu.memory_bytes,
                "gpu_memory_total_bytes": sample.gpu.memory_total_bytes,
            }


def _cpu_s(name: str, before: Sample, after: Sample) -> float:
    used_s = before.groups[name].cpu_s if name in before.groups else 0.0
    return max(0.0, after.groups[name].cpu_s - used_s)


def phase_usage(epoch: int | None, split: str, samples: Sequence[Sample]) -> PhaseUsage:
    """Summarise a phase from its samples, including those at start and end."""
    first, last = samples[0], samples[-1]
    wall_s = last.clock_s - first.clock_s
    groups = {}
    for name in last.groups:
        cpu_s = _cpu_s(name, first, last)
        usages = [sample.groups[name] for sample in samples if name in sample.groups]
        pss = (usage.pss_bytes for usage in usages if usage.pss_bytes is not None)
        groups[name] = GroupUsage(
            processes_max=max(usage.processes for usage in usages),
            cpu_s=cpu_s,
            cpu_cores=cpu_s / wall_s if wall_s > 0 else 0.0,
            rss_bytes_max=max(usage.rss_bytes for usage in usages),
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


# ------------------------------------------------------------------------------ workers on other hosts


@dataclass(frozen=True, slots=True)
class HostUsage:
    """The use of a host's worker from the first training step to the last epoch's end."""

    host: str
    slots: int
    wall_s: float
    cpu_s: float
    cpu_cores: float  # CPU seconds per second of wall_s


def host_usages(
    before: Iterable[WorkerUse], after: Iterable[WorkerUse], wall_s: float
) -> tuple[HostUsage, ...]:
    """Return the use of each remote host's worker, by name, between two readings."""
    # A worker that was started in between counts from its start.
    cpu_before = {worker.name: worker.cpu_s for worker in before}
    usages = []
    for worker in after:
        used_s = worker.cpu_s - cpu_before.get(worker.name, 0.0)
        # The counter of a worker that restarted begins at zero.
        cpu_s = used_s if used_s >= 0 else worker.cpu_s
        # The CPU of the coordinator's own worker is part of the coordinator's.
        if worker.name != "local" and wall_s > 0:
            usages.append(HostUsage(worker.name, worker.slots, wall_s, cpu_s, cpu_s / wall_s))
    return tuple(usages)


def workers_of(loader: CountedLoader) -> Sequence[WorkerUse]:
    """Return the workers of a loader's coordinator; empty if it does not answer."""
    try:
        workers: Sequence[WorkerUse] = getattr(loader.job_stats(), "workers", ())
    except SuperError:
        return ()
    return workers
