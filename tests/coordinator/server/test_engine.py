"""The engine on a real core and cache: actions are carried out in order, and results become events."""

import asyncio
import dataclasses
from dataclasses import replace

import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import BatchRead, CacheReset, CoreSettings, FailureKind, FillUp
from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import split_ids
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES, read_tombstone
from superdl.super_wire.request import RequestKind
from tests.coordinator import running as running_module
from tests.coordinator.running import REPORT, ScriptedExecutor

KEYS = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(5)]
FAST = {"backoff_s": 0.001, "backoff_max_s": 0.002}


def was_read(position, epoch=0):
    """Return the event for a batch that a reader delivered."""
    return BatchRead("job", dataclasses.replace(REPORT, epoch=epoch, position=position, hits=2, samples=2))


def produced(coordinator):
    return coordinator.engine.core.job("job").counters.samples_produced


def in_cache(valkey, ids):
    with valkey.client() as client:
        return [client.get(cache_key(sample_id)) for sample_id in split_ids(ids)]


async def ids_of(coordinator, job="job"):
    return b"".join(batch.sample_ids for batch in (await coordinator.page(job)).batches)


@pytest.mark.parametrize(
    "error",
    [
        ExecutorError("killed by SIGSEGV", FailureKind.CRASHED),
        ExecutorError("after 3 s", FailureKind.TIMED_OUT),
        ExecutorError("KeyError: x", FailureKind.RAISED),
        ConfigError("another version"),
    ],
)
@pytest.mark.coordinator(attempts=3, tombstone_ttl_s=3000.0, **FAST)
async def test_a_sample_that_may_crash_functions_becomes_a_tombstone(coordinator, valkey, source, error):
    async def fail(request):
        if "cat/1.jpg" in request.keys:
            raise error

    coordinator.executor.before = fail
    await coordinator.open(await coordinator.register(source))
    counters = coordinator.engine.core.job("job").counters
    await coordinator.until(lambda: (counters.samples_produced, counters.samples_failed) == (9, 1))
    alone = [request.keys for request in coordinator.executor.requests if len(request.keys) == 1]
    assert alone.count(("cat/1.jpg",)) == 2  # the third attempt; the first was part of a larger request
    (batch, *_) = (await coordinator.page()).batches
    assert (batch.resident, batch.failed) == (3, 1)
    ids = split_ids(batch.sample_ids)
    await coordinator.until(lambda: not coordinator.engine.busy)
    tombstone = read_tombstone(in_cache(valkey, ids[1])[0])
    assert (tombstone.key, tombstone.permanent) == ("cat/1.jpg", False)
    assert str(error) in tombstone.message


@pytest.mark.coordinator(**FAST)
async def test_an_invalid_result_is_a_failure_and_its_samples_are_retried(coordinator, source):
    executor = coordinator.executor
    untouched = executor.edit

    def edit_once(result):
        executor.edit = untouched
        return dataclasses.replace(result, outcomes=result.outcomes[:-1])

    executor.edit = edit_once
    await coordinator.open(await coordinator.register(source))
    await coordinator.until(lambda: produced(coordinator) == 10)
    assert coordinator.engine.core.job("job").counters.retries > 0


class SlowDrops(Cache):
    """A cache whose deletions wait for the test."""

    def __init__(self, address, owner):
        super().__init__(address, owner=owner)
        self.gate = asyncio.Event()
        self.begun = self.ended = 0
        self.tell = lambda: None

    async def drop(self, ids):
        self.begun += 1
        self.tell()
        await self.gate.wait()
        await super().drop(ids)
        self.ended += 1


@pytest.mark.coordinator(budget_bytes=2000, cache_type=SlowDrops)  # room for about six of ten records
async def test_nothing_is_produced_before_earlier_deletions_end(coordinator, source):
    await coordinator.open(await coordinator.register(source), batch_size=2)
    cache, requests = coordinator.cache, coordinator.executor.requests
    cache.tell = coordinator.look
    position = 0
    while not cache.begun:  # look further ahead until it has to make room
        await coordinator.page(position=position, yielded=position, count=1)
        coordinator.engine.post(was_read(position=position))
        await coordinator.until(lambda: not coordinator.engine.busy or cache.begun)
        position += 1
    requests_before = len(requests)
    coordinator.engine.post(CacheReset())  # all samples are needed again
    await coordinator.call("GetJobStats", pb.GetJobStatsRequest())
    assert len(requests) == requests_before
    begun_before = cache.begun
    cache.gate.set()
    await coordinator.until(lambda: len(requests) > requests_before)
    assert cache.ended >= begun_before


@pytest.mark.coordinator(store=True)
async def test_no_function_writes_to_the_store_while_it_makes_room(coordinator, source, monkeypatch):
    monkeypatch.setattr(StoreKeeper, "unwritten", "")
    monkeypatch.setattr(StoreKeeper, "takes_packs", False)
    await coordinator.open(await coordinator.register(source))
    coordinator.engine.post(FillUp("job", to_store=True))
    outcomes = coordinator.engine.core.state.fleet.executors[0].outcomes
    await coordinator.until(lambda: outcomes["unavailable"])  # a save was refused
    assert produced(coordinator) == 10
    assert {request.kind for request in coordinator.executor.requests} == {RequestKind.DECODE}


async def test_a_bug_in_an_executor_stops_the_engine(valkey, caplog):
    class Broken(ScriptedExecutor):
        async def invoke(self, request, *, timeout_s):
            raise ZeroDivisionError

    cache = Cache(valkey.unix_url, owner="test")
    engine = Engine(
        CoreSettings(budget_bytes=2**20), cache, [Broken(valkey.unix_url)], DatasetRegistry(max_age_s=1.0)
    )
    engine._tasks.start(engine._executors[0].invoke(None, timeout_s=1))
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(engine.failed, 20)
    await engine.close()
    await cache.close()
    assert "a bug" in caplog.text


MEMORY_GB = 1769 / 1024


@pytest.mark.parametrize(
    ("first", "gb_s", "unbilled"),
    [
        ({"duration_us": 500_000}, 0.5 * MEMORY_GB, 0),
        ({"duration_us": 500_000, "billed_us": 750_000}, 0.75 * MEMORY_GB, 0),
        ({"duration_us": 500_000, "billed_us": 750_000, "memory_mb": 512}, 0.75 * 0.5, 0),
        (ExecutorError("once", FailureKind.RAISED, ran_s=2.0), 2.0 * MEMORY_GB, 0),
        (ExecutorError("once", ran_s=3.0), 3.0 * MEMORY_GB, 0),  # it may have run before it failed
        (ExecutorError("once", FailureKind.RAISED, refused=True), 0.0, 1),  # refused before it was sent
    ],
)
@pytest.mark.coordinator(**FAST)
async def test_what_ran_is_billed_and_what_was_not_sent_is_not(coordinator, source, first, gb_s, unbilled):
    executor = coordinator.executor
    untouched = executor.edit

    async def fail_first(_):
        executor.before = None
        raise first

    def tell_first(result):
        executor.edit = untouched
        return replace(result, **first)

    if isinstance(first, dict):
        executor.edit = tell_first
    else:
        executor.before = fail_first
    await coordinator.open(await coordinator.register(source))
    counters = coordinator.engine.core.job("job").counters
    await coordinator.until(lambda: counters.samples_produced == 10)
    assert counters.gb_s == pytest.approx(gb_s)
    assert counters.invocations == len(executor.requests) - unbilled
    assert counters.samples_failed == 0


async def test_a_record_damaged_on_its_way_into_the_cache_is_produced_again(
    coordinator, valkey, source, monkeypatch, caplog
):
    written = set()

    def damaged(key, sample_id):
        record = bytearray(whole(key, sample_id))
        record[-1] ^= key not in written
        written.add(key)
        return bytes(record)

    whole = running_module.record_of
    monkeypatch.setattr(running_module, "record_of", damaged)
    await coordinator.open(await coordinator.register(source))
    await coordinator.page()
    await coordinator.until(lambda: "was corrupt when read back" in caplog.text)
    await coordinator.until(lambda: len(coordinator.executor.keys_asked) > 10)
    await coordinator.until(lambda: not coordinator.engine.busy)
    keys = coordinator.executor.keys_asked
    (again,) = {key for key in keys if keys.count(key) > 1}
    with valkey.client() as client:
        payloads = [client.get(name)[HEADER_BYTES:] for name in client.keys("super:r1:*")]
    assert whole(again, bytes(16))[HEADER_BYTES:] in payloads
    assert caplog.text.count("was corrupt when read back") == 1
