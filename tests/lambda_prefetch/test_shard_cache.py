"""Blocks of shards are fetched once for all readers, when it pays off, and within a limit."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from superdl.lambda_prefetch.sources import BLOCK_BYTES, ShardCache
from superdl.super_wire.objects import Span, open_bucket
from tests.lambda_prefetch.prefetching import fetched, member, member_request, outcomes_of

MEMBER_BYTES = 100_000
SHARD_BYTES = 2 * BLOCK_BYTES + 5 * MEMBER_BYTES


class Shards:
    """A server with shards, which records the spans that are read."""

    def __init__(self):
        self.bodies = {f"{name}.tar": random.Random(name).randbytes(SHARD_BYTES) for name in "ab"}
        self.version = "e"
        self.spans = []
        self._lock = threading.Lock()

    def answer(self, request):
        key = request.path.rpartition("/")[2]
        begin, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        if request.headers["If-Match"].strip('"') != self.version:
            request.answer(412, {}, b"")
            return
        with self._lock:
            self.spans.append((key, begin, last + 1))
        body = self.bodies[key][begin : last + 1]
        told = f"bytes {begin}-{begin + len(body) - 1}/{SHARD_BYTES}"
        request.answer(206, {"ETag": f'"{self.version}"', "Content-Range": told}, body)

    @property
    def blocks(self):
        """The fetched blocks, by shard and offset."""
        return [(key, begin) for key, begin, end in self.spans if end - begin == BLOCK_BYTES]

    def request(self, places, version="e"):
        """Return a request for members, given by shard and offset."""
        rows = [member(key, version, at, at, MEMBER_BYTES) for key, at in places]
        return member_request("s3://data", rows, "redis://h:1")


@pytest.fixture
def shards(s3_server, tmp_path, monkeypatch):
    shards = Shards()
    s3_server(shards.answer)
    monkeypatch.setenv("SUPER_SHARDS", str(tmp_path))
    monkeypatch.setenv("SUPER_SHARDS_BYTES", str(10 * BLOCK_BYTES))
    return shards


def members(shards, count=400):
    """Return members in random order that are too far apart to be read together."""
    places = [
        (key, at) for key in shards.bodies for at in range(0, SHARD_BYTES - MEMBER_BYTES, 4 * MEMBER_BYTES)
    ]
    random.Random(5).shuffle(places)
    return places[:count]


def read(shards, places, **options):
    """Read members and check their bytes. Return the number of GETs."""
    found, requests = fetched(shards.request(places, **options), open_bucket("s3://data"))
    assert outcomes_of(found) == ["whole"] * len(places)
    for place, (key, at) in enumerate(places):
        assert found[place] == shards.bodies[key][at : at + MEMBER_BYTES]
    return requests


def test_a_block_is_fetched_once_for_all_functions_after_a_few_members(shards):
    places = [*members(shards), ("a.tar", BLOCK_BYTES - 50_000)]  # which lies in two blocks
    batches = [places[at : at + 8] for at in range(0, len(places), 8)]
    with ThreadPoolExecutor(4) as functions:
        counted = sum(functions.map(lambda batch: read(shards, batch), batches))
    assert counted == len(shards.spans) < len(places)
    read(shards, places)  # two blocks are fetched at a time: others may have been passed over
    assert len(set(shards.blocks)) == len(shards.blocks) == 4  # two of each shard; its end is shorter
    before = len(shards.spans)
    assert read(shards, places) == len(shards.spans) - before < 8


def take(cache, key, at):
    """Read a member until its block is used. Return fetched bytes and requests, or ``None``."""
    bucket, span = open_bucket("s3://data"), Span(at, at + MEMBER_BYTES)
    asked = (cache.count_read(bucket, key, "e", span) for _ in range(5))
    if not any(asked):
        return None
    data, *fetched_by = cache.read(bucket, key, "e", span, lambda _: None)
    return None if data is None else tuple(fetched_by)


def test_a_full_cache_replaces_only_idle_blocks(shards, tmp_path):
    bound = str(tmp_path), 2 * BLOCK_BYTES + 1000
    cache, new = ShardCache(*bound), (BLOCK_BYTES, 1)
    assert [take(cache, "a.tar", at) for at in (0, BLOCK_BYTES)] == [new, new]
    assert [take(cache, "b.tar", 0) for _ in range(2)] == [None, None]
    assert take(cache, "a.tar", 500) == (0, 0)
    (idle,) = tmp_path.glob(f"*-{BLOCK_BYTES}")
    os.utime(idle, (0, 0))
    cache = ShardCache(*bound)  # which has not just seen that it is full
    assert [take(cache, "b.tar", 0), take(cache, "a.tar", 0)] == [new, (0, 0)]
    span = Span(BLOCK_BYTES, BLOCK_BYTES + MEMBER_BYTES)
    assert not cache.count_read(open_bucket("s3://data"), "a.tar", "e", span)  # it begins anew
    assert not idle.exists()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound[1]


def test_a_rewritten_shard_is_a_different_shard(shards):
    places = [("a.tar", at) for at in range(0, 10 * MEMBER_BYTES, 2 * MEMBER_BYTES)]
    for place in places:
        read(shards, [place])
    assert len(shards.blocks) == 1
    shards.version = "f"
    read(shards, places)  # what the catalog lists is here, whatever became of it
    elsewhere = [("a.tar", BLOCK_BYTES), ("b.tar", 0)]
    found, _ = fetched(shards.request(elsewhere), open_bucket("s3://data"))
    assert outcomes_of(found) == ["changed"] * 2
    assert read(shards, places[:1], version="f") == 1


def test_functions_continue_without_the_cache_directory(shards, tmp_path):
    places = [("a.tar", at) for at in range(0, 20 * MEMBER_BYTES, 2 * MEMBER_BYTES)]
    for place in places[:5]:
        read(shards, [place])
    for path in tmp_path.iterdir():
        path.unlink()
    tmp_path.rmdir()
    assert [read(shards, [place]) for place in places] == [1] * len(places)
