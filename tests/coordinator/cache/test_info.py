"""A cluster is as large as its fullest node lets it be."""

from __future__ import annotations

import pytest

from superdl.coordinator.cache.info import CacheInfo, combined

MB = 2**20


def a_node(name, *, used=0, maxmemory=0, policy="noeviction", system=0, keys=0, evicted=0):
    said = {"run_id": name, "used_memory": used, "maxmemory": maxmemory, "maxmemory_policy": policy}
    said |= {"total_system_memory": system, "evicted_keys": evicted}
    lines = ("# Server", *(f"{name}:{value}" for name, value in said.items()), "")
    return CacheInfo.of_server("\r\n".join(lines).encode(), keys)


@pytest.mark.parametrize(
    ("slots", "used", "maxmemory", "whole", "left"),
    [
        ((10, 10), (20, 20), (100, 100), 190, 150),
        ((10, 10), (20, 60), (100, 100), 190, 70),  # the second has 35 left, and gets half of what comes
        ((10, 10), (20, 20), (100, 300), 190, 150),  # the second never gets more than the first
        ((10, 30), (20, 20), (100, 100), 380 / 3, 100),
        ((10, 10), (105, 20), (100, 100), 190, -20),
        ((10, 10), (20, 20), (100, 0), 190, 150),  # one without a limit limits nothing
    ],
)
def test_the_fullest_node_is_the_measure_and_a_twentieth_is_left_to_chance(
    slots, used, maxmemory, whole, left
):
    nodes = [a_node(str(n), used=used[n] * MB, maxmemory=maxmemory[n] * MB) for n in range(2)]
    info = combined(nodes, slots, 1)
    shares = [node / limit for node, limit in zip(used, maxmemory, strict=True) if limit]
    assert info.fullest_share == pytest.approx(max(shares))
    assert info.maxmemory == pytest.approx(whole * MB, abs=2)
    assert info.maxmemory - info.used_memory == pytest.approx(left * MB, abs=4)


def test_without_limits_the_memory_of_the_machines_counts():
    nodes = [a_node(str(n), used=MB, system=4000 * MB) for n in range(3)]
    assert combined(nodes, (1, 1, 1), hosts=1).budget(0) == 900 * MB
    assert combined(nodes, (1, 1, 1), hosts=3).budget(0) == 2700 * MB
    assert combined(nodes, (1, 1, 1), hosts=1).used_memory == 3 * MB


def test_the_rest_is_summed_and_a_policy_that_drops_is_told():
    nodes = [a_node("a", keys=3, evicted=1), a_node("b", keys=4, evicted=2, policy="allkeys-lru")]
    info = combined(nodes, (1, 1), 1)
    assert info.nodes == {"a", "b"}
    assert (info.keys, info.evicted_keys, info.policy) == (7, 3, "allkeys-lru")
