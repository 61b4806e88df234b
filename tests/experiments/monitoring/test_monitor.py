"""The monitor over this very process: phases, files, its thread, a full disk."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from superdl.experiments.monitoring import GpuReading, UtilizationMonitor
from superdl.experiments.monitoring.monitor import (
    UTILIZATION_COLUMNS,
    GroupUsage,
    PhaseUsage,
    Sample,
    phase_usage,
    rest_after,
)
from superdl.experiments.monitoring.readings import GroupReading

if TYPE_CHECKING:
    from pathlib import Path


class CountingGpu:
    """Stands for a GPU: tells how often it was read, and lets a test wait for a reading."""

    def __init__(self) -> None:
        self.read_by: list[str] = []
        self.closed = False
        self.in_background = threading.Event()

    def read(self) -> GpuReading:
        self.read_by.append(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            self.in_background.set()
        return GpuReading(float(len(self.read_by)), 1000 * len(self.read_by), 80_000)

    def close(self) -> None:
        self.closed = True


def rows_of(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "utilization.jsonl").read_text().splitlines()]


def test_phases_follow_the_passes_and_each_sample_is_written(tmp_path):
    monitor = UtilizationMonitor(tmp_path, interval_s=60.0)
    monitor.on_pass_start(0, "train", 3)
    monitor.on_pass_start(0, "val", 1)
    monitor.on_epoch_end(None)
    monitor.on_pass_start(1, "train", 3)
    monitor.close()
    monitor.close()
    used = monitor.utilization()
    phases = [(None, "start"), (0, "train"), (0, "val"), (1, "train")]
    assert [(phase.epoch, phase.split) for phase in used.phases] == phases
    assert all("trainer" in phase.groups and phase.samples == 2 for phase in used.phases)
    rows = [row for row in rows_of(tmp_path) if row["subject"] == "trainer"]
    assert [(row["epoch"], row["split"]) for row in rows] == [
        *phases[:1],
        *phases[:3],
        (None, None),
        phases[3],
    ]
    assert all(tuple(row) == UTILIZATION_COLUMNS for row in rows)
    assert rows[0]["cpu_cores"] is None
    assert rows[1]["cpu_cores"] >= 0
    assert "gpu" not in {row["subject"] for row in rows_of(tmp_path)}, "no GPU: absent, not zero"
    assert monitor.last_gpu is None


def test_the_thread_samples_and_the_last_reading_of_the_gpu_is_told(tmp_path):
    gpu = CountingGpu()
    monitor = UtilizationMonitor(tmp_path, gpu, interval_s=0.001)
    assert gpu.in_background.wait(30)
    monitor.on_pass_start(0, "train", 1)
    assert monitor.last_gpu.memory_total_bytes == 80_000
    monitor.close()
    assert gpu.closed
    assert "superdl-utilization" not in {thread.name for thread in threading.enumerate()}
    rows = [row for row in rows_of(tmp_path) if row["subject"] == "gpu"]
    assert [row["gpu_percent"] for row in rows] == [float(n + 1) for n in range(len(gpu.read_by))]
    assert monitor.last_gpu.memory_bytes == rows[-1]["gpu_memory_bytes"]
    assert monitor.utilization().phases[-1].gpu_memory_bytes_max == rows[-1]["gpu_memory_bytes"]


def test_however_dear_a_sample_is_a_hundredth_of_a_core_is_not_passed():
    assert rest_after(0.001, 1.0) == 1.0
    for sample_s in (0.02, 0.5, 3.0):
        assert sample_s / (sample_s + rest_after(sample_s, 1.0)) <= 0.01


def test_a_full_disk_ends_the_writing_and_not_the_run(tmp_path):
    (tmp_path / "utilization.jsonl").symlink_to("/dev/full")
    monitor = UtilizationMonitor(tmp_path, interval_s=60.0)
    monitor.on_pass_start(0, "train", 1)
    monitor.close()
    assert "No space left on device" in monitor.failure
    assert len(monitor.utilization().phases) == 2


def sample(clock_s: float, groups: dict[str, tuple], gpu: GpuReading | None = None) -> Sample:
    return Sample(clock_s, 1e9 + clock_s, {name: GroupReading(*row) for name, row in groups.items()}, gpu)


def test_a_phase_has_the_difference_of_cpu_and_the_highest_memory_and_the_gpu_without_what_it_did_before():
    usage = phase_usage(
        3,
        "train",
        [
            sample(10.0, {"trainer": (1, 5.0, 100, 90)}, GpuReading(100.0, 9, 10)),
            sample(
                11.0, {"trainer": (1, 5.5, 300, None), "workers": (2, 0.2, 50, 40)}, GpuReading(20.0, 5, 10)
            ),
            sample(
                14.0, {"trainer": (1, 7.0, 200, 80), "workers": (0, 0.4, 0, None)}, GpuReading(None, 7, 10)
            ),
        ],
    )
    trainer, workers = GroupUsage(1, 2.0, 0.5, 300, 90), GroupUsage(2, 0.4, 0.1, 50, 40)
    groups = {"trainer": trainer, "workers": workers}
    assert usage == PhaseUsage(3, "train", 4.0, 3, groups, 20.0, 7, ended_at_s=1e9 + 14.0)
    same = sample(1.0, {"trainer": (1, 5.0, 100, 90)})
    assert phase_usage(None, "start", [same, same]).groups["trainer"].cpu_cores == 0.0
