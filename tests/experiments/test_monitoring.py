"""The monitor over this very process: phases and its thread; processes sorted into groups."""

import subprocess
import sys
import threading

import pytest

from superdl.experiments.monitoring import (
    GpuReading,
    ProcessGroups,
    UtilizationMonitor,
    group_of,
)

TRAINER = ["/v/bin/python", "/v/bin/superdl", "run", "digits"]
BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


class CountingGpu:
    """Stands for a GPU: tells how often it was read, and lets a test wait for a reading."""

    def __init__(self):
        self.read_by = []
        self.closed = False
        self.in_background = threading.Event()

    def read(self):
        self.read_by.append(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            self.in_background.set()
        return GpuReading(float(len(self.read_by)), 1000 * len(self.read_by))

    def close(self):
        self.closed = True


def test_the_thread_samples_the_gpu_for_the_phases():
    gpu = CountingGpu()
    monitor = UtilizationMonitor(gpu, interval_s=0.001)
    assert gpu.in_background.wait(30)
    monitor.on_pass_start(0, "train", 1)
    monitor.close()
    assert gpu.closed
    assert "superdl-utilization" not in {thread.name for thread in threading.enumerate()}
    start, train = monitor.utilization().phases
    assert start.samples + train.samples == len(gpu.read_by) + 1, "the sample between them is in both"
    assert train.gpu_memory_bytes_max == 1000 * len(gpu.read_by)
    assert start.gpu_percent == (start.samples + 2) / 2, "the first reading is of the time before"


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


def test_cpu_time_is_counted_from_the_begin_and_stays_when_a_process_ends():
    groups = ProcessGroups()
    before = groups.read()
    assert before["trainer"].cpu_s < 1.0, "what the tests did before is not in it"
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
    assert set(ended) == {*before, "other"}, "what is not there is absent, not zero"
