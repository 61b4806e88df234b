"""The engine on a real core and a real cache: actions are carried out in order, results become events."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import CacheReset, CoreSettings, FillUp
from superdl.coordinator.executors.base import (
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
)
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import split_ids
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import read_tombstone
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.running import RECIPE, ScriptedExecutor, missed, record_of

KEYS = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(5)]
FAST = {"backoff_s": 0.001, "backoff_max_s": 0.002}


def was_read(position, epoch=0):
    """A reader has delivered a batch."""
    return dataclasses.replace(missed([], position), epoch=epoch, hits=2, samples=2, done=True)


def produced(coordinator):
    return coordinator.engine.core.job("job").counters.samples_produced


def in_cache(valkey, ids):
    with valkey.client() as client:
        return [client.get(cache_key(one)) for one in split_ids(ids)]


async def ids_of(coordinator, job="job"):
    return b"".join(batch.sample_ids for batch in (await coordinator.page(job)).batches)


def test_a_request_says_all_that_a_function_must_know(run, valkey, source):
    async def work(coordinator):
        before = time.time()
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 10)
        asked = coordinator.executor.requests
        keys = coordinator.executor.keys_asked
        assert sorted(keys) == KEYS
        ids = split_ids(await ids_of(coordinator))
        assert [bytes.fromhex(hex_id) for request in asked for hex_id in request.ids] == [
            ids[KEYS.index(key)] for key in keys
        ]
        assert len({request.request_id for request in asked}) == len(asked)
        for request in asked:
            assert request.bucket == f"file://{source}"
            assert request.recipe == RECIPE.json
            assert request.cache == valkey.unix_url
            assert request.epoch == 0
            assert before + 40 < request.expires_at < time.time() + 41
            assert all(version.startswith("1-") for version in request.versions)

    run(work, request_ttl_s=40.0)


@pytest.mark.parametrize(
    ("error", "tombstone_says"),
    [
        (FunctionCrashedError("killed by SIGSEGV"), "the function's process ended: killed by SIGSEGV"),
        (FunctionTimedOutError("after 3 s"), "the function did not answer in time: after 3 s"),
        (FunctionRaisedError("KeyError: x"), "the function raised: KeyError: x"),
        (PayloadTooLargeError("7 MB"), "the function raised: 7 MB"),
        (ConfigError("another version"), "the function raised: another version"),
    ],
)
def test_what_a_sample_may_be_to_blame_for_ends_in_a_tombstone(run, valkey, source, error, tombstone_says):
    async def work(coordinator):
        async def fail(request):
            if "cat/1.jpg" in request.keys:
                raise error

        coordinator.executor.before = fail
        await coordinator.open(await coordinator.register(source))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: (counters.samples_produced, counters.samples_failed) == (9, 1))
        alone = [request.keys for request in coordinator.executor.requests if len(request.keys) == 1]
        assert alone.count(("cat/1.jpg",)) == 2  # the third attempt; the first was in company
        (batch, *_) = (await coordinator.page()).batches
        assert (batch.resident, batch.failed) == (3, 1)
        ids = split_ids(batch.sample_ids)
        await coordinator.until(lambda: not coordinator.engine.busy)
        tombstone = read_tombstone(in_cache(valkey, ids[1])[0])
        assert (tombstone.key, tombstone.permanent) == ("cat/1.jpg", False)
        assert tombstone.message == tombstone_says

    run(work, attempts=3, tombstone_ttl_s=3000.0, **FAST)


NONSENSE = {
    "too few outcomes": lambda result: dataclasses.replace(result, outcomes=result.outcomes[:-1]),
    "messages without a number": lambda result: dataclasses.replace(result, messages={"first": "?"}),
    "a negative length": lambda result: dataclasses.replace(
        result, record_bytes=(-5,) * len(result.outcomes)
    ),
    "an endless time": lambda result: dataclasses.replace(result, fetch_us=(10**30,) * len(result.outcomes)),
}


@pytest.mark.parametrize("edit", NONSENSE.values(), ids=NONSENSE.keys())
def test_an_answer_that_makes_no_sense_is_a_failure_and_is_tried_again(run, source, edit):
    async def work(coordinator):
        executor = coordinator.executor
        untouched = executor.edit

        def edit_once(result):
            executor.edit = untouched
            return edit(result)

        executor.edit = edit_once
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 10)
        assert coordinator.engine.core.job("job").counters.retries > 0

    run(work, **FAST)


def test_a_permanent_failure_is_told_and_not_tried_again(run, source):
    async def work(coordinator):
        coordinator.executor.outcomes = {"dog/2.jpg": Outcome.TOMBSTONE}
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 9)
        for _ in range(3):
            coordinator.engine.post(missed([3], position=1))
        counters = coordinator.engine.core.job("job").counters
        await coordinator.until(lambda: not coordinator.engine.busy)
        assert counters.samples_failed == 1
        assert coordinator.executor.keys_asked.count("dog/2.jpg") == 1

    run(work)


def test_what_a_reader_misses_is_looked_for_and_produced_again(run, valkey, source):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 10)
        ids = split_ids(await ids_of(coordinator))
        with valkey.client() as client:
            client.delete(cache_key(ids[1]))
        coordinator.engine.post(missed([0, 1]))  # the first is there after all
        await coordinator.until(lambda: produced(coordinator) == 11)
        assert coordinator.executor.keys_asked[10:] == ["cat/1.jpg"]
        assert in_cache(valkey, ids[1]) == [record_of("cat/1.jpg", ids[1])]

    run(work)


def test_what_an_earlier_coordinator_left_is_not_produced_again(run, valkey, source):
    async def first(coordinator):
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 10)
        return await ids_of(coordinator)

    async def second(coordinator):
        with valkey.client() as client:
            client.delete(cache_key(split_ids(ids)[7]))
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: produced(coordinator) == 1)
        await coordinator.until(lambda: not coordinator.engine.busy)  # the other batches' audits too
        assert coordinator.executor.keys_asked == [KEYS[7]]
        assert sum(batch.resident for batch in (await coordinator.page()).batches) == 10

    ids = run(first)
    run(second, cache_was_empty=False)


class SlowDrops(Cache):
    """A cache whose deletions wait for the test."""

    def __init__(self, address):
        super().__init__(address, owner="test")
        self.gate = asyncio.Event()
        self.begun = self.ended = 0
        self.tell = lambda: None

    async def drop(self, ids):
        self.begun += 1
        self.tell()
        await self.gate.wait()
        await super().drop(ids)
        self.ended += 1


def test_nothing_is_produced_before_earlier_deletions_have_ended(run, valkey, source):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source), batch_size=2)
        cache, asked = coordinator.cache, coordinator.executor.requests
        cache.tell = coordinator.look
        position = 0
        while not cache.begun:  # the look-ahead goes on and has to make room
            await coordinator.page(position=position, yielded=position, count=1)
            coordinator.engine.post(was_read(position=position))
            await coordinator.until(lambda: not coordinator.engine.busy or cache.begun)
            position += 1
        asked_before = len(asked)
        coordinator.engine.post(CacheReset())  # all is wanted again
        await coordinator.call("GetJobStats", pb.GetJobStatsRequest())
        assert len(asked) == asked_before
        begun_before = cache.begun
        cache.gate.set()
        await coordinator.until(lambda: len(asked) > asked_before)
        assert cache.ended >= begun_before

    run(work, budget_bytes=2000, cache=SlowDrops(valkey.unix_url))  # room for six records or so, of ten


def test_while_the_store_makes_room_no_function_is_asked_to_write_to_it(run, source, monkeypatch):
    monkeypatch.setattr(StoreKeeper, "unwritten", "")
    monkeypatch.setattr(StoreKeeper, "takes_packs", False)

    async def work(coordinator):
        await coordinator.open(await coordinator.register(source))
        coordinator.engine.post(FillUp("job", to_store=True))
        outcomes = coordinator.engine.core.state.fleet.executors[0].outcomes
        await coordinator.until(lambda: outcomes["unavailable"])  # a save was refused
        assert produced(coordinator) == 10
        assert {request.kind for request in coordinator.executor.requests} == {RequestKind.DECODE}

    run(work, store=True)


def test_a_bug_in_an_executor_is_seen(valkey, caplog):
    class Broken(ScriptedExecutor):
        async def invoke(self, request, *, timeout_s):
            raise ZeroDivisionError

    async def body():
        cache = Cache(valkey.unix_url, owner="test")
        engine = Engine(
            CoreSettings(budget_bytes=2**20), cache, [Broken(valkey.unix_url)], DatasetRegistry(max_age_s=1.0)
        )
        engine._tasks.start(engine._executors[0].invoke(None, timeout_s=1))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(engine.failed, 20)
        await engine.close()
        await cache.close()

    asyncio.run(body())
    assert "a bug" in caplog.text


def test_closing_abandons_what_is_under_way(run, source):
    async def work(coordinator):
        cancelled = asyncio.Event()

        async def hang(_):
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        coordinator.executor.before = hang
        await coordinator.open(await coordinator.register(source))
        await coordinator.until(lambda: coordinator.executor.requests)
        await asyncio.wait_for(coordinator.engine.close(), 20)
        assert cancelled.is_set()
        coordinator.engine.post(missed([0]))  # what comes late changes nothing
        assert not coordinator.engine.busy

    run(work)
