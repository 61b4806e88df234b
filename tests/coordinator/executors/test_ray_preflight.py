"""Which nodes are fit: they agree as most places do, and those that fail are tried again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from superdl.coordinator.executors import ExecutorError, ray_nodes
from superdl.coordinator.executors.ray_nodes import NodePreflight, RayNodes
from tests.coordinator.executors.asking import TIMEOUT_S

GOOD, ODD = "a" * 32, "b" * 32


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(ray_nodes, "_FIRST_PAUSE_S", 0.0)


class Cluster:
    """Nodes that answer a trial with what ``says`` holds for them at the time: a digest, or an error."""

    def __init__(self, **says):
        self.says = says
        self.tried = asyncio.Event()
        self.nodes = RayNodes(cpus=1.0, everywhere=False)
        self.preflight = NodePreflight(self.nodes, self.warm)

    async def warm(self, node):
        said = self.says[node.node_id]
        self.tried.set()
        if isinstance(said, asyncio.Event):
            await said.wait()
            return GOOD
        if isinstance(said, Exception):
            raise said
        return said

    def told(self, **cpus):
        come, gone = self.nodes.update(
            [
                {"id": name, "name": name, "cpus": count, "accelerated": False, "here": True}
                for name, count in cpus.items()
            ]
        )
        for node in gone:
            self.preflight.gone(node)
        self.preflight.come(come)

    async def again(self):
        """Wait until a node was tried once more."""
        self.tried.clear()
        async with asyncio.timeout(TIMEOUT_S):
            await self.tried.wait()

    async def settled(self):
        async with asyncio.timeout(TIMEOUT_S):
            await self.preflight.settled.wait()
        await asyncio.sleep(0)


def run(body, **says):
    async def main():
        cluster = Cluster(**says)
        try:
            await body(cluster)
        finally:
            await cluster.preflight.stop()

    asyncio.run(main())


def test_the_digest_of_most_places_counts_and_others_are_left_out(caplog):
    async def body(cluster):
        cluster.told(a=2, b=1, c=4)
        await cluster.settled()
        assert cluster.preflight.fingerprint == GOOD
        assert cluster.nodes.capacity == 6
        assert (
            f"the node b is left out: its decoder has the fingerprint {ODD}, the others' {GOOD}"
            in caplog.text
        )
        cluster.told(a=2, b=1, c=4, d=8)  # what comes later is held to it, however many it are
        await cluster.again()
        assert (cluster.preflight.fingerprint, cluster.nodes.capacity) == (GOOD, 6)

    run(body, a=GOOD, b=ODD, c=GOOD, d=ODD)


def test_one_that_fails_is_told_of_once_and_admitted_when_it_is_mended(caplog):
    caplog.set_level(logging.WARNING)

    async def body(cluster):
        cluster.told(a=1, b=1)
        await cluster.settled()
        for _ in range(3):
            await cluster.again()
        assert caplog.text.count("the node b is left out: no SUPER there") == 1
        assert cluster.nodes.capacity == 1
        cluster.says["b"] = GOOD
        async with asyncio.timeout(TIMEOUT_S):
            while cluster.nodes.capacity < 2:  # noqa: ASYNC110  # admitting sets no event
                await asyncio.sleep(0)

    run(body, a=GOOD, b=ExecutorError("no SUPER there"))


def test_if_none_is_fit_the_reason_is_known():
    async def body(cluster):
        cluster.told(a=1)
        await cluster.settled()
        assert cluster.nodes.capacity == 0
        assert cluster.preflight.failure == "a: no SUPER there"
        assert cluster.preflight.fingerprint == ""

    run(body, a=ExecutorError("no SUPER there"))


def test_no_nodes_at_all_are_settled_at_once():
    async def body(cluster):
        cluster.told()
        await cluster.settled()
        assert (cluster.nodes.capacity, cluster.preflight.failure) == (0, "")

    run(body)


def test_one_that_hangs_does_not_hold_the_others_up(monkeypatch):
    monkeypatch.setattr(ray_nodes, "_AGREE_S", 0.0)

    async def body(cluster):
        cluster.told(a=1, b=1)
        await cluster.settled()
        assert (cluster.preflight.fingerprint, cluster.nodes.capacity) == (GOOD, 1)
        cluster.says["b"].set()
        async with asyncio.timeout(TIMEOUT_S):
            while cluster.nodes.capacity < 2:  # noqa: ASYNC110  # admitting sets no event
                await asyncio.sleep(0)

    run(body, a=GOOD, b=asyncio.Event())


def test_one_that_is_gone_before_it_answered_is_not_waited_for():
    async def body(cluster):
        cluster.told(a=1, b=1)
        await asyncio.sleep(0)
        assert not cluster.preflight.settled.is_set()
        cluster.told(a=1)
        await cluster.settled()
        assert cluster.nodes.capacity == 1

    run(body, a=GOOD, b=asyncio.Event())


def test_one_that_a_call_finds_lost_is_left_out_until_it_passes_again():
    async def body(cluster):
        cluster.told(a=1)
        await cluster.settled()
        node = await cluster.nodes.take(0)
        cluster.preflight.lost(node, "it died")
        cluster.nodes.give_back(node, begun=False)
        with pytest.raises(ExecutorError, match="it died"):
            await cluster.nodes.take(0)
        await cluster.again()
        await asyncio.sleep(0)
        assert await cluster.nodes.take(0) is node

    run(body, a=GOOD)
