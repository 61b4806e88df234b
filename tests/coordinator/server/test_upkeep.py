"""The upkeep sweeps a crowded cache, once those of before a restart have had time to come back.

It tells the core what is lost: all of a server that was emptied, or what one node of a cluster had.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import numpy as np
import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import ReportReader
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import CacheEvicted, CacheReset, CoreSettings
from superdl.coordinator.server import upkeep as upkeep_module
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.server.upkeep import Upkeep, agree_on_fingerprint
from superdl.super_wire.cache import key_slot
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


@contextlib.asynccontextmanager
async def kept_at(address):
    cache = Cache(address, owner="me")
    info = await cache.info()
    engine = Engine(
        CoreSettings(budget_bytes=info.budget(0)),
        cache,
        [ScriptedExecutor(address)],
        DatasetRegistry(max_age_s=1.0),
    )
    reports = ReportReader(cache.streams, engine.post_all)
    try:
        yield Upkeep(cache, engine, reports, info=info, fingerprint="aa")
    finally:
        await engine.close()
        await cache.close()


def left(valkey):
    with valkey.client() as client:
        return sum(client.strlen(key) == RECORD_BYTES for key in client.keys(RECORD_PREFIX + b"*"))


def records_after_a_look(valkey, source, serving_loop, *, settled=True):
    """What is left in the cache by an upkeep's looks before and after a job misses samples."""

    async def work():
        async with kept_at(valkey.unix_url) as upkeep:
            await agree_on_fingerprint(upkeep._cache, "aa")  # else the cache is taken for a new one
            budget_bytes = (await upkeep._cache.info()).budget(0)
            async with running(valkey, budget_bytes=budget_bytes, cache_was_empty=False) as coordinator:
                upkeep._engine, upkeep._core = coordinator.engine, coordinator.engine.core
                if settled:
                    upkeep._settled_at_s = 0.0
                await upkeep.once()
                await coordinator.open(await coordinator.register(source))
                await coordinator.page()
                coordinator.engine.post(missed(range(4)))
                await coordinator.until(lambda: coordinator.executor.requests)
                await upkeep.once()

    serving_loop.run(work())
    return left(valkey)


def test_what_an_earlier_coordinator_left_goes_as_far_as_a_job_needs_its_room(small, source, serving_loop):
    records = fill(small, 0.92)
    assert 0.8 * records < records_after_a_look(small, source, serving_loop) < records


async def test_it_stays_while_no_job_is_open(small):
    records = fill(small, 0.92)
    async with kept_at(small.unix_url) as upkeep:
        upkeep._settled_at_s = 0.0
        for _ in range(3):
            await upkeep.once()
        assert 0.9 < upkeep._engine.cache_load.fullest_share < 1.0
    assert left(small) == records


@pytest.mark.parametrize(("share", "settled"), [(0.6, True), (0.92, False)], ids=["room", "may come back"])
def test_it_stays_while_there_is_room_or_its_readers_may_come_back(
    small, source, serving_loop, share, settled
):
    records = fill(small, share)
    assert records_after_a_look(small, source, serving_loop, settled=settled) == records


async def told_after(address, fault):
    """The kinds of event that the core is told of by the look after a fault."""
    told = []
    async with kept_at(address) as upkeep:
        await upkeep.once()
        upkeep._engine.post = told.append
        await asyncio.to_thread(fault)
        await upkeep.once()
    return {type(event) for event in told} & {CacheReset, CacheEvicted}


async def test_the_load_is_that_of_the_busiest_node_since_the_last_measure(valkey_cluster, monkeypatch):
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

    async with kept_at(valkey_cluster.url) as upkeep:
        await agree_on_fingerprint(upkeep._cache, "aa")
        await upkeep.once()
        evicted_keys = await asyncio.to_thread(evict_and_count)
        await upkeep.once()
        load = upkeep._engine.cache_load
        assert load.evicted_keys == evicted_keys > 0
        assert load.busiest_share > 0.05  # an idle one has a hundredth
        await upkeep.once()
        assert upkeep._engine.cache_load.evicted_keys == evicted_keys


@pytest.mark.slow
async def test_what_a_clusters_node_had_is_looked_for(valkey_cluster):
    for node in valkey_cluster.nodes:

        def empty(node=node):
            node.restart_empty()
            valkey_cluster.wait_until_ready()

        assert await told_after(valkey_cluster.url, empty) == {CacheEvicted}
    slot = key_slot(b"any")
    assert await told_after(valkey_cluster.url, lambda: valkey_cluster.move(slot, 0)) == set()

    def empty_all():
        for node in valkey_cluster.nodes:
            node.restart_empty()
        valkey_cluster.wait_until_ready()

    assert await told_after(valkey_cluster.url, empty_all) == {CacheReset}


async def test_a_node_that_hangs_does_not_let_the_lock_expire(valkey_cluster, monkeypatch):
    monkeypatch.setattr(upkeep_module, "_LOOK_TIMEOUT_S", 0.3)
    locking = valkey_cluster.node_of(LOCK_KEY)
    hanging = next(node for node in valkey_cluster.nodes if node is not locking)
    async with kept_at(valkey_cluster.url) as upkeep:
        await upkeep.once()
        hanging.process.send_signal(signal.SIGSTOP)
        try:
            with locking.client() as client:
                client.pexpire(LOCK_KEY, 5000)
                for _ in range(2):
                    await upkeep.once()
                assert client.pttl(LOCK_KEY) > 5000
        finally:
            hanging.process.send_signal(signal.SIGCONT)


async def test_the_budget_follows_what_becomes_of_a_clusters_shards(valkey_cluster):
    """Also where no command of the coordinator has met a slot that was moved."""
    async with kept_at(valkey_cluster.url) as upkeep:
        await upkeep.once()
        before = upkeep._engine.core.state.budget_bytes
        for slot in range(3):  # the fullest node is the measure, and counts differ by one
            await asyncio.to_thread(valkey_cluster.move, slot, 1)
        async with asyncio.timeout(10.0):  # until the node that is asked has heard of it
            while (after := upkeep._engine.core.state.budget_bytes) == before:
                await upkeep.once()
        for node in valkey_cluster.nodes:
            with node.client() as client:
                client.config_set("maxmemory", 16 * 2**20)
        await upkeep.once()
        assert upkeep._engine.core.state.budget_bytes < after < before
