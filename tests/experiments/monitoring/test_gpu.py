"""The GPU's meter: absent without one, clear about why it cannot read one, and right about what NVML tells.

No machine of the tests has a GPU, so NVML's library is one of ours, under the real binding.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

from superdl.experiments.monitoring.readings import GpuMeter, meter_of
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


def test_a_cpu_has_no_meter():
    assert meter_of(torch.device("cpu")) is None


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ConfigError, match=r"nvidia-ml-py.*pip install 'superdl\[train\]'"):
        GpuMeter("1234")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_driver_that_is_said():
    with pytest.raises(ConfigError, match="NVML does not start"):
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
        "no GPU utilisation: NVML gives no access to GPU-0000 (Not Found); see nvidia-smi -L",
    ]
