"""The upkeep sweeps a crowded cache, once those of before a restart have had time to come back."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from coordinator.cache import Cache
from coordinator.core.settings import CoreSettings
from coordinator.engine import Engine
from coordinator.reports import ReportReader
from coordinator.sweeping import Sweep
from coordinator.upkeep import Upkeep
from super_wire.keys import RECORD_PREFIX
from tests.coordinator.running import ScriptedExecutor
from tests.fixtures.valkey import Valkey

MAXMEMORY = 8 * 2**20
RECORD = b"x" * 50_000


@pytest.fixture
def small():
    server = Valkey(maxmemory=str(MAXMEMORY))
    server.start()
    yield server
    server.close()


def fill(valkey, share):
    with valkey.client() as client:
        while client.info("memory")["used_memory"] < share * MAXMEMORY:
            client.set(RECORD_PREFIX + os.urandom(16).hex().encode(), RECORD)
        return client.dbsize()


@contextlib.asynccontextmanager
async def kept(valkey):
    cache = Cache(valkey.unix_url, owner="")
    info = await cache.info()
    engine = Engine(CoreSettings(budget_bytes=info.budget(0)), cache, ScriptedExecutor(valkey.unix_url))
    reports = ReportReader(cache, engine.post_all)
    try:
        yield Upkeep(cache, engine, reports, Sweep(cache, list), info=info, golden="aa")
    finally:
        await engine.close()
        await cache.close()


def records_after_a_look(valkey, *, settled):
    async def work():
        async with kept(valkey) as upkeep:
            if settled:
                upkeep._settled_at_s = 0.0
            await upkeep.once()

    asyncio.run(work())
    with valkey.client() as client:
        return len(client.keys(RECORD_PREFIX + b"*"))


def test_what_an_earlier_coordinator_left_is_swept_from_a_crowded_cache(small):
    fill(small, 0.97)
    assert records_after_a_look(small, settled=True) == 0


def test_it_stays_while_there_is_room(small):
    records = fill(small, 0.7)
    assert records_after_a_look(small, settled=True) == records


def test_it_stays_while_its_readers_may_come_back(small):
    records = fill(small, 0.97)
    assert records_after_a_look(small, settled=False) == records
