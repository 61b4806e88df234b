"""From samples to what a phase used."""

from __future__ import annotations

from superdl.experiments.monitoring.monitor import Sample, phase_usage
from superdl.experiments.monitoring.readings import GpuReading, GroupReading


def sample(clock_s: float, groups: dict[str, tuple], gpu: GpuReading | None = None) -> Sample:
    return Sample(clock_s, 1e9 + clock_s, {name: GroupReading(*row) for name, row in groups.items()}, gpu)


def test_cpu_is_the_difference_and_memory_the_highest():
    usage = phase_usage(
        3,
        "train",
        [
            sample(10.0, {"trainer": (1, 5.0, 100, 90)}),
            sample(11.0, {"trainer": (1, 5.5, 300, None), "workers": (2, 0.2, 50, 40)}),
            sample(14.0, {"trainer": (1, 7.0, 200, 80), "workers": (0, 0.4, 0, None)}),
        ],
    )
    assert (usage.epoch, usage.split, usage.wall_s, usage.samples) == (3, "train", 4.0, 3)
    trainer, workers = usage.groups["trainer"], usage.groups["workers"]
    assert (trainer.cpu_s, trainer.cpu_cores) == (2.0, 0.5)
    assert (trainer.rss_bytes_max, trainer.pss_bytes_max) == (300, 90)
    assert (workers.processes_max, workers.cpu_s, workers.cpu_cores) == (2, 0.4, 0.1)
    assert usage.cpu_s == 2.4
    assert (usage.gpu_percent, usage.gpu_memory_bytes_max) == (None, None)


def test_a_gpu_is_averaged_without_what_it_did_before():
    readings = [GpuReading(100.0, 9, 10), GpuReading(20.0, 5, 10), GpuReading(None, 7, 10)]
    usage = phase_usage(0, "val", [sample(float(at), {}, gpu) for at, gpu in enumerate(readings)])
    assert (usage.gpu_percent, usage.gpu_memory_bytes_max) == (20.0, 7)


def test_a_phase_of_no_time_has_no_infinite_figure():
    same = sample(1.0, {"trainer": (1, 5.0, 100, 90)})
    assert phase_usage(None, "start", [same, same]).groups["trainer"].cpu_cores == 0.0
