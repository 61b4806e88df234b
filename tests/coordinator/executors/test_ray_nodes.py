"""Places on the nodes of a Ray cluster: which nodes count, who gets the next place, what crowding does."""

from __future__ import annotations

import asyncio

import pytest

from superdl.coordinator.executors import ExecutorError
from superdl.coordinator.executors.ray_nodes import RayNodes


def told(name, cpus=2.0, *, accelerated=False):
    return {"id": name, "name": name, "cpus": cpus, "accelerated": accelerated, "here": True}


def nodes_of(*entries, cpus=1.0, everywhere=False, fit=True):
    nodes = RayNodes(cpus=cpus, everywhere=everywhere)
    come, gone = nodes.update(list(entries))
    assert gone == []
    for node in come if fit else ():
        nodes.admit(node)
    return nodes, {node.node_id: node for node in come}


async def names_of(nodes, count):
    return [node.node_id for _ in range(count) if (node := await nodes.take(0)) is not None]


@pytest.mark.parametrize(
    ("cpus", "each", "slots"),
    [(4.0, 1.0, 4), (4.0, 1.5, 2), (0.5, 0.5, 1), (0.3, 0.1, 3), (0.0, 1.0, 0), (0.9, 1.0, 0)],
)
def test_a_node_has_a_place_for_each_function_that_fits_into_its_cpus(cpus, each, slots):
    nodes, _ = nodes_of(told("a", cpus), cpus=each)
    assert nodes.capacity == slots
    assert nodes.passed_over == (not slots)


def test_nodes_with_accelerators_count_only_if_that_is_said():
    entries = [told("cpu"), told("gpu", 8.0, accelerated=True)]
    nodes, by_name = nodes_of(*entries)
    assert (set(by_name), nodes.capacity, nodes.passed_over) == ({"cpu"}, 2, 1)
    nodes, by_name = nodes_of(*entries, everywhere=True)
    assert (set(by_name), nodes.capacity, nodes.passed_over) == ({"cpu", "gpu"}, 10, 0)


def test_places_are_taken_where_the_largest_share_is_free():
    async def main():
        nodes, _ = nodes_of(told("large", 4.0), told("small", 2.0))
        return await names_of(nodes, 7)

    taken = asyncio.run(main())
    assert len(taken) == 6
    assert taken.count("large") == 4
    assert set(taken[:2]) == {"large", "small"}


def test_a_node_that_is_not_fit_gets_nothing():
    async def main():
        nodes, by_name = nodes_of(told("a"), told("b"), fit=False)
        assert nodes.capacity == 0
        with pytest.raises(ExecutorError, match="no node of the Ray cluster can be called now"):
            await nodes.take(10)
        nodes.admit(by_name["b"])
        return await names_of(nodes, 3)

    assert asyncio.run(main()) == ["b", "b"]


def test_who_waits_is_served_in_order_when_a_place_comes_back_or_a_node_comes():
    async def main():
        nodes, by_name = nodes_of(told("a", 1.0))
        (first,) = await names_of(nodes, 1)
        waiting = [asyncio.create_task(nodes.take(30)) for _ in range(3)]
        await asyncio.sleep(0)
        nodes.give_back(by_name[first], begun=False)
        assert (await waiting[0]).node_id == "a"
        assert not waiting[1].done()
        come, _ = nodes.update([told("a", 1.0), told("b", 2.0)])
        nodes.admit(come[0])
        return [(await task).node_id for task in waiting[1:]]

    assert asyncio.run(main()) == ["b", "b"]


def test_one_that_gave_up_waiting_loses_no_place():
    async def main():
        nodes, by_name = nodes_of(told("a", 1.0))
        await nodes.take(0)
        assert await nodes.take(0) is None
        cancelled = asyncio.create_task(nodes.take(30))
        await asyncio.sleep(0)
        nodes.give_back(by_name["a"], begun=False)  # it is served, and cancelled before it knows
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return await names_of(nodes, 2)

    assert asyncio.run(main()) == ["a"]


def test_who_waits_is_told_when_the_last_node_goes():
    async def main():
        nodes, by_name = nodes_of(told("a", 1.0), told("b", 1.0))
        await names_of(nodes, 2)
        waiting = asyncio.create_task(nodes.take(30))
        await asyncio.sleep(0)
        nodes.dismiss(by_name["a"], "it is gone")
        await asyncio.sleep(0)
        assert not waiting.done()
        come, gone = nodes.update([])
        assert (come, {node.node_id for node in gone}) == ([], {"a", "b"})
        with pytest.raises(ExecutorError, match="can be called any more: the node b is gone"):
            await waiting

    asyncio.run(main())


def test_a_call_that_was_not_begun_shows_that_others_have_the_cpus():
    async def main():
        nodes, by_name = nodes_of(told("a", 4.0), told("b", 4.0))
        node = by_name["a"]
        while node.calls < 3:
            await nodes.take(0)
        nodes.begun(node, 0.1)
        nodes.late(node)
        assert node.crowded
        assert (node.places, nodes.capacity) == (1, 5)
        nodes.give_back(node, begun=False)
        nodes.give_back(node, begun=False)
        nodes.give_back(node, begun=True)
        free = 4 - by_name["b"].calls
        taken = await names_of(nodes, free + 1)
        assert taken == ["b"] * free + ["a"], "the crowded one comes last"
        nodes.begun(node, 20.0)
        assert node.places == 1, "it is crowded still"
        nodes.give_back(node, begun=True)
        for _ in range(5):
            await nodes.take(0)
            nodes.begun(node, 0.01)
            nodes.give_back(node, begun=True)
        assert (node.places, node.crowded, nodes.capacity) == (4, False, 8)

    asyncio.run(main())
