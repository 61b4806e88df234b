"""Outcomes in a real stream reach those who wait for them, once. What is ill-formed or late harms nobody."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import OutcomeReader
from superdl.super_wire.cache import key_slot
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import CacheError
from superdl.super_wire.request import PrefetchFailure, PrefetchResult, pack_outcome
from tests.coordinator.running import follow
from tests.fixtures.valkey_cluster import valkey_cluster

__all__ = ["valkey_cluster"]

ENOUGH_S = 20.0
RESULT = PrefetchResult("r", "v", False, ("cached",), (1,), (2,), (3,), (4,), (5,), {}, 6)
FAILURE = PrefetchFailure("r", "v", "ConfigError", "why")


def append(server, reader, *answers, packed=()):
    with server.client() as client:
        for value in [*map(pack_outcome, answers), *packed]:
            client.xadd(reader.stream, {b"r": value})


@contextlib.asynccontextmanager
async def following(address):
    """A reader that follows its stream as the coordinator has it do."""
    cache = Cache(address, owner="")
    reader = OutcomeReader(cache.streams)
    await reader.begin()

    task = asyncio.create_task(follow(reader))
    try:
        async with asyncio.timeout(ENOUGH_S):
            yield reader
    finally:
        await cancel_and_wait(task)
        await cache.close()


def test_second_late_and_strange_outcomes_are_dropped(valkey, caplog):
    async def work():
        async with following(valkey.unix_url) as reader:
            late = dataclasses.replace(RESULT, request_id="late")
            with reader.expecting("late") as given_up:
                pass
            assert given_up.cancelled()
            with reader.expecting("r") as outcome:
                append(valkey, reader, late, RESULT, RESULT, dataclasses.replace(RESULT, request_id="x" * 99))
                append(valkey, reader, packed=[b"{}", b"\x00" * 10_000])
                await outcome
            with reader.expecting("last") as outcome:
                append(valkey, reader, dataclasses.replace(RESULT, request_id="last"))
                await outcome
            return reader.unawaited, reader.unreadable

    assert asyncio.run(work()) == (3, 2)
    assert all(len(record.getMessage()) < 500 for record in caplog.records)
    assert sum("skipped" in record.getMessage() for record in caplog.records) == 2


def test_what_was_read_takes_no_memory_and_the_stream_expires(valkey):
    async def work():
        async with following(valkey.unix_url) as reader:
            for _ in range(3):
                with reader.expecting("r") as outcome:
                    append(valkey, reader, RESULT)
                    await outcome
            with valkey.client() as client:
                while client.xlen(reader.stream):  # noqa: ASYNC110  # nobody tells of it
                    await asyncio.sleep(0)  # the reader's turn to delete
                assert 3500 < client.ttl(reader.stream) <= 3600
                client.expire(reader.stream, 5)
                await reader.keep()
                assert client.ttl(reader.stream) > 3500

    asyncio.run(work())


def test_a_lost_stream_fails_who_waits_and_is_made_again(valkey):
    async def work():
        async with following(valkey.unix_url) as reader:
            with reader.expecting("r") as outcome:
                valkey.restart_empty()
                await reader.keep()
                with pytest.raises(CacheError, match="lost the stream of outcomes"):
                    await outcome
            with valkey.client() as client:
                assert client.ttl(reader.stream) > 3500
            with reader.expecting("r") as outcome:
                append(valkey, reader, RESULT)
                assert await outcome == RESULT

    asyncio.run(work())


def test_outcomes_are_read_after_the_clock_of_the_cache_went_back(valkey):
    async def work():
        async with following(valkey.unix_url) as reader:
            with reader.expecting("r") as outcome:
                append(valkey, reader, RESULT)
                await outcome
            valkey.restart_empty()
            reader.lost()
            with reader.expecting("r") as outcome:
                with valkey.client() as client:
                    client.xadd(reader.stream, {b"r": pack_outcome(RESULT)}, id="1-1")
                assert await outcome == RESULT

    asyncio.run(work())


@pytest.mark.slow
def test_in_a_cluster_it_is_read_where_its_slot_is(valkey_cluster):
    async def work():
        async with following(valkey_cluster.url) as reader:
            slot = key_slot(reader.stream.encode())
            owner = valkey_cluster.owners[slot]
            for node in (owner, (owner + 1) % 3):
                with reader.expecting("r") as outcome:
                    append(valkey_cluster.nodes[node], reader, RESULT)
                    assert await outcome == RESULT
                if node == owner:
                    await asyncio.to_thread(valkey_cluster.move, slot, (owner + 1) % 3)

    asyncio.run(work())
