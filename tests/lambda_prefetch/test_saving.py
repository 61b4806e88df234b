"""A save writes to a pack what the cache holds, byte for byte and checked, and tells what has gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from superdl.lambda_prefetch import saving
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import RecordKind, Tombstone, pack_header, pack_tombstone
from superdl.super_wire.request import RequestKind
from superdl.super_wire.store import PackMeta, collection_of
from tests.lambda_prefetch.prefetching import PLAIN, encode, file_request, pixels, raw_record, run
from tests.lambda_prefetch.test_store import assert_whole, files_of, images_in, killed_at_each_step

SIDES = (10, 200, 37, 150, 64)
KEYS = [f"{n}.png" for n in range(len(SIDES))]
COUNT = len(SIDES)
DECODER = "f" * 32


@pytest.fixture
def cached(tmp_path, valkey, store):
    """The save of samples that are in the cache, and their records; the images are gone."""
    return cache_them(tmp_path, valkey, store)


@pytest.fixture
def in_directory(tmp_path, valkey, directory_store):
    """As ``cached``, for a directory."""
    return cache_them(tmp_path, valkey, directory_store)


def cache_them(tmp_path, valkey, store):
    request = file_request(images_in(tmp_path / "images"), KEYS, valkey.unix_url)
    assert run(request).outcomes == ("cached",) * COUNT
    for name in KEYS:
        (tmp_path / "images" / name).unlink()
    records = [raw_record(valkey, request, n) for n in range(COUNT)]
    return save_of(request, store), records


def save_of(request, store):
    return replace(request, store=store.address, kind=RequestKind.SAVE, golden=DECODER)


def assert_saved(store, result, records, lost=()):
    """All but ``lost`` are in the result's pack, byte for byte; of these nothing is."""
    assert result.store_trouble == ""
    assert len(assert_whole(store, result.pack).entries) == COUNT - len(lost)
    for n, record in enumerate(records):
        if n in lost:
            assert (result.outcomes[n], result.offsets[n]) == ("not_cached", 0)
            assert f"images/{KEYS[n]}: the cache has no good record of it" in result.messages[str(n)]
        else:
            assert (result.outcomes[n], result.record_bytes[n]) == ("cached", len(record))
            assert store.read(result.pack, result.offsets[n], len(record)) == record
    assert set(result.messages) == {str(n) for n in lost}


def test_what_the_cache_holds_lies_in_a_pack_under_its_decoders_fingerprint(store, cached):
    request, records = cached
    result = run(request)
    assert_saved(store, result, records)
    assert store.packs() == {result.pack: result.store_bytes}
    meta = store.read_index(result.pack, result.store_bytes).meta
    collection = collection_of(request.bucket, PLAIN.digest)
    assert replace(meta, version="") == PackMeta(collection, request.bucket, PLAIN.json, DECODER, "")
    assert result.decode_us == result.source_bytes == (0,) * COUNT


def test_a_record_longer_than_an_answer_comes_in_slices(directory_store, in_directory, monkeypatch):
    monkeypatch.setattr(saving, "_SLICE_BYTES", 1000)
    monkeypatch.setattr(saving, "_PIECE_BYTES", 100_000)
    request, records = in_directory
    assert_saved(directory_store, run(request), records)


def test_what_the_cache_has_no_good_data_of_is_told_and_left_out(valkey, directory_store, in_directory):
    request, records = in_directory
    keys, ids = ([of(bytes.fromhex(one)) for one in request.ids] for of in (cache_key, bytes))
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


def test_a_store_that_takes_nothing(directory_store, in_directory, tmp_path, monkeypatch):
    request, records = in_directory
    monkeypatch.setenv("SUPER_STORE_READ_ONLY", "1")
    assert_nothing_saved(run(request), "this function writes no packs (SUPER_STORE_READ_ONLY)")
    monkeypatch.delenv("SUPER_STORE_READ_ONLY")
    Path(directory_store.address).rename(tmp_path / "elsewhere")
    assert_nothing_saved(run(request), directory_store.address)
    (tmp_path / "elsewhere").rename(directory_store.address)
    monkeypatch.setenv("SUPER_STORE", str(tmp_path))
    assert_nothing_saved(run(request), "give the coordinator and its functions the same")
    monkeypatch.setenv("SUPER_STORE", directory_store.address)
    assert files_of(Path(directory_store.address)) == []
    assert_saved(directory_store, run(request), records)


def test_what_is_late_or_finds_no_cache_is_told(valkey, directory_store, in_directory):
    request, _ = in_directory
    assert run(replace(request, expires_at=1.0)).outcomes == ("expired",) * COUNT
    valkey.kill()
    result = run(request)
    assert result.outcomes == ("cache_error",) * COUNT
    assert all(valkey.unix_url in words for words in result.messages.values())
    assert files_of(Path(directory_store.address)) == []


@pytest.mark.parametrize(
    "wrong", [{"store": ""}, {"golden": ""}, {"packs": ("a.pack",), "pack_of": (0,) * COUNT}]
)
def test_a_save_names_its_store_and_who_has_decoded(in_directory, wrong):
    request, _ = in_directory
    places = {"offsets": (0,) * COUNT, "lengths": (0,) * COUNT} if "packs" in wrong else {}
    with pytest.raises(ConfigError, match="a save names golden|names no store|a restore has"):
        run(replace(request, **wrong, **places))


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_function_that_is_killed_at_any_step_leaves_no_part_of_a_pack(directory_store, in_directory, every):
    killed_at_each_step(in_directory[0], directory_store, every)


def test_many_small_records_are_read_together(tmp_path, valkey, directory_store):
    root = tmp_path / "many"
    root.mkdir()
    keys = [f"{n}.png" for n in range(150)]
    for n, key in enumerate(keys):
        (root / key).write_bytes(encode(pixels(8, 8, seed=n)))
    request = file_request(root, keys, valkey.unix_url)
    run(request)
    with valkey.client() as client:
        before = client.info("stats")["total_reads_processed"]
    result = run(save_of(request, directory_store))
    assert len(assert_whole(directory_store, result.pack).entries) == len(keys)
    with valkey.client() as client:
        assert client.info("stats")["total_reads_processed"] - before < 20
