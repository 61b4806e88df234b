"""What a cache holds of a dataset, and so what of it is reused: the production's own arithmetic of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.cache.info import CacheInfo, combined
from superdl.coordinator.core import footprint

if TYPE_CHECKING:
    from superdl.coordinator.executors.price_table import Machine, PriceTable
    from superdl.cost.scenario import Scenario

__all__ = ["cache_samples", "embedded_reuse", "reuse"]

_GIB = 2**30
_EMBEDDED_SHARE = 0.25
"""Of a machine's memory: what the embedded default takes for its cache."""


def cache_samples(scenario: Scenario, prices: PriceTable) -> int:
    """Samples that the cache's nodes hold, after what is reserved and the room for clients' buffers."""
    node = prices.cache_node(scenario.cache_node)
    maxmemory = int(node.memory_gib * _GIB * (1 - scenario.reserved_share))
    infos = [_node(str(number), maxmemory) for number in range(scenario.cache_nodes)]
    info = infos[0] if len(infos) == 1 else combined(infos, [1] * len(infos), len(infos))
    return _fitting(info.budget(0), scenario)


def reuse(scenario: Scenario, prices: PriceTable) -> float:
    """The share of a sample's later uses that find it in the shared cache."""
    return min(1.0, cache_samples(scenario, prices) / scenario.samples)


def embedded_reuse(scenario: Scenario, machine: Machine) -> float:
    """The same for the cache that the embedded default starts on a training machine."""
    if scenario.random:
        return 0.0
    info = _node("embedded", int(machine.memory_gib * _GIB * _EMBEDDED_SHARE))
    return min(1.0, _fitting(info.budget(0), scenario) / scenario.samples)


def _node(name: str, maxmemory: int) -> CacheInfo:
    return CacheInfo(frozenset({name}), 0, maxmemory, "noeviction", maxmemory, 0)


def _fitting(budget_bytes: int, scenario: Scenario) -> int:
    return budget_bytes // int(footprint(np.array([scenario.record_bytes]))[0])
