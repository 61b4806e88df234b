"""One look: processes sorted into groups with their CPU time, and a GPU's figures as NVML tells them.

No machine of the tests has a GPU, so NVML's library is one of ours, under the real binding.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

from superdl.experiments.monitoring.readings import GpuMeter, ProcessGroups, group_of, meter_of
from superdl.super_wire.errors import ConfigError

NVML = r"""
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int gpu, memory; } rates_t;
int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "Not Supported"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)uuid;
    if (!strcmp(uuid, "GPU-1234")) { *device = (void *)1; return 0; }
    if (!strcmp(uuid, "MIG-5678")) { *device = (void *)2; return 0; }
    return 6;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->total = 80ull << 30; memory->used = 5ull << 30; memory->free = 75ull << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) {
    rates->gpu = 37; rates->memory = 12;
    return device == (void *)1 ? 0 : 3;
}
"""
LOOK = """
from superdl.experiments.monitoring.readings import GpuMeter
from superdl.super_wire.errors import ConfigError
for uuid in ("1234", "GPU-1234", "MIG-5678", "0000"):
    try:
        meter = GpuMeter(uuid)
    except ConfigError as error:
        print(error)
        continue
    reading = meter.read()
    print(reading.busy_percent, reading.memory_bytes, reading.memory_total_bytes)
    meter.close()
"""

TRAINER = ["/v/bin/python", "/v/bin/superdl", "run", "digits"]
BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


def test_a_cpu_has_no_meter_and_without_the_package_it_is_named(monkeypatch):
    assert meter_of(torch.device("cpu")) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ConfigError, match=r"nvidia-ml-py.*pip install 'superdl\[train\]'"):
        GpuMeter("1234")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_driver_that_is_said():
    with pytest.raises(ConfigError, match="NVML does not give"):
        GpuMeter("1234")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to make NVML's library with")
def test_what_nvml_tells_is_read_and_what_it_does_not_is_absent(tmp_path):
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(
        [shutil.which("cc"), "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True, timeout=60
    )
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    gib = 1 << 30
    assert done.stdout.splitlines() == [
        f"37.0 {5 * gib} {80 * gib}",
        f"37.0 {5 * gib} {80 * gib}",
        f"None {5 * gib} {80 * gib}",
        "no GPU utilisation: NVML does not give GPU-0000 (Not Found); see nvidia-smi",
    ]


@pytest.mark.parametrize(
    ("name", "command", "group"),
    [
        ("superdl", TRAINER, "workers"),
        ("python", ["python", "-c", "from multiprocessing.forkserver import main; main(5)"], "workers"),
        ("python", ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], "workers"),
        ("python", ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], "other"),
        (
            "python",
            ["python", "-P", "-m", "superdl.coordinator.embedded", "--directory", "/run/x"],
            "coordinator",
        ),
        ("python", ["python", "-P", "-m", "superdl.coordinator", "--listen", "unix:/x"], "coordinator"),
        ("python", ["python", "-m", "superdl.coordinator.executors.ray_driver"], "coordinator"),
        ("python", ["python", "-P", "-m", "superdl.lambda_prefetch.worker", "--slots", "2"], "functions"),
        ("python", ["python", "-P", "-m", "superdl.lambda_prefetch.worker.slot", "a:b", "0"], "functions"),
        ("valkey-server", ["/v/bin/valkey-server unixsocket:/x"], "cache"),
        ("x", ["/usr/bin/redis-server", "x.conf"], "cache"),
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
        assert running.rss_bytes > 1_000_000
        process.communicate(b"\n")
    ended = groups.read()
    assert ended["other"].cpu_s >= running.cpu_s
    assert ended["other"].processes == running.processes - 1
    assert ended["trainer"].processes == 1
    assert set(ended) == {*before, "other"}, "what is not there is absent, not zero"


def test_pss_is_read_when_its_cost_allows():
    groups = ProcessGroups()
    pss = groups.read()["trainer"].pss_bytes
    assert 1_000_000 < pss <= groups.read()["trainer"].rss_bytes
    groups._pss_due_s = float("inf")
    assert groups.read()["trainer"].pss_bytes is None
