"""The upkeep sweeps a crowded cache once jobs from before a restart have had time to return.

It reports to the core what was lost: a whole server's data, or that of one cluster node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import NamedTuple

import numpy as np
import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import ReportReader
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import CoreSettings, headroom_bytes
from superdl.coordinator.server import upkeep as upkeep_module
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.server.upkeep import Upkeep, agree_on_fingerprint
from superdl.super_wire.keys import LOCK_KEY, RECORD_PREFIX, cache_key
from superdl.super_wire.record import HEADER_BYTES, pack
from tests.coordinator.running import ScriptedExecutor, missed, running
from tests.fixtures.valkey import Valkey

MAXMEMORY = 8 * 2**20
IMAGE = np.zeros((100, 166, 3), dtype=np.uint8)
RECORD_BYTES = HEADER_BYTES + IMAGE.nbytes


@pytest.fixture
def small():
    server = Valkey(maxmemory=str(MAXMEMORY))
    server.start()
    yield server
    server.close()


def fill(valkey, share):
    with valkey.client() as client:
        while client.info("memory")["used_memory"] < share * MAXMEMORY:
            sample_id = os.urandom(16)
            client.set(cache_key(sample_id), b"".join(pack(IMAGE, sample_id)))
        return client.dbsize()


class Kept(NamedTuple):
    """An upkeep and the parts that it maintains."""

    upkeep: Upkeep
    cache: Cache
    engine: Engine
    reports: ReportReader


@contextlib.asynccontextmanager
async def kept_at(address):
    cache = Cache(address, owner="me")
    info = await cache.info()
    settings = CoreSettings(budget_bytes=info.budget(0))
    engine = Engine(settings, cache, [ScriptedExecutor(address)], DatasetRegistry(max_age_s=1.0))
    reports = ReportReader(cache.nodes, engine.post_all)
    upkeep = Upkeep(cache, engine, reports, info=info, fingerprint="aa")
    try:
        await upkeep.once()
        yield Kept(upkeep, cache, engine, reports)
    finally:
        await engine.close()
        await cache.close()


def left(valkey):
    with valkey.client() as client:
        return sum(client.strlen(key) == RECORD_BYTES for key in client.keys(RECORD_PREFIX + b"*"))


@pytest.mark.parametrize(
    ("share", "settles_s", "reads", "goes"),
    [(0.92, 0.0, True, True), (0.92, 0.0, False, False), (0.6, 0.0, True, False), (0.92, 60.0, True, False)],
    ids=["needed", "no job", "room", "may come back"],
)
async def test_records_of_an_earlier_coordinator_are_swept_as_far_as_a_job_needs_room(
    small, source, serving_loop, monkeypatch, share, settles_s, reads, goes
):
    monkeypatch.setattr(upkeep_module, "_SETTLED_S", settles_s)
    records, budget_bytes = fill(small, share), MAXMEMORY - headroom_bytes(MAXMEMORY)
    async with running(small, budget_bytes=budget_bytes, cache_was_empty=False) as coordinator:
        cache, engine = coordinator.cache, coordinator.engine
        await agree_on_fingerprint(cache, "aa")  # otherwise the cache is taken for a new one
        upkeep = Upkeep(cache, engine, coordinator.reports, info=await cache.info(), fingerprint="aa")
        await upkeep.once()
        if reads:
            await coordinator.open(await coordinator.register(source))
            await coordinator.page()
            engine.post(missed(range(4)))
            await coordinator.until(lambda: coordinator.executor.requests)
        await upkeep.once()
        assert share - 0.02 < engine.cache_load.fullest_share < 1.0
    assert (left(small) < records) == goes
    assert left(small) > 0.8 * records


async def test_the_load_is_that_of_the_busiest_node(valkey_cluster, monkeypatch):
    monkeypatch.setattr(upkeep_module, "_EVEN_S", 0.0)
    busy = valkey_cluster.nodes[1]

    def evict_and_count():
        with busy.client() as client:
            key = next(n for n in range(10_000) if valkey_cluster.node_of(b"%d" % n) is busy)
            client.config_set("maxmemory-policy", "allkeys-random")
            for number in range(64):
                client.set(f"{{{key}}}{number}", bytes(2**20))
            client.config_set("maxmemory", 32 * 2**20)
            client.eval("local n = 0; for i = 1, 30000000 do n = n + i end", 0)
            return client.info("stats")["evicted_keys"]

    async with kept_at(valkey_cluster.url) as kept:
        evicted_keys = await asyncio.to_thread(evict_and_count)
        await kept.upkeep.once()
        load = kept.engine.cache_load
        assert load.evicted_keys == evicted_keys > 0
        assert load.busiest_share > 0.05  # an idle server is near 0.01
        await kept.upkeep.once()
        assert kept.engine.cache_load.evicted_keys == evicted_keys


async def test_a_hanging_node_does_not_let_the_lock_expire(valkey_cluster, monkeypatch):
    monkeypatch.setattr(upkeep_module, "_LOOK_TIMEOUT_S", 0.3)
    locking = valkey_cluster.node_of(LOCK_KEY)
    hanging = next(node for node in valkey_cluster.nodes if node is not locking)
    async with kept_at(valkey_cluster.url) as kept:
        hanging.process.send_signal(signal.SIGSTOP)
        try:
            with locking.client() as client:
                client.pexpire(LOCK_KEY, 5000)
                for _ in range(2):
                    await kept.upkeep.once()
                assert client.pttl(LOCK_KEY) > 5000
        finally:
            hanging.process.send_signal(signal.SIGCONT)


async def test_the_budget_follows_a_clusters_shards(valkey_cluster):
    """The budget adapts even if no command of the coordinator has hit a moved slot."""
    async with kept_at(valkey_cluster.url) as kept:
        before = kept.engine.core.state.budget_bytes
        for slot in range(3):  # the fullest node counts, and key counts differ by one
            await asyncio.to_thread(valkey_cluster.move, slot, 1)
        async with asyncio.timeout(10.0):  # until the queried node has learned of the move
            while (after := kept.engine.core.state.budget_bytes) == before:
                await kept.upkeep.once()
        for node in valkey_cluster.nodes:
            with node.client() as client:
                client.config_set("maxmemory", 16 * 2**20)
        await kept.upkeep.once()
        assert kept.engine.core.state.budget_bytes < after < before
