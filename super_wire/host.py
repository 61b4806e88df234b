"""This host's memory and cores, within the limits of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.user_text import parse_bytes

_LEAST_CACHE_BYTES = 64 * 2**20
_ROOT = Path("/")


def cache_bytes(root: Path = _ROOT) -> int:
    """Return the embedded cache's size: ``SUPER_CACHE_BYTES``, or a quarter of the available memory."""
    configured_bytes = parse_bytes(os.environ.get("SUPER_CACHE_BYTES") or "0", "SUPER_CACHE_BYTES")
    return configured_bytes or max(available_memory_bytes(root) // 4, _LEAST_CACHE_BYTES)


def slots(root: Path = _ROOT) -> int:
    """Return the number of function slots on this host: ``SUPER_SLOTS``, or one per core (at least one)."""
    if configured := os.environ.get("SUPER_SLOTS"):
        if not configured.isdecimal() or not int(configured):
            raise ConfigError(
                f"SUPER_SLOTS (concurrent requests) must be a positive integer, not {configured!r}"
            )
        return int(configured)
    cores, ranks = usable_cores(root), os.environ.get("LOCAL_WORLD_SIZE", "1")
    # Slots have a lower priority than ranks, but a CPU quota ignores that. So leave each rank a core.
    if cores == _cores_of_process():
        return cores
    return max(1, cores - (int(ranks) if ranks.isdecimal() else 1))


def _cores_of_process() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of cores that affinity and CPU quotas allow this process, at least 1."""
    cores = _cores_of_process()
    for group in _control_groups(root, "cpu"):
        quota = _numbers(group / "cpu.max")  # version 2: "quota period" or "max period"
        if len(quota) < 2:  # noqa: PLR2004  # a pair
            quota = _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:  # noqa: PLR2004  # a pair
            cores = min(cores, max(1, quota[0] // quota[1]))
    return max(1, cores)


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Return the memory available without swapping, in bytes, capped by any cgroup limits."""
    available = _field_of(root / "proc/meminfo", "MemAvailable:") * 1024
    available = available or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    for group in _control_groups(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _numbers(group / limit_name), _numbers(group / usage_name)
            if limit and usage:
                reclaimable = _field_of(group / "memory.stat", cache_name)
                available = min(available, max(0, limit[0] - usage[0] + reclaimable))
    return available


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Return the directories of this process's control groups and their parents, for version 1 or 2."""
    groups = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        names = [name for name in path.split("/") if name]
        # In a container, the path from /proc may be missing. Its group is then the mount's root.
        groups += [mount.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]
    return groups


def _numbers(file: Path) -> list[int]:
    """Return the integers in a file, or an empty list if it is missing or contains ``max``."""
    words = _text(file).split()
    return [int(word) for word in words] if all(word.lstrip("-").isdecimal() for word in words) else []


def _field_of(file: Path, name: str) -> int:
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
