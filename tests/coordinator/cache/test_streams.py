"""Read reports become events. Bad entries are skipped."""

import asyncio
import contextlib
import dataclasses

import pytest
import redis

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import ReportReader
from superdl.super_wire.errors import CacheUnreachableError
from superdl.super_wire.keys import report_stream
from superdl.super_wire.read_reports import ReadReport
from tests.fixtures.valkey_cluster import valkey_cluster

__all__ = ["valkey_cluster"]

REPORT = ReadReport(
    rank=1,
    epoch=2,
    position=3,
    samples=8,
    hits=6,
    straight=4,
    attempt=1,
    done=0,
    wait_us=40,
    read_us=50,
    check_us=0,
    size_bytes=60,
    missed=(2, 5),
    corrupt=(5,),
)


@contextlib.asynccontextmanager
async def reading(valkey):
    cache = Cache(valkey.unix_url, owner="")
    events = []
    try:
        yield ReportReader(cache.nodes, events.extend), events
    finally:
        await cache.close()


def where(event):
    return event.job, event.report.position


def send(valkey, job="job", **changes):
    with valkey.client() as client:
        client.xadd(report_stream(job), dataclasses.replace(REPORT, **changes).to_fields())


async def read_until(reader, condition):
    async with asyncio.timeout(20):
        while not condition():
            await reader.read_once()


async def test_each_report_arrives_once_and_in_order(valkey):
    async with reading(valkey) as (reader, events):
        await reader.follow("a")
        await reader.follow("b")
        for position in range(700):
            send(valkey, "a" if position % 2 else "b", position=position)
        await read_until(reader, lambda: len(events) >= 700)
        send(valkey, "a", position=9999)
        await read_until(reader, lambda: events[-1].report.position == 9999)
    assert len(events) == 701
    for job, odd in (("a", 1), ("b", 0)):
        reports = [event.report for event in events[:-1] if event.job == job]
        expected = range(odd, 700, 2)
        assert reports == [dataclasses.replace(REPORT, position=position) for position in expected]


async def test_a_stream_expires_unless_it_is_renewed(valkey):
    """A stream expires even if readers recreate it after the cache was emptied."""
    with valkey.client() as client:

        def lives_for_an_hour():
            return 3500 < client.ttl(report_stream("job")) <= 3600

        async with reading(valkey) as (reader, _):
            await reader.follow("job")
            assert lives_for_an_hour()
            send(valkey)
            await reader.renew(0.0)
            assert lives_for_an_hour()
            client.flushall()
            send(valkey)
            await reader.renew(59.0)
            assert client.ttl(report_stream("job")) == -1, "renewed once a minute"
            await reader.renew(60.0)
            assert lives_for_an_hour()


async def test_leaving_a_job_deletes_its_stream(valkey):
    async with reading(valkey) as (reader, events):
        await reader.follow("left")
        await reader.follow("kept")
        send(valkey, "left", position=1)
        await reader.leave("left")
        await reader.leave("left")
        await reader.leave("never followed")
        with valkey.client() as client:
            assert not client.exists(report_stream("left"))
        send(valkey, "left", position=2)
        send(valkey, "kept", position=3)
        await read_until(reader, lambda: events)
    assert [(event.job, event.report.position) for event in events] == [("kept", 3)]


@pytest.mark.parametrize("entry", [{b"x": b"y"}, {**REPORT.to_fields(), b"m": b"abc"}], ids=str)
async def test_an_unreadable_entry_is_counted_and_skipped(valkey, caplog, entry):
    async with reading(valkey) as (reader, events):
        await reader.follow("job")
        with valkey.client() as client:
            client.xadd(report_stream("job"), entry)
        send(valkey, position=7)
        await read_until(reader, lambda: events)
    assert reader.unreadable == 1
    assert [event.report.position for event in events] == [7]
    assert "skipping a read report of job job" in caplog.text


LARGEST = 2**64 - 1
FORGED_IDS = {
    "the largest": f"{LARGEST}-{LARGEST}",
    "one less": f"{LARGEST}-{LARGEST - 1}",
    "beyond any clock": f"{2**63}-0",
    "in a thousand years": f"{10**14}-0",
}


@pytest.mark.parametrize("forged", FORGED_IDS.values(), ids=FORGED_IDS.keys())
async def test_a_forged_entry_id_hides_no_later_report(either, caplog, forged):
    """A reader's ACL user may XADD to any report stream, and nothing else."""

    async with reading(either) as (reader, events):
        with either.client() as client:
            client.xadd(report_stream("job"), REPORT.to_fields(), id=forged)  # before anyone follows
            for job in ("job", "another"):
                await reader.follow(job)
            for turn in range(2):
                with contextlib.suppress(redis.exceptions.ResponseError):  # the id is already taken
                    client.xadd(report_stream("job"), REPORT.to_fields(), id=forged)
                send(either, "another", position=turn)
                while client.xlen(report_stream("job")):
                    await reader.read_once()
                send(either, position=turn)
                await read_until(reader, lambda turn=turn: ("job", turn) in map(where, events))
    heard = [where(event) for event in events if event.report.position != REPORT.position]
    assert sorted(heard) == [(job, turn) for job in ("another", "job") for turn in range(2)]
    warnings = [record for record in caplog.records if getattr(record, "cause", "") == "forged report"]
    assert bool(warnings) == (int(forged.split("-")[0]) > 2**62)


async def test_reports_too_large_to_read_are_dropped_and_later_ones_are_read(valkey):
    async with reading(valkey) as (reader, events):
        await reader.follow("job")
        with valkey.client() as client:
            client.xadd(report_stream("job"), {b"x": bytes(17 * 2**20)})
            with pytest.raises(CacheUnreachableError):
                await reader.read_once()
        send(valkey, position=4)
        await read_until(reader, lambda: events)
    assert [event.report.position for event in events] == [4]


async def test_reading_continues_after_the_cache_is_back(valkey):
    async with reading(valkey) as (reader, events):
        await reader.follow("job")
        valkey.kill()
        with pytest.raises(CacheUnreachableError):
            await reader.read_once()
        valkey.start()
        send(valkey, position=4)
        await read_until(reader, lambda: events)
    assert [event.report.position for event in events] == [4]


async def test_all_reports_of_a_closing_job_are_read_at_once(valkey):
    async with reading(valkey) as (reader, events):
        await reader.follow("job")
        for position in range(700):  # more than one read returns
            send(valkey, position=position)
        await reader.catch_up("job")
    assert [event.report.position for event in events] == list(range(700))
