"""Memory and cores that the embedded default may use, read from made-up /proc and /sys trees."""

import os

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.host import (
    available_memory_bytes,
    cache_bytes,
    slots,
    usable_cores,
)

GIB = 2**30


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in ("SUPER_CACHE_BYTES", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, "proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:   {16 * GIB // 1024} kB\n")
    return tmp_path


def write(root, name, text):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_control_groups_the_host_decides(root):
    assert available_memory_bytes(root) == 16 * GIB
    assert cache_bytes(root) == 4 * GIB


def test_version_2_limits_count_on_every_level(root):
    write(root, "proc/self/cgroup", "0::/user/job\n")
    write(root, "sys/fs/cgroup/user/job/memory.max", "max\n")
    write(root, "sys/fs/cgroup/user/job/memory.current", "5\n")
    write(root, "sys/fs/cgroup/user/memory.max", f"{8 * GIB}\n")
    write(root, "sys/fs/cgroup/user/memory.current", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/user/memory.stat", f"anon 5\ninactive_file {GIB}\n")
    assert available_memory_bytes(root) == 6 * GIB, "page cache that can be dropped is available"


def test_version_1_limits_count(root):
    write(root, "proc/self/cgroup", "9:cpu,cpuacct:/\n4:memory:/box\n")
    write(root, "sys/fs/cgroup/memory/box/memory.limit_in_bytes", f"{4 * GIB}")
    write(root, "sys/fs/cgroup/memory/box/memory.usage_in_bytes", f"{2 * GIB}")
    assert available_memory_bytes(root) == 2 * GIB


def test_in_a_container_the_mount_is_the_group(root):
    write(root, "proc/self/cgroup", "0::/docker/path-of-the-host\n")
    write(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}")
    write(root, "sys/fs/cgroup/memory.current", f"{GIB}")
    assert available_memory_bytes(root) == GIB


def test_a_full_group_still_gets_a_small_cache(root):
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", "100\n")
    write(root, "sys/fs/cgroup/memory.current", "200\n")
    assert available_memory_bytes(root) == 0
    assert cache_bytes(root) == 64 * 2**20


def test_the_variable_wins(root, monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_BYTES", "1.5gb")
    assert cache_bytes(root) == 3 * GIB // 2
    monkeypatch.setenv("SUPER_CACHE_BYTES", "plenty")
    with pytest.raises(ConfigError, match=r"SUPER_CACHE_BYTES.*'plenty'"):
        cache_bytes(root)


@pytest.mark.parametrize(
    ("name", "text", "cores"),
    [
        ("sys/fs/cgroup/job/cpu.max", "100000 100000\n", 1),
        ("sys/fs/cgroup/job/cpu.max", "50000 100000\n", 1),
        ("sys/fs/cgroup/job/cpu.max", "max 100000\n", None),
        ("sys/fs/cgroup/cpu.max", "100000 100000\n", 1),
    ],
)
def test_cores_within_version_2_quota(root, name, text, cores):
    write(root, "proc/self/cgroup", "0::/job\n")
    write(root, name, text)
    assert usable_cores(root) == (cores or len(os.sched_getaffinity(0)))


def test_cores_within_version_1_quota(root):
    write(root, "proc/self/cgroup", "1:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(root) == len(os.sched_getaffinity(0))
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")
    assert usable_cores(root) == 1


def test_the_pool_has_every_core_and_of_a_quota_what_ranks_leave(root, monkeypatch):
    cores = usable_cores(root)
    assert slots(root) == cores
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    write(root, "proc/self/cgroup", "1:cpu:/\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert slots(root) == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert slots(root) == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    assert slots(root) == 1
