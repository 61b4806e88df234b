"""The cache gets pointers into the pack once that is there; where there is none, it gets the records."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from superdl.lambda_prefetch.store import PackSaver
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import read_tombstone, unpack
from superdl.super_wire.record_kinds import read_pointer
from superdl.super_wire.request import RequestKind
from superdl.super_wire.store import check_record
from tests.lambda_prefetch.prefetching import PLAIN, encode, pixels, raw_record, run
from tests.lambda_prefetch.test_store import (
    _FULL,
    ALL,
    GOOD,
    OUTCOMES,
    assert_whole,
    images_in,
    program,
    saving,
)

LARGE = [n for n, key in enumerate(ALL) if key in ("1.png", "3.png")]
"""Places in requests for all of what is worth a pointer; the other images are too small."""


@pytest.fixture
def root(tmp_path):
    return images_in(tmp_path / "images")


def pointing(root, valkey, store, keys=ALL, recipe=PLAIN):
    return replace(saving(root, valkey, store, keys, recipe), kind=RequestKind.DECODE_TO_POINTERS)


def records_of(root, valkey, request):
    """What the cache holds when nothing is stored, by which it is empty afterwards."""
    assert run(replace(request, store="", kind=RequestKind.DECODE)).store_trouble == ""
    found = [raw_record(valkey, request, n) for n in range(len(request.keys))]
    with valkey.client() as client:
        client.flushall()
    return found


def pixels_of(record):
    return None if record is None else unpack(record)[1].tobytes()


def test_the_cache_gets_pointers_that_lead_to_the_records(root, valkey, directory_store):
    request = pointing(root, valkey, directory_store)
    whole = records_of(root, valkey, request)
    result = run(request)
    assert (result.outcomes, result.store_trouble) == (OUTCOMES, "")
    assert len(assert_whole(directory_store, result.pack).entries) == len(GOOD)
    for n, outcome in enumerate(OUTCOMES):
        found = raw_record(valkey, request, n)
        assert result.record_bytes[n] == len(found or b"")
        assert (result.offsets[n] > 0) == (outcome == "cached")
        assert result.lengths[n] == (len(whole[n]) if outcome == "cached" else 0)
        if n in LARGE:
            place = read_pointer(found, sample_id=bytes.fromhex(request.ids[n]))
            assert (place.pack, place.offset, place.length) == (
                result.pack,
                result.offsets[n],
                result.lengths[n],
            )
            found = directory_store.read(place.pack, place.offset, place.length)
            check_record(found, bytes.fromhex(request.ids[n]))
        if outcome == "cached":
            assert pixels_of(found) == pixels_of(whole[n])
        elif outcome == "tombstone":
            assert read_tombstone(found) == read_tombstone(whole[n])


def assert_records_came(result, request, valkey, whole, words):
    assert result.outcomes == ("cached",) * len(GOOD)
    assert words in result.store_trouble
    assert (result.pack, result.offsets, result.lengths) == ("", (), ())
    found = [raw_record(valkey, request, n) for n in range(len(GOOD))]
    assert list(map(pixels_of, found)) == list(map(pixels_of, whole))
    assert result.record_bytes == tuple(map(len, found))


@pytest.mark.parametrize("fault", ["gone", "replaced", "another", "read-only", "no commit"])
def test_where_no_pack_can_be_written_the_records_come(root, valkey, directory_store, monkeypatch, fault):
    request, path, words = pointing(root, valkey, directory_store, GOOD), Path(directory_store.address), ""
    whole = records_of(root, valkey, request)
    if fault in ("gone", "replaced"):
        shutil.rmtree(path)
        words = str(path)
    if fault == "replaced":
        path.write_bytes(b"")
    if fault == "another":
        monkeypatch.setenv("SUPER_STORE", str(path.parent))
        words = "give the coordinator"
    if fault == "read-only":
        monkeypatch.setenv("SUPER_STORE_READ_ONLY", "1")
    if fault == "no commit":  # the directory goes in the midst of writing
        monkeypatch.setattr(PackSaver, "commit", removing(path, PackSaver.commit))
        words = "No such file"
    result = run(request)
    assert_records_came(result, request, valkey, whole, words)
    assert bool(result.store_trouble) == (fault != "read-only")


def removing(path, commit):
    def committed(self):
        shutil.rmtree(path, ignore_errors=True)
        return commit(self)

    return committed


@pytest.mark.parametrize("room", [100, 60_000, 130_000])
def test_a_disk_that_gets_full_in_the_midst_of_a_pack(root, valkey, directory_store, room):
    request = pointing(root, valkey, directory_store, GOOD)
    whole = records_of(root, valkey, request)
    (answer,) = program(_FULL, request.to_json(), str(room))
    assert answer["outcomes"] == ["cached"] * len(GOOD)
    assert "File too large" in answer["store_trouble"]
    found = [raw_record(valkey, request, n) for n in range(len(GOOD))]
    assert list(map(pixels_of, found)) == list(map(pixels_of, whole))


def test_what_is_beyond_the_bound_is_pushed_and_kept(root, valkey, directory_store, monkeypatch):
    keys = [f"{n}.png" for n in range(60)]
    for n, key in enumerate(keys):
        (root / key).write_bytes(encode(pixels(150, 150, seed=n)))
    monkeypatch.setenv("SUPER_PUSH_BYTES", str(2**20))
    request = pointing(root, valkey, directory_store, keys)
    result = run(request)
    assert set(result.outcomes) == {"cached"}
    pointed = [n for n in range(60) if result.record_bytes[n] < result.lengths[n]]
    assert len(pointed) == 2**20 // (150 * 150 * 3)
    assert len(assert_whole(directory_store, result.pack).entries) == 60
    for n in range(60):
        place = (result.pack, result.offsets[n], result.lengths[n])
        record = directory_store.read(*place)
        if n in pointed:
            found = read_pointer(raw_record(valkey, request, n))
            assert (found.pack, found.offset, found.length) == place
        else:
            assert raw_record(valkey, request, n) == record


def test_random_recipes_and_a_request_without_a_store_get_records(root, valkey, directory_store):
    flip = Recipe([{"op": "horizontal_flip"}])
    for request in (
        pointing(root, valkey, directory_store, GOOD, flip),
        replace(pointing(root, valkey, directory_store, GOOD), kind=RequestKind.DECODE, store=""),
    ):
        result = run(request)
        assert (result.outcomes, result.pack) == (("cached",) * len(GOOD), "")
        assert all(pixels_of(raw_record(valkey, request, n)) for n in range(len(GOOD)))


def test_a_cache_that_takes_no_pointer_leaves_the_record_stored(root, valkey, directory_store):
    request = pointing(root, valkey, directory_store, ["1.png", "3.png"])
    run(request)
    with valkey.client() as client:
        client.flushall()
        client.config_set("maxmemory", 1)
        try:
            result = run(request)
        finally:
            client.config_set("maxmemory", 0)
    assert result.outcomes == ("cache_full",) * len(LARGE)
    assert all(result.offsets)
    assert set(result.record_bytes) == {0}
    for n in range(len(LARGE)):
        check_record(
            directory_store.read(result.pack, result.offsets[n], result.lengths[n]),
            bytes.fromhex(request.ids[n]),
        )
    assert not list(Path(directory_store.address, "tmp").iterdir())
    assert os.listdir(Path(directory_store.address, "packs"))  # noqa: PTH208
