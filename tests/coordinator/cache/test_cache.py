"""Test the coordinator's side of a real cache: audits, deletions, tombstones, lock, budget, errors."""

import contextlib
import dataclasses

import numpy as np
import pytest
import redis

from superdl.coordinator.cache.cache import A_POINTER, LOCK_TTL_S, Cache, LockHeldError
from superdl.coordinator.cache.info import CacheInfo, combined
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from superdl.super_wire.keys import FINGERPRINT_KEY, LOCK_KEY, cache_key
from superdl.super_wire.record import Tombstone, pack, pack_tombstone, read_tombstone
from superdl.super_wire.record_kinds import Pointer, pack_arrays, pack_pointer
from tests.fixtures.ports import free_port
from tests.fixtures.valkey import Valkey

MB = 2**20


@contextlib.asynccontextmanager
async def open_cache(address, owner=""):
    cache = Cache(address, owner=owner)
    try:
        yield cache
    finally:
        await cache.close()


def an_id(number):
    return number.to_bytes(16, "big")


def a_record(value, shape=(4, 4, 3)):
    header, payload = pack(np.full(shape, value, dtype=np.uint8), an_id(0))
    return header + bytes(payload)


def a_tombstone(key="a.jpg", message="cannot be decoded"):
    return Tombstone(key, "undecodable", message, permanent=True)


async def test_an_audit_distinguishes_records_tombstones_and_other_values(either):
    tombstone = pack_tombstone(a_tombstone(), an_id(0))
    record = a_record(1)
    pointer = pack_pointer(Pointer("a.pack", 64, 112), an_id(0))
    arrays = pack_arrays({"a": np.zeros(3)}, an_id(1))
    ids = b"".join(map(an_id, range(12)))
    with either.client() as client:
        client.set(cache_key(an_id(0)), record)
        client.set(cache_key(an_id(1)), arrays)
        client.set(cache_key(an_id(2)), tombstone)
        client.set(cache_key(an_id(3)), b"garbage")
        client.set(cache_key(an_id(4)), b"x" * 5000)
        client.set(cache_key(an_id(5)), record[:-1])  # shorter than its header says
        client.set(cache_key(an_id(6)), record[:4] + b"\x07" + record[5:])  # of a later format version
        client.set(cache_key(an_id(7)), record[:5] + b"\x08" + record[6:])  # of an unknown kind
        client.rpush(cache_key(an_id(8)), b"a list")
        client.set(cache_key(an_id(9)), record[:8] + b"\xff" * 8 + record[16:])  # length does not match
        client.set(cache_key(an_id(10)), pointer)
        client.set(cache_key(an_id(11)), pointer[:-1])
    async with open_cache(either.url) as cache:
        lengths = await cache.audit(ids)
        assert not (await cache.audit(b"")).size
    assert lengths.tolist() == [
        len(record),
        len(arrays),
        -len(tombstone),
        *[0] * 7,
        A_POINTER + len(pointer),
        0,
    ]


async def test_tombstones_expire_and_overwrite_nothing(either):
    record, tombstone = a_record(1), dataclasses.replace(a_tombstone(), permanent=False)
    with either.client() as client:
        client.set(cache_key(an_id(1)), record)
        async with open_cache(either.url) as cache:
            await cache.write_tombstones(an_id(1) + an_id(2), [tombstone, tombstone], 60.0)
        assert client.get(cache_key(an_id(1))) == record
        assert client.pttl(cache_key(an_id(1))) == -1
        assert read_tombstone(client.get(cache_key(an_id(2)))) == tombstone
        assert 0 < client.pttl(cache_key(an_id(2))) <= 60_000


@pytest.mark.parametrize(("owner", "other"), [("me", "me2"), ("me", "m"), ("me", ""), ("", "")])
async def test_another_owner_is_refused_the_lock(valkey, owner, other):
    async with open_cache(valkey.url, owner) as first, open_cache(valkey.url, other) as second:
        await first.hold_lock()
        with pytest.raises(LockHeldError, match="another coordinator owns the cache") as caught:
            await second.hold_lock()
    assert valkey.url in str(caught.value)
    assert 0 < caught.value.expires_in_s <= LOCK_TTL_S


async def test_a_restarted_coordinator_takes_over_its_owners_lock(valkey):
    async with open_cache(valkey.url, "me") as old, open_cache(valkey.url, "me") as new:
        await old.hold_lock()
        assert await new.hold_lock()
        with pytest.raises(LockHeldError):  # if the old one is still alive, it cannot take the lock back
            await old.hold_lock()
        await old.release_lock()
        assert not await new.hold_lock()


async def test_a_lock_is_renewed_and_released_only_by_its_holder_and_retaken_after_a_flush(either):
    async with open_cache(either.url) as first, open_cache(either.url) as second:
        assert await first.hold_lock()
        with either.client() as client:
            client.pexpire(LOCK_KEY, 1000)
            assert not await first.hold_lock()
            assert 1000 < client.pttl(LOCK_KEY) <= LOCK_TTL_S * 1000
        await second.release_lock()
        with pytest.raises(LockHeldError):
            await second.hold_lock()
        await first.release_lock()
        assert await second.hold_lock()
        with either.client() as client:
            client.flushall()
        assert [await second.hold_lock(), await second.hold_lock()] == [True, False]


async def test_after_a_dns_failover_the_new_server_is_used(valkey):
    """After a DNS failover the connection to the demoted server stays open but refuses writes."""
    successor = Valkey()
    try:
        async with open_cache(valkey.url) as cache:
            await cache.write_tombstones(an_id(1), [a_tombstone()], 60.0)
            with valkey.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                client.config_set("port", free_port())
            successor.port = valkey.port
            successor.start()
            await cache.write_tombstones(an_id(2), [a_tombstone()], 60.0)
        with successor.client() as client:
            assert client.exists(cache_key(an_id(2)))
    finally:
        successor.close()


def fill(server):
    with server.client() as client:
        for number in range(1000):
            client.set(cache_key(an_id(number)), bytes(64 * 1024))


async def test_a_full_cache_still_renews_the_lock_and_drops_records():
    server = Valkey(maxmemory="4mb")
    server.start()
    try:
        async with open_cache(server.unix_url) as cache:
            await cache.hold_lock()
            await cache.agree_on_fingerprint("d1")
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                fill(server)
            assert not await cache.hold_lock()
            assert await cache.agree_on_fingerprint("d1") == ("d1", False)
            await cache.drop(b"".join(map(an_id, range(1000))))
            assert (await cache.audit(an_id(0))).tolist() == [0]
    finally:
        server.close()


async def test_the_first_fingerprint_stays(valkey):
    async with open_cache(valkey.url) as cache:
        agreed = [await cache.agree_on_fingerprint(digest) for digest in ("aa", "aa", "bb")]
    assert agreed == [("aa", True), ("aa", False), ("aa", False)]
    with valkey.client() as client:
        assert client.ttl(FINGERPRINT_KEY) == -1


async def test_the_servers_report_is_parsed(either):
    with either.client() as client:
        client.set("a", "b")
    async with open_cache(either.unix_url) as cache:
        before = await cache.info()
        either.restart_empty()
        after = await cache.info()  # on a connection that broke while idle
    assert before.maxmemory == 512 * MB
    assert before.policy == "noeviction"
    assert before.keys == 1
    assert 0 < before.used_memory < before.maxmemory
    assert before.system_memory > before.maxmemory
    assert not after.nodes & before.nodes
    assert after.keys == 0


@pytest.mark.parametrize(
    ("maxmemory", "system_memory", "cache_bytes", "expected"),
    [
        (1000 * MB, 0, 0, 900 * MB),  # a tenth is left for client buffers
        (10_000 * MB, 0, 0, 9000 * MB),
        (100 * MB, 0, 0, 75 * MB),  # at least 64 MiB, but at most a quarter of a small server
        (400 * MB, 0, 0, 336 * MB),
        (1000 * MB, 0, 200 * MB, 150 * MB),  # as if the server had this much
        (1000 * MB, 0, 5000 * MB, 900 * MB),  # never more than the server has
        (0, 4000 * MB, 0, 900 * MB),  # no limit: a quarter of the machine
        (0, 4000 * MB, 3000 * MB, 2700 * MB),
    ],
)
def test_the_budget_leaves_headroom(maxmemory, system_memory, cache_bytes, expected):
    info = CacheInfo(frozenset(), 0, maxmemory, "noeviction", system_memory, 0)
    assert info.budget(cache_bytes) == expected


async def test_every_command_reports_an_unreachable_cache(valkey):
    valkey.kill()
    async with open_cache(valkey.url) as cache:
        for command in (
            cache.info,
            cache.hold_lock,
            lambda: cache.agree_on_fingerprint("aa"),
            lambda: cache.audit(an_id(0)),
            lambda: cache.drop(an_id(0)),
            lambda: cache.write_tombstones(an_id(0), [a_tombstone()], 1.0),
        ):
            with pytest.raises(CacheUnreachableError, match=valkey.url):
                await command()


@pytest.mark.parametrize("form", ["url", "unix_url"])
@pytest.mark.parametrize("password", [None, "", "wrong"])
async def test_a_wrong_password_is_refused_and_not_shown(valkey, monkeypatch, password, form):
    address = getattr(valkey, form)
    with valkey.client() as client:
        client.config_set("requirepass", "right")
    monkeypatch.delenv("SUPER_CACHE_USERNAME", raising=False)
    if password is None:
        monkeypatch.delenv("SUPER_CACHE_PASSWORD", raising=False)
    else:
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", password)
    refusal = f"the cache at {address} refused.*set SUPER_CACHE_USERNAME"
    with pytest.raises(CacheError, match=refusal) as caught:
        async with open_cache(address) as cache:
            await cache.info()
    assert not isinstance(caught.value, CacheUnreachableError)
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "right")
    async with open_cache(address) as cache:
        assert (await cache.info()).keys == 0


async def test_reading_back_verifies_whole_records(either):
    tombstone, record = pack_tombstone(a_tombstone(), an_id(0)), a_record(1)
    spoilt = record[:-1] + bytes([record[-1] ^ 1])
    pointer = pack_pointer(Pointer("a.pack", 64, 112), an_id(0))
    values = (record, spoilt, tombstone, tombstone[:-1] + b"?", b"garbage", pointer, pointer[:-1] + b"?")
    with either.client() as client:
        for number, value in enumerate(values):
            client.set(cache_key(an_id(number)), value)
    async with open_cache(either.url) as cache:
        lengths = await cache.read_back(b"".join(map(an_id, range(8))))
    assert lengths.tolist() == [len(record), 0, -len(tombstone), 0, 0, A_POINTER + len(pointer), 0, 0]


def a_node(name, *, used=0, maxmemory=0, policy="noeviction", system=0, keys=0, evicted=0):
    said = {"run_id": name, "used_memory": used, "maxmemory": maxmemory, "maxmemory_policy": policy}
    said |= {"total_system_memory": system, "evicted_keys": evicted}
    lines = ("# Server", *(f"{name}:{value}" for name, value in said.items()), "")
    return CacheInfo.of_server("\r\n".join(lines).encode(), keys)


@pytest.mark.parametrize(
    ("slots", "used", "maxmemory", "whole", "free"),
    [
        ((10, 10), (20, 20), (100, 100), 190, 150),
        ((10, 10), (20, 60), (100, 100), 190, 70),  # the second has 35 left and gets half of what comes
        ((10, 10), (20, 20), (100, 300), 190, 150),  # the second never gets more than the first
        ((10, 30), (20, 20), (100, 100), 380 / 3, 100),
        ((10, 10), (105, 20), (100, 100), 190, -20),
        ((10, 10), (20, 20), (100, 0), 190, 150),  # a node without a limit does not count
    ],
)
def test_the_fullest_node_limits_a_cluster(slots, used, maxmemory, whole, free):
    nodes = [a_node(str(n), used=used[n] * MB, maxmemory=maxmemory[n] * MB) for n in range(2)]
    info = combined(nodes, slots, 1)
    shares = [node / limit for node, limit in zip(used, maxmemory, strict=True) if limit]
    assert info.fullest_share == pytest.approx(max(shares))
    assert info.maxmemory == pytest.approx(whole * MB, abs=2)
    assert info.maxmemory - info.used_memory == pytest.approx(free * MB, abs=4)


def test_without_limits_the_budget_follows_the_machines_memory():
    nodes = [a_node(str(n), used=MB, system=4000 * MB) for n in range(3)]
    assert combined(nodes, (1, 1, 1), hosts=1).budget(0) == 900 * MB
    assert combined(nodes, (1, 1, 1), hosts=3).budget(0) == 2700 * MB
    assert combined(nodes, (1, 1, 1), hosts=1).used_memory == 3 * MB


def test_keys_and_evictions_are_summed_and_an_evicting_policy_is_reported():
    nodes = [a_node("a", keys=3, evicted=1), a_node("b", keys=4, evicted=2, policy="allkeys-lru")]
    info = combined(nodes, (1, 1), 1)
    assert info.nodes == {"a", "b"}
    assert (info.keys, info.evicted_keys, info.policy) == (7, 3, "allkeys-lru")
