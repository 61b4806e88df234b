"""What cache servers say of themselves, and how much of their memory records may take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from superdl.coordinator.core import headroom_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["CacheInfo", "combined"]

_UNLIMITED_SHARE = 0.25
_SPREAD_SHARE = 0.95
"""Of a node's maxmemory in a cluster: among thousands of records, chance gives a node up to 5% too many."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What a server, or a cluster as a whole, says of itself.

    Sizes in bytes, ``maxmemory`` 0 where it has none; ``nodes`` identify the processes that hold the records.
    """

    nodes: frozenset[str]
    used_memory: int
    maxmemory: int
    policy: str
    system_memory: int
    keys: int
    evicted_keys: int = 0
    """Keys that it has dropped of its own accord since it started."""
    fullest_share: float = 0.0
    """Of its maxmemory, what the fullest node uses."""

    @classmethod
    def of_server(cls, info: Mapping[str, Any], keys: int) -> CacheInfo:
        """From the answers to INFO and DBSIZE."""
        used_memory, maxmemory = int(info["used_memory"]), int(info["maxmemory"])
        return cls(
            nodes=frozenset({str(info["run_id"])}),
            used_memory=used_memory,
            maxmemory=maxmemory,
            policy=str(info["maxmemory_policy"]),
            system_memory=int(info.get("total_system_memory", 0)),
            keys=int(keys),
            evicted_keys=int(info.get("evicted_keys", 0)),
            fullest_share=used_memory / maxmemory if maxmemory else 0.0,
        )

    def budget(self, cache_bytes: int) -> int:
        """Memory for records: what headroom for client buffers leaves of maxmemory, or of ``cache_bytes``.

        The smaller of the two counts; ``cache_bytes`` of 0 means all that the server has.
        """
        limit = self.maxmemory or cache_bytes or int(self.system_memory * _UNLIMITED_SHARE)
        limit = min(limit, cache_bytes or limit)
        return limit - headroom_bytes(limit)


def combined(infos: Sequence[CacheInfo], slots: Sequence[int], hosts: int) -> CacheInfo:
    """The masters of a cluster as one server, of which the fullest node is the measure.

    Records spread over nodes as slots do, so a node that has a third of the slots and takes 1 GB makes a
    cluster of 3 GB; and a node that has 100 MB left leaves 300 MB to the cluster. A twentieth of each node's
    maxmemory is left to chance.

    Args:
        infos: of the masters that have slots, at least one.
        slots: how many slots each of them has, of those that any has.
        hosts: how many machines they are on, as far as is known: servers on one share its memory.
    """
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
        policy=next((info.policy for info in infos if info.policy != "noeviction"), infos[0].policy),
        system_memory=min(info.system_memory for info in infos) * hosts,
        keys=sum(info.keys for info in infos),
        evicted_keys=sum(info.evicted_keys for info in infos),
        fullest_share=max(info.fullest_share for info in infos),
    )
