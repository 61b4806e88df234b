"""Test the coordinator on a real cluster, in plain text and over TLS, also as slots move and nodes die."""

import asyncio

import pytest

from superdl.coordinator.cache.streams import ReportReader
from superdl.super_wire.cache import SLOTS, key_slot
from superdl.super_wire.errors import CacheUnreachableError, ConfigError
from superdl.super_wire.keys import REPORT_PREFIX, cache_key, report_stream
from superdl.super_wire.record import HEADER_BYTES, Tombstone
from tests.coordinator.cache.test_cache import MB, a_record, an_id, open_cache
from tests.fixtures.ports import free_port
from tests.fixtures.valkey import Valkey
from tests.fixtures.valkey_cluster import ValkeyCluster


def ids(numbers):
    return b"".join(map(an_id, numbers))


@pytest.fixture(scope="module", params=["plain", pytest.param("tls", marks=pytest.mark.slow)])
def running(request, certificates):
    with ValkeyCluster(certificates=certificates if request.param == "tls" else None) as cluster:
        yield cluster


@pytest.fixture
def cluster(running, certificates, monkeypatch):
    """A cluster without keys, with its certificates' authority in the environment."""
    monkeypatch.setenv("SUPER_CACHE_CA_FILE", certificates.ca_file)
    for node in running.nodes:
        with node.client() as client:
            client.flushall()
    return running


def of_node(cluster, node, count):
    """Return ``count`` numbers whose records are on this node."""
    found = (n for n in range(100_000) if cluster.owners[key_slot(cache_key(an_id(n)))] == node)
    return [next(found) for _ in range(count)]


def append(cluster, stream):
    with cluster.node_of(stream).client() as client:
        client.xadd(stream, {"x": ""})


async def test_audits_drops_and_tombstones_reach_every_node(cluster):
    numbers = range(2500)
    cluster.set({cache_key(an_id(n)): a_record(0, (n % 7 + 1,)) for n in numbers if n % 3})

    async with open_cache(cluster.url) as cache:
        found = await cache.audit(ids(numbers))
        await cache.drop(ids(range(1000)))
        await cache.write_tombstones(
            ids(range(30)), [Tombstone("k", "undecodable", "m", permanent=False)] * 30, 60.0
        )
        after = await cache.audit(ids(range(1002)))
    assert found.tolist() == [HEADER_BYTES + n % 7 + 1 if n % 3 else 0 for n in numbers]
    assert (after[:30] < 0).all()
    assert not after[30:1000].any()
    assert after[1001] > 0


async def test_a_scan_visits_every_node(cluster):
    cluster.set({cache_key(an_id(n)): b"x" for n in range(3000)} | {b"other": b"x"})

    async with open_cache(cluster.url) as cache:
        cursor, found, steps = 0, b"", 0
        while steps == 0 or cursor:
            cursor, some = await cache.scan_records(cursor, count=500)
            found += some
            steps += 1
    assert {found[at : at + 16] for at in range(0, len(found), 16)} == {an_id(n) for n in range(3000)}
    assert steps >= 3


async def test_reports_arrive_after_their_streams_have_moved(cluster):
    slot = key_slot(REPORT_PREFIX)
    source = cluster.owners[slot]

    async with open_cache(cluster.url) as cache:
        reader = ReportReader(cache.nodes, print)
        for job in "ab":
            await reader.follow(job)
        cluster.begin_move(slot, (source + 1) % 3)
        cluster.move_keys(slot, (source + 1) % 3, [report_stream("a")])
        with pytest.raises(CacheUnreachableError, match="is not ready: TRYAGAIN"):
            await reader.read_once()
        cluster.move_keys(slot, (source + 1) % 3)
        cluster.end_move(slot, (source + 1) % 3)
        append(cluster, report_stream("b"))
        await reader.read_once()
        assert reader.unreadable == 1, "the entry is no report"


@pytest.mark.parametrize("dead", [0, 1])
async def test_a_dead_node_fails_only_its_own_commands_and_recovers(cluster, dead):
    lost, there = of_node(cluster, dead, 5), of_node(cluster, 2, 5)
    cluster.set({cache_key(an_id(n)): a_record(9) for n in lost + there})

    async with open_cache(cluster.url) as cache:
        before = await cache.info()
        assert before.maxmemory == pytest.approx(0.95 * 3 * 512 * MB, rel=1e-3)  # 16384 is not divisible by 3
        assert (len(before.nodes), before.keys, before.policy) == (3, 10, "noeviction")
        cluster.nodes[dead].kill()
        for command in (
            lambda: cache.audit(ids(lost + there)),
            lambda: cache.drop(ids(lost)),
            cache.info,
        ):
            with pytest.raises(CacheUnreachableError):
                await command()
        assert (await cache.audit(ids(there)) > 0).all()
        cluster.nodes[dead].start()
        await asyncio.to_thread(cluster.wait_until_ready)
        assert not (await cache.audit(ids(lost))).any()
        after = await cache.info()
        assert len(after.nodes & before.nodes) == 2
        assert len(after.nodes) == 3


async def test_a_node_beyond_loopback_needs_tls():
    server = Valkey(arguments=("--cluster-enabled", "yes", "--cluster-announce-ip", "10.1.2.3"))
    server.arguments += ("--cluster-port", str(free_port()))
    server.start()
    try:
        with server.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        with pytest.raises(
            ConfigError,
            match=rf"the cache at redis://10\.1\.2\.3:{server.port} is not at a loopback address.*rediss://",
        ):
            async with open_cache(server.url) as cache:
                await cache.info()
    finally:
        server.close()
