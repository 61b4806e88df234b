"""The monitor of this process: phases, the sampling thread, and groups of processes."""

import subprocess
import sys
import threading

import pytest
import torch

from superdl.experiments.monitoring import (
    GpuReading,
    ProcessGroups,
    UtilizationMonitor,
    gpu_meter,
    group_of,
)

TRAINER = ["/v/bin/python", "/v/bin/superdl", "run", "digits"]
BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


def test_the_thread_samples_the_gpu_in_each_phase():
    readings, in_background = [], threading.Event()

    def read_gpu():
        readings.append(GpuReading(float(len(readings) + 1), 1000 * (len(readings) + 1)))
        if threading.current_thread() is not threading.main_thread():
            in_background.set()
        return readings[-1]

    monitor = UtilizationMonitor(read_gpu, interval_s=0.001)
    assert in_background.wait(30)
    monitor.on_pass_start(0, "train", 1)
    monitor.close()
    assert "superdl-utilization" not in {thread.name for thread in threading.enumerate()}
    start, train = monitor.phases()
    assert start.samples + train.samples == len(readings) + 1, "both include the sample between them"
    assert train.gpu_memory_bytes_max == 1000 * len(readings)
    assert start.gpu_percent == (start.samples + 2) / 2, "the first reading covers the time before"


def test_a_gpu_that_stops_answering_ends_no_run(monkeypatch):
    answers = [1000]
    monkeypatch.setattr(torch.cuda, "device_memory_used", lambda _: answers.pop())
    monkeypatch.setattr(torch.cuda, "utilization", lambda _: answers.pop())
    assert gpu_meter(torch.device("cuda"))() == GpuReading(None, None)


@pytest.mark.parametrize(
    ("name", "command", "group"),
    [
        ("superdl", TRAINER, "workers"),
        ("python", ["python", "-c", "from multiprocessing.forkserver import main; main(5)"], "workers"),
        ("python", ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], "other"),
        ("python", ["python", "-P", "-m", "superdl.coordinator", "--listen", "unix:/x"], "coordinator"),
        ("python", ["python", "-P", "-m", "superdl.lambda_prefetch.worker", "--slots", "2"], "functions"),
        ("superdl-slot", ["python", "-P", "-m", "superdl.coordinator.embedded", "--x"], "functions"),
        ("superdl-worker", ["python", "-P", "-m", "superdl.coordinator.embedded", "--x"], "functions"),
        ("valkey-server", ["/v/bin/valkey-server unixsocket:/x"], "cache"),
        ("git", ["git", "-m"], "other"),
        ("gone", [], "other"),
    ],
)
def test_the_group_of_a_process(name, command, group):
    assert group_of(name, command, TRAINER) == group


def test_cpu_time_counts_from_the_start_and_remains_when_a_process_exits():
    groups = ProcessGroups()
    before = groups.read()
    assert before["trainer"].cpu_s < 1.0, "excludes earlier tests"
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"done\n"
        running = groups.read()["other"]
        assert running.processes >= 1
        assert running.cpu_s >= 0.19  # the system counts by ticks of 10 ms
        process.communicate(b"\n")
    ended = groups.read()
    assert ended["other"].cpu_s >= running.cpu_s
    assert ended["other"].processes == running.processes - 1
    assert ended["trainer"].processes == 1
    assert set(ended) == {*before, "other"}, "groups without processes are absent"
