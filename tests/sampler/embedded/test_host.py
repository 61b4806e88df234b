"""Memory and cores for the embedded default, read from artificial /proc and /sys trees."""

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.host import available_memory_bytes, cache_bytes, slots, usable_cores

GIB = 2**30


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in ("SUPER_CACHE_BYTES", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, {"proc/meminfo": f"MemTotal: 99 kB\nMemAvailable:   {16 * GIB // 1024} kB\n"})
    return tmp_path


def write(root, texts):
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


GROUPS = "proc/self/cgroup"
V1, V2 = "sys/fs/cgroup/memory/box/memory", "sys/fs/cgroup"
NESTED = {
    GROUPS: "0::/user/job",
    f"{V2}/user/job/memory.max": "max",
    f"{V2}/user/job/memory.current": "5",
    f"{V2}/user/memory.max": f"{8 * GIB}",
    f"{V2}/user/memory.current": f"{3 * GIB}",
    f"{V2}/user/memory.stat": f"anon 5\ninactive_file {GIB}",
}
VERSION_1 = {
    GROUPS: "9:cpu,cpuacct:/\n4:memory:/box",
    f"{V1}.limit_in_bytes": f"{4 * GIB}",
    f"{V1}.usage_in_bytes": f"{2 * GIB}",
}


def mounted(maximum, current):
    return {GROUPS: "0::/docker/x", f"{V2}/memory.max": str(maximum), f"{V2}/memory.current": str(current)}


@pytest.mark.parametrize(
    ("texts", "available"),
    [
        ({}, 16 * GIB),
        (NESTED, 6 * GIB),  # the inactive page cache counts as available
        (VERSION_1, 2 * GIB),
        (mounted(2 * GIB, GIB), GIB),
        (mounted(100, 200), 0),
    ],
    ids=["no groups", "version 2, on every level", "version 1", "the mount of a container", "a full group"],
)
def test_the_cache_gets_a_quarter_of_the_available_memory(root, texts, available):
    write(root, texts)
    assert available_memory_bytes(root) == available
    assert cache_bytes(root) == max(available // 4, 64 * 2**20)


def test_the_environment_variable_wins(root, monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_BYTES", "1.5gb")
    assert cache_bytes(root) == 3 * GIB // 2
    monkeypatch.setenv("SUPER_CACHE_BYTES", "plenty")
    with pytest.raises(ConfigError, match=r"SUPER_CACHE_BYTES.*'plenty'"):
        cache_bytes(root)


def quota_of_version_1(quota_us):
    cpu = "sys/fs/cgroup/cpu/cpu"
    return {f"{cpu}.cfs_quota_us": f"{quota_us}", f"{cpu}.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("texts", "cores"),
    [
        ({GROUPS: "0::/job", f"{V2}/job/cpu.max": "100000 100000"}, 1),
        ({GROUPS: "0::/job", f"{V2}/job/cpu.max": "50000 100000"}, 1),
        ({GROUPS: "0::/job", f"{V2}/job/cpu.max": "max 100000"}, 8),
        ({GROUPS: "0::/job", f"{V2}/cpu.max": "400000 100000"}, 4),
        ({GROUPS: "1:cpu:/", **quota_of_version_1(-1)}, 8),
        ({GROUPS: "1:cpu:/", **quota_of_version_1(100_000)}, 1),
    ],
)
def test_slots_are_all_cores_or_what_ranks_leave_of_a_quota(root, monkeypatch, texts, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    write(root, texts)
    assert usable_cores(root) == cores
    for ranks in (1, 2, 9):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert slots(root) == (8 if cores == 8 else max(1, cores - ranks))
