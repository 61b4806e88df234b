"""Restores copy records from packs to the cache, and saves from the cache to packs.

Each record is checked and copied byte for byte, and missing records are reported.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from superdl.lambda_prefetch import transfers
from superdl.super_wire.ids import split_ids
from superdl.super_wire.keys import cache_keys
from superdl.super_wire.record import RecordKind, Tombstone, pack_header, pack_tombstone
from superdl.super_wire.request import RequestKind
from superdl.super_wire.store import PackMeta, collection_of
from tests.lambda_prefetch.prefetching import (
    PLAIN,
    encode,
    file_request,
    pixels,
    raw_record,
    restore_of,
    run,
)
from tests.lambda_prefetch.test_store import assert_whole, files_of

SIDES = (10, 200, 37, 150, 64, 171, 22)
KEYS = [f"{n}.png" for n in range(len(SIDES))]
COUNT = len(SIDES)
DECODER = "f" * 32
NO_STORE = "Use the same store for the coordinator and its functions"


def images_request(tmp_path, valkey, sides=SIDES):
    root = tmp_path / "images"
    root.mkdir()
    for name, side in zip(KEYS, sides, strict=True):
        (root / name).write_bytes(encode(pixels(side, side, seed=side)))
    return file_request(root, KEYS, valkey.unix_url)


def records_of(valkey, request):
    return [raw_record(valkey, request, n) for n in range(len(request.keys))]


def empty(valkey):
    with valkey.client() as client:
        client.flushall()


@pytest.fixture
def written(tmp_path, valkey, store):
    """Write two packs of the same samples. Return the request, the results and the cached records."""
    return write(tmp_path, valkey, store)


@pytest.fixture
def in_directory(tmp_path, valkey, directory_store):
    """As ``written``, in a directory."""
    return write(tmp_path, valkey, directory_store)


def write(tmp_path, valkey, store, sides=SIDES):
    request = images_request(tmp_path, valkey, sides)
    request = replace(request, kind=RequestKind.DECODE_TO_STORE, store=store.address)
    results, records = [], []
    for _ in range(2):
        results.append(run(request))
        records.append(records_of(valkey, request))
        assert results[-1].pack
    empty(valkey)
    return request, results, records


def restore(written, pack_of=(0,) * COUNT, **changes):
    request, results, _ = written
    used = sorted(set(pack_of))
    packs = [results[place].pack for place in used]
    requested = restore_of(
        request, packs, [used.index(place) for place in pack_of], [results[n] for n in used]
    )
    return run(replace(requested, **changes))


def assert_restored(valkey, written, result, pack_of=(0,) * COUNT, lost=()):
    """Check that the cache contains all records except ``lost``, byte for byte."""
    request, _, records = written
    for n, place in enumerate(pack_of):
        if n in lost:
            assert result.outcomes[n] == "not_stored"
            assert "images/" + KEYS[n] in result.messages[str(n)]
            assert raw_record(valkey, request, n) is None
        else:
            assert result.outcomes[n] == "cached", result.messages
            assert raw_record(valkey, request, n) == records[place][n]
    assert set(result.messages) == {str(n) for n in lost}
    assert result.store_trouble == ""


def test_records_are_restored_byte_for_byte(valkey, store, written):
    _, results, records = written
    for pack_of in ((0,) * COUNT, (0, 1, 0, 1, 1, 1, 0)):
        empty(valkey)
        result = restore(written, pack_of)
        assert_restored(valkey, written, result, pack_of)
        assert result.record_bytes == tuple(map(len, records[0]))
        assert result.decode_us == result.source_bytes == 0
        assert result.store_bytes == sum(result.record_bytes)
        assert result.fetch_us > 0
        assert (result.pack, result.offsets) == ("", ())
        assert 0 <= result.store_requests <= COUNT
    assert set(store.packs()) == {one.pack for one in results}


def test_a_flipped_bit_costs_one_sample(valkey, directory_store, in_directory):
    _, results, records = in_directory
    path = Path(directory_store.address, "packs", results[0].pack)
    good, places = path.read_bytes(), list(zip(results[0].offsets, map(len, records[0]), strict=True))
    draws = random.Random(7)
    ends = [offset + length for offset, length in places]
    for at in [*(offset for offset, _ in places), *(draws.randrange(max(ends)) for _ in range(40))]:
        spoiled = bytearray(good)
        spoiled[at] ^= 1 << draws.randrange(8)
        path.write_bytes(spoiled)
        empty(valkey)
        result = restore(in_directory)
        hit = {n for n, (offset, length) in enumerate(places) if offset <= at < offset + length}
        # The times in a header are not checked: any record may have them.
        lost = {n for n in hit if not 48 <= at - places[n][0] < 56}
        expected = list(records[0])
        for n in hit - lost:
            expected[n] = bytes(spoiled[places[n][0] : sum(places[n])])
        assert_restored(valkey, (*in_directory[:2], [expected, records[1]]), result, lost=lost)


BAD_PLACES = [(0, 64), (10**6, 5000), (2**62, 64), (2**63 - 1, 2**63 - 1), (64, 2**63 - 1), (64, 0), (64, 63)]


def test_wrong_locations_restore_nothing(valkey, store, written):
    """Reads are limited to the longest possible record."""
    request, results, _ = written
    good = restore_of(request, [results[0].pack], [0] * COUNT, [results[0]])
    places = [(good.offsets[0] + 64, good.lengths[0]), (good.offsets[1], good.lengths[0]), *BAD_PLACES]
    for at in range(0, len(places), COUNT):
        wrong = places[at : at + COUNT]
        offsets = (*(offset for offset, _ in wrong), *good.offsets[len(wrong) :])
        lengths = (*(length for _, length in wrong), *good.lengths[len(wrong) :])
        empty(valkey)
        result = run(replace(good, offsets=offsets, lengths=lengths))
        assert_restored(valkey, written, result, lost=set(range(len(wrong))))


def test_another_samples_record_is_not_restored(valkey, directory_store, in_directory):
    request, results, _ = in_directory
    good = restore_of(request, [results[0].pack], [0] * COUNT, [results[0]])
    swap = [1, 0, *range(2, COUNT)]
    offsets, lengths = (tuple(column[n] for n in swap) for column in (good.offsets, good.lengths))
    result = run(replace(good, offsets=offsets, lengths=lengths))
    assert_restored(valkey, in_directory, result, lost={0, 1})


def assert_nothing_restored(result, words):
    assert result.outcomes == ("store_error",) * COUNT
    assert words in result.store_trouble
    assert all(words in result.messages[str(n)] for n in range(COUNT))


def test_a_missing_or_wrong_store_restores_nothing(
    valkey, directory_store, in_directory, tmp_path, monkeypatch
):
    Path(directory_store.address).rename(tmp_path / "elsewhere")
    assert_nothing_restored(restore(in_directory), directory_store.address)
    (tmp_path / "elsewhere").rename(directory_store.address)
    for setting in ("", str(tmp_path)):
        monkeypatch.setenv("SUPER_STORE", setting)
        assert_nothing_restored(restore(in_directory), NO_STORE)
    monkeypatch.setenv("SUPER_STORE", directory_store.address)
    monkeypatch.setenv("SUPER_STORE_READ_ONLY", "1")
    assert_restored(valkey, in_directory, restore(in_directory))


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (0, "")])
def test_an_s3_error_restores_nothing(valkey, s3_store, tmp_path, spoil_s3, status, code):
    written = write(tmp_path, valkey, s3_store)
    asked = spoil_s3(status, code)
    assert_nothing_restored(restore(written, (0, 1) * 3 + (0,)), code or f"{s3_store.address}/packs/")
    assert 2 <= len(asked) <= 1 + 2 * 3  # a kept connection that was closed is one more


def test_a_pack_that_s3_refuses_counts_as_missing(valkey, s3_store, tmp_path, spoil_s3):
    """This is S3's response to a missing object if listing is not permitted."""
    written = write(tmp_path, valkey, s3_store)
    spoil_s3(403, "AccessDenied")
    assert_restored(valkey, written, restore(written), lost=set(range(COUNT)))


def test_a_late_restore_or_one_without_a_cache_fails(valkey, directory_store, in_directory):
    assert restore(in_directory, expires_in_s=0.0).outcomes == ("expired",) * COUNT
    valkey.kill()
    result = restore(in_directory)
    assert set(result.outcomes) == {"cache_error"}
    assert all(valkey.unix_url in words for words in result.messages.values())


def test_records_may_exceed_the_budget(valkey, directory_store, tmp_path, monkeypatch):
    """Some records are larger than the budget, others are small."""
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(2**20))
    monkeypatch.setenv("SUPER_PUSH_BYTES", str(2**20))
    written = write(tmp_path, valkey, directory_store, (1000, 20, 700, 30, 1200, 40, 800))
    assert_restored(valkey, written, restore(written))


@pytest.fixture
def cached(tmp_path, valkey):
    """Return a request for cached samples, and their records."""
    request = images_request(tmp_path, valkey)
    assert run(request).outcomes == ("cached",) * COUNT
    return request, records_of(valkey, request)


def save_of(request, store):
    return replace(request, store=store.address, kind=RequestKind.SAVE, golden=DECODER)


def assert_saved(store, result, records, lost=()):
    """Check that the pack contains all records except ``lost``, byte for byte."""
    assert result.store_trouble == ""
    assert len(assert_whole(store, result.pack).entries) == COUNT - len(lost)
    for n, record in enumerate(records):
        if n in lost:
            assert (result.outcomes[n], result.offsets[n]) == ("not_cached", 0)
            assert f"images/{KEYS[n]}: the cache contains no valid record" in result.messages[str(n)]
        else:
            assert (result.outcomes[n], result.record_bytes[n]) == ("cached", len(record))
            assert store.read(result.pack, result.offsets[n], len(record)) == record
    assert set(result.messages) == {str(n) for n in lost}


def test_cached_records_are_saved_with_their_decoders_fingerprint(store, cached):
    request, records = cached
    result = run(save_of(request, store))
    assert_saved(store, result, records)
    assert store.packs() == {result.pack: result.store_bytes}
    meta = store.read_index(result.pack, result.store_bytes).meta
    collection = collection_of(request.bucket, PLAIN.digest)
    assert replace(meta, version="") == PackMeta(collection, request.bucket, PLAIN.json, DECODER, "")
    assert result.decode_us == result.source_bytes == 0


def test_a_long_record_is_read_in_slices(directory_store, cached, monkeypatch):
    monkeypatch.setattr(transfers, "_SLICE_BYTES", 1000)
    monkeypatch.setattr(transfers, "_SAVED_BYTES", 100_000)
    request, records = save_of(cached[0], directory_store), cached[1]
    assert_saved(directory_store, run(request), records)


def test_invalid_records_are_reported_and_skipped(valkey, directory_store, cached):
    request, records = save_of(cached[0], directory_store), cached[1]
    keys, ids = cache_keys(request.ids), split_ids(request.ids)
    stone = pack_tombstone(Tombstone("a", "undecodable", "why", permanent=True), ids[0])
    pointer = pack_header(RecordKind.POINTER, b"somewhere", ids[0]) + b"somewhere"
    flipped = records[0][:-1] + bytes([records[0][-1] ^ 1])
    bad = (None, b"", b"short", stone, pointer, flipped, records[0][:-1], records[0] + b"x", records[1])
    for value in bad:
        with valkey.client() as client:
            client.delete(keys[0])
            if value is not None:
                client.set(keys[0], value)
        assert_saved(directory_store, run(request), records, lost={0})
    with valkey.client() as client:
        client.delete(keys[0])
        client.rpush(keys[0], "a list")
    assert_saved(directory_store, run(request), records, lost={0})
    with valkey.client() as client:
        client.delete(*keys)
    result = run(request)
    assert (result.outcomes, result.pack, result.store_trouble) == (("not_cached",) * COUNT, "", "")


def assert_nothing_saved(result, words):
    assert (result.pack, result.offsets) == ("", ())
    assert words in result.store_trouble


def test_a_read_only_missing_or_wrong_store_saves_nothing(directory_store, cached, tmp_path, monkeypatch):
    request, records = save_of(cached[0], directory_store), cached[1]
    monkeypatch.setenv("SUPER_STORE_READ_ONLY", "1")
    assert_nothing_saved(run(request), "this function does not write packs (SUPER_STORE_READ_ONLY)")
    monkeypatch.delenv("SUPER_STORE_READ_ONLY")
    Path(directory_store.address).rename(tmp_path / "elsewhere")
    assert_nothing_saved(run(request), directory_store.address)
    (tmp_path / "elsewhere").rename(directory_store.address)
    monkeypatch.setenv("SUPER_STORE", str(tmp_path))
    assert_nothing_saved(run(request), NO_STORE)
    monkeypatch.setenv("SUPER_STORE", directory_store.address)
    assert files_of(Path(directory_store.address)) == []
    assert_saved(directory_store, run(request), records)


def test_a_late_save_or_one_without_a_cache_fails(valkey, directory_store, cached):
    request = save_of(cached[0], directory_store)
    assert run(replace(request, expires_in_s=0.0)).outcomes == ("expired",) * COUNT
    valkey.kill()
    result = run(request)
    assert result.outcomes == ("cache_error",) * COUNT
    assert all(valkey.unix_url in words for words in result.messages.values())
    assert files_of(Path(directory_store.address)) == []
