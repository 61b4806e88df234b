"""Samples a run in the background, and at the borders of its passes, and writes each sample as it is taken.

What is read is left to `process_groups` and `gpu`, the arithmetic to `usage`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from superdl.experiments.monitoring.process_groups import ProcessGroups
from superdl.experiments.monitoring.usage import Sample, Utilization, phase_usage
from superdl.experiments.output import RowLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from superdl.experiments.monitoring.gpu import GpuMeter, GpuReading
    from superdl.experiments.monitoring.usage import PhaseUsage
    from superdl.experiments.records import EpochSummary, StepRecord

__all__ = ["UTILIZATION_COLUMNS", "UtilizationMonitor"]

_log = logging.getLogger(__name__)

UTILIZATION_COLUMNS = (
    "at_s",
    "epoch",
    "split",
    "subject",
    "processes",
    "cpu_s",
    "cpu_cores",
    "rss_bytes",
    "pss_bytes",
    "gpu_percent",
    "gpu_memory_bytes",
    "gpu_memory_total_bytes",
)

_INTERVAL_S = 1.0
_MAX_SHARE = 0.01
"""Of one core, for the thread: however dear a sample is, it rests so long that this is kept to."""


class UtilizationMonitor:
    """A listener that samples this process and all that it starts, from its making until it is closed.

    One thread takes a sample every ``interval_s``, or less often where a sample is so dear that the thread
    would take more than a hundredth of a core; the main thread takes one more at each border of a pass. A
    file that cannot be written ends the writing, not the training; `failure` then says why.
    """

    def __init__(
        self,
        directory: Path,
        gpu: GpuMeter | None = None,
        *,
        name: str = "utilization",
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """Make ``<name>.jsonl`` and ``<name>.csv`` in ``directory`` and begin."""
        self.failure: str | None = None
        self._rows = RowLog(directory, name, UTILIZATION_COLUMNS)
        self._gpu = gpu
        self._interval_s = interval_s
        self._processes = ProcessGroups()
        self._lock = threading.Lock()
        self._phase: tuple[int | None, str] | None = (None, "start")
        self._samples: list[Sample] = []  # of the present phase
        self._phases: list[PhaseUsage] = []
        self._last: Sample | None = None
        self._taken = 0
        self._cpu_s = 0.0
        self._ended = threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="superdl-utilization", daemon=True)
        self._thread.start()

    @property
    def last_gpu(self) -> GpuReading | None:
        """The GPU as it was last seen; None where there is none."""
        return None if self._last is None else self._last.gpu

    def utilization(self) -> Utilization:
        """Return all phases that have ended."""
        with self._lock:
            return Utilization(self._interval_s, self._taken, self._cpu_s, tuple(self._phases))

    def on_pass_start(self, epoch: int, split: str, batches: int) -> None:  # noqa: ARG002  # as listeners are called
        """End the phase before; a pass begins with the same sample."""
        self._turn((epoch, split))

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Nothing to do: time decides when to sample."""

    def on_epoch_end(self, summary: EpochSummary) -> None:  # noqa: ARG002  # the same
        """End the last pass of the epoch."""
        self._turn(None)

    def close(self) -> None:
        """End the thread and the phase that goes on, and close the files and the GPU's meter."""
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
            with self._lock:
                rest_s = rest_after(self._sample(), self._interval_s)

    def _turn(self, phase: tuple[int | None, str] | None) -> None:
        """Take the sample with which one phase ends and the next begins."""
        with self._lock:
            self._sample()
            if self._phase is not None:
                self._phases.append(phase_usage(*self._phase, self._samples))
            self._phase = phase
            self._samples = [] if self._last is None else [self._last]

    def _sample(self) -> float:
        """Take a sample and write it; returns the CPU seconds of this thread that it took."""
        begun_s = time.thread_time()
        sample = Sample(
            clock_s=time.perf_counter(),
            at_s=time.time(),
            groups=self._processes.read(),
            gpu=None if self._gpu is None else self._gpu.read(),
        )
        rows = list(self._row_values(sample, self._last))
        self._last = sample
        self._taken += 1
        if self._phase is not None:
            self._samples.append(sample)
        if self.failure is None:
            try:
                self._rows.write(rows)
            except OSError as error:
                self.failure = f"utilisation was not written to the end: {error}"
                _log.warning("%s", self.failure)
        took_s = time.thread_time() - begun_s
        self._cpu_s += took_s
        return took_s

    def _row_values(self, sample: Sample, before: Sample | None) -> Iterator[dict[str, object]]:
        """One row for each group of processes and one for the GPU; columns that are not its own are empty."""
        epoch, split = (None, None) if self._phase is None else self._phase
        head = {"at_s": sample.at_s, "epoch": epoch, "split": split}
        for name, group in sample.groups.items():
            yield (
                dict.fromkeys(UTILIZATION_COLUMNS)
                | head
                | {
                    "subject": name,
                    "processes": group.processes,
                    "cpu_s": group.cpu_s,
                    "cpu_cores": None if before is None else _cores(name, sample, before),
                    "rss_bytes": group.rss_bytes,
                    "pss_bytes": group.pss_bytes,
                }
            )
        if sample.gpu is not None:
            yield (
                dict.fromkeys(UTILIZATION_COLUMNS)
                | head
                | {
                    "subject": "gpu",
                    "gpu_percent": sample.gpu.busy_percent,
                    "gpu_memory_bytes": sample.gpu.memory_bytes,
                    "gpu_memory_total_bytes": sample.gpu.memory_total_bytes,
                }
            )


def rest_after(sample_s: float, interval_s: float) -> float:
    """How long the thread rests after a sample that took so much CPU."""
    return max(interval_s, sample_s / _MAX_SHARE)


def _cores(name: str, sample: Sample, before: Sample) -> float | None:
    """CPU seconds per second since the sample before."""
    passed_s = sample.clock_s - before.clock_s
    used_s = before.groups[name].cpu_s if name in before.groups else 0.0
    return max(0.0, sample.groups[name].cpu_s - used_s) / passed_s if passed_s > 0 else None
