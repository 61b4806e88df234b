"""Cache server statistics, and the memory available for records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from superdl.coordinator.core import headroom_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNLIMITED_SHARE = 0.25  # of the machine's memory, if a server has no maxmemory
_SPREAD_SHARE = 0.95  # of a cluster node's maxmemory, because a node may get 5% more records than the average


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Statistics for a server, or for an entire cluster. Sizes are in bytes."""

    # Run ids of the server processes.
    nodes: frozenset[str]
    used_memory: int
    # 0 if unlimited.
    maxmemory: int
    policy: str
    system_memory: int
    keys: int
    # Since the server started.
    evicted_keys: int = 0
    # Used share of the fullest node's maxmemory.
    fullest_share: float = 0.0
    # CPU time of each node's main thread, which runs all commands.
    busy_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_server(cls, text: bytes, keys: int) -> CacheInfo:
        """Parse the replies to INFO and DBSIZE."""
        info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        used_memory, maxmemory, node = int(info["used_memory"]), int(info["maxmemory"]), info["run_id"]
        # Older servers only report the CPU time of the whole process.
        busy_s = [
            float(info.get(f"used_cpu_{kind}_main_thread", info.get(f"used_cpu_{kind}", 0.0)))
            for kind in ("user", "sys")
        ]
        return cls(
            nodes=frozenset({node}),
            used_memory=used_memory,
            maxmemory=maxmemory,
            policy=info["maxmemory_policy"],
            system_memory=int(info.get("total_system_memory", 0)),
            keys=int(keys),
            evicted_keys=int(info.get("evicted_keys", 0)),
            fullest_share=used_memory / maxmemory if maxmemory else 0.0,
            busy_s={node: sum(busy_s)},
        )

    def budget(self, cache_bytes: int) -> int:
        """Return the memory available for records in bytes: the cache's memory minus headroom.

        ``cache_bytes`` further limits the cache's memory, unless it is 0.
        """
        limit = self.maxmemory or cache_bytes or int(self.system_memory * _UNLIMITED_SHARE)
        limit = min(limit, cache_bytes or limit)
        return limit - headroom_bytes(limit)

    def busiest_share(self, before: CacheInfo, passed_s: float) -> float:
        """Return the share of a core that the busiest node's main thread has used since ``before``."""
        common = self.busy_s.keys() & before.busy_s.keys()
        return max(((self.busy_s[node] - before.busy_s[node]) / passed_s for node in common), default=0.0)


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """The load of the fullest and busiest nodes, for alarms. Full or busy nodes slow down the others."""

    # Used share of the fullest node's memory.
    fullest_share: float = 0.0
    # Share of a core that the busiest node's main thread used in the last 15 seconds.
    busiest_share: float = 0.0
    # Since the coordinator took over the cache.
    evicted_keys: int = 0


def combined(infos: Sequence[CacheInfo], slots: Sequence[int], hosts: int) -> CacheInfo:
    """Combine the statistics of a cluster's masters, which run on ``hosts`` machines.

    ``slots`` holds each master's slot count. The fullest node limits the cluster.
    """
    # Records are distributed like slots: a node with a third of the slots and 1 GB makes a cluster of 3 GB.
    # If it has 100 MB left, the cluster has 300 MB left.
    total = sum(slots)
    limited = [
        (info.maxmemory * _SPREAD_SHARE, info.used_memory, total / count)
        for info, count in zip(infos, slots, strict=True)
        if info.maxmemory
    ]
    maxmemory = int(min((limit * times for limit, _, times in limited), default=0))
    room = min(((limit - used) * times for limit, used, times in limited), default=0)
    return replace(
        infos[0],
        nodes=frozenset().union(*(info.nodes for info in infos)),
        used_memory=int(maxmemory - room) if limited else sum(info.used_memory for info in infos),
        maxmemory=maxmemory,
        # One evicting node is enough to lose records.
        policy=next((info.policy for info in infos if info.policy != "noeviction"), infos[0].policy),
        # Servers on one machine share its memory.
        system_memory=min(info.system_memory for info in infos) * hosts,
        keys=sum(info.keys for info in infos),
        evicted_keys=sum(info.evicted_keys for info in infos),
        fullest_share=max(info.fullest_share for info in infos),
        busy_s={node: busy_s for info in infos for node, busy_s in info.busy_s.items()},
    )
