"""CPU of each host of a launched run: what the launchers there sampled, from file to figures.

The launcher of a host looks at all that it started: cache and coordinator, functions, trainers. It sends what
it saw to the host of rank 0, whose launcher writes a JSON line for each look into the file that
``SUPER_HOST_USAGE`` names.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.experiments.monitoring.readings import GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["HOST_USAGE", "HostUsage", "checked_usage", "host_usages"]

HOST_USAGE = "SUPER_HOST_USAGE"
"""The variable with the file's name."""

_LINE_BYTES = 4096
_NAME_MAX = 253
_CORES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class HostUsage:
    """What a host's processes used from the first training step to the end of the last epoch.

    ``cores`` are those that it may use, ``cpu_cores`` CPU seconds per second of ``wall_s``, by group.
    """

    host: str
    cores: int
    wall_s: float
    cpu_s: Mapping[str, float]
    cpu_cores: float


def checked_usage(told: Any) -> dict[str, Any] | None:
    """A look at a host as it came over the network, if it is one: name, cores, CPU seconds by group."""
    if not isinstance(told, dict):
        return None
    host, cores, cpu_s = (told.get(name) for name in ("host", "cores", "cpu_s"))
    if not (isinstance(host, str) and 0 < len(host) <= _NAME_MAX and isinstance(cpu_s, dict)):
        return None
    if not (isinstance(cores, int) and 0 < cores <= _CORES_MAX):
        return None
    seconds = {name: cpu_s[name] for name in GROUPS if name in cpu_s}
    if not all(isinstance(one, int | float) and 0 <= one < math.inf for one in seconds.values()):
        return None
    return {"host": host, "cores": cores, "cpu_s": {name: float(one) for name, one in seconds.items()}}


def host_usages(file: Path, begun_s: float, ended_s: float) -> tuple[HostUsage, ...]:
    """The hosts of a file, by name, between two timestamps; none without the file."""
    looks: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for at_s, look in _looks(file):
        looks.setdefault(look["host"], []).append((at_s, look))
    found = []
    for host, seen in sorted(looks.items(), key=lambda item: (len(item[0]), item[0])):  # algo-2, algo-10
        # Counters grow, so the looks beside the borders serve where none is on them.
        first = next((one for one in reversed(seen) if one[0] <= begun_s), seen[0])
        last = next((one for one in seen if one[0] >= ended_s), seen[-1])
        wall_s = last[0] - first[0]
        before, after = first[1]["cpu_s"], last[1]["cpu_s"]
        cpu_s = {name: max(0.0, used - before.get(name, 0.0)) for name, used in after.items()}
        cpu_cores = math.fsum(cpu_s.values()) / wall_s if wall_s > 0 else 0.0
        found.append(HostUsage(host, last[1]["cores"], wall_s, cpu_s, cpu_cores))
    return tuple(found)


def _looks(file: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """Timestamp and look of each line; one that the end of a launcher has cut off is left out."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(_LINE_BYTES):
                try:
                    told = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                look = checked_usage(told)
                if look is not None and isinstance(told.get("at_s"), int | float):
                    yield float(told["at_s"]), look
    except OSError:
        return
