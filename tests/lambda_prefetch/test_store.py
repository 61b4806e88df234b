"""A pack contains the acknowledged records, byte for byte. Store faults cost no sample."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.lambda_prefetch.invocation import Invocation
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.store import Pace, PackSaver
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import read_tombstone, unpack
from superdl.super_wire.record_kinds import Pointer, read_pointer
from superdl.super_wire.request import Outcome, PrefetchResult, RequestKind
from superdl.super_wire.store import DirectoryStore, PackMeta, check_record, collection_of
from tests.lambda_prefetch.prefetching import PLAIN, encode, file_request, pixels, raw_record, run

ROOT = Path(__file__).resolve().parents[2]
SIDES = (10, 200, 37, 150, 64)
KINDS = [RequestKind.DECODE_TO_STORE, RequestKind.DECODE_TO_POINTERS]
GOOD = [f"{n}.png" for n in range(len(SIDES))]
ALL = [GOOD[0], "text.png", *GOOD[1:3], "none.png", *GOOD[3:]]
OUTCOMES = ("cached", "tombstone", "cached", "cached", "missing", "cached", "cached")
LARGE = [n for n, key in enumerate(ALL) if key in ("1.png", "3.png")]  # worth a pointer


@pytest.fixture
def root(tmp_path):
    """Valid images below and above the size from which payloads are page-aligned, and an invalid one."""
    return images_in(tmp_path / "images")


def images_in(folder):
    folder.mkdir()
    for name, side in zip(GOOD, SIDES, strict=True):
        (folder / name).write_bytes(encode(pixels(side, side + 3, seed=side)))
    (folder / "text.png").write_bytes(b"no image")
    return folder


def saving(root, valkey, store, keys=ALL, recipe=PLAIN, kind=RequestKind.DECODE_TO_STORE, **options):
    request = file_request(root, keys, options.pop("cache", valkey.unix_url), recipe, **options)
    return replace(request, kind=kind, store=store.address)


pointing = partial(saving, kind=RequestKind.DECODE_TO_POINTERS)


def records_of(valkey, request):
    """Return the cached pixels, and the record lengths."""
    records = [raw_record(valkey, request, n) for n in range(len(request.keys))]
    return [record and unpack(record)[1].tobytes() for record in records], tuple(map(len, records))


def files_of(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "store.json"]


def assert_whole(store, name):
    """Check every record of a pack, and return its index."""
    index = store.read_index(name, store.packs()[name])
    for entry in index.entries:
        check_record(store.read(name, int(entry["offset"]), int(entry["bytes"])), bytes(entry["id"]))
    return index


@pytest.mark.parametrize("alias", ["", "pets"])
def test_a_pack_contains_exactly_the_acknowledged_records(root, valkey, store, alias):
    request = saving(root, valkey, store, alias=alias)
    bucket = "alias://pets" if alias else request.bucket  # a source with a name is known by that alone
    result = run(request)
    assert result.outcomes == OUTCOMES
    assert result.store_trouble == ""
    assert store.packs() == {result.pack: result.store_bytes}
    cached = [n for n, outcome in enumerate(OUTCOMES) if outcome == "cached"]
    index = assert_whole(store, result.pack)
    assert index.meta == PackMeta(
        collection_of(bucket, PLAIN.digest),
        bucket,
        PLAIN.json,
        decoder_fingerprint(),
        installed_version(),
    )
    assert sorted(bytes(entry["id"]) for entry in index.entries) == sorted(map(request.sample_id, cached))
    for n, offset in enumerate(result.offsets):
        if n in cached:
            record = raw_record(valkey, request, n)
            assert store.read(result.pack, offset, result.record_bytes[n]) == record
        else:
            assert offset == 0


def many_images(root, count=60, side=150):
    keys = [f"{n}.png" for n in range(count)]
    for n, key in enumerate(keys):
        (root / key).write_bytes(encode(pixels(side, side, seed=n)))
    return keys


def test_refused_records_are_not_in_the_pack(root, valkey, directory_store):
    request = saving(root, valkey, directory_store, many_images(root))
    with valkey.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 2**21)
    result = run(request)
    cached = {request.sample_id(n) for n, outcome in enumerate(result.outcomes) if outcome == "cached"}
    assert set(result.outcomes) == {"cached", "cache_full"}
    assert cached == {request.sample_id(n) for n in range(request.count) if raw_record(valkey, request, n)}
    refused = result.outcomes.index("cache_full")
    assert ("OOM" in result.messages[str(refused)], result.record_bytes[refused]) == (True, 0)
    index = assert_whole(directory_store, result.pack)
    assert {bytes(entry["id"]) for entry in index.entries} == cached
    assert {request.sample_id(n) for n, offset in enumerate(result.offsets) if offset} == cached


def test_pointers_in_the_cache_lead_to_the_records(root, valkey, directory_store):
    request = pointing(root, valkey, directory_store)
    run(replace(request, store="", kind=RequestKind.DECODE))
    whole = [raw_record(valkey, request, n) for n in range(len(ALL))]
    with valkey.client() as client:
        client.flushall()
    result = run(request)
    assert (result.outcomes, result.store_trouble) == (OUTCOMES, "")
    assert len(assert_whole(directory_store, result.pack).entries) == len(GOOD)
    for n, outcome in enumerate(OUTCOMES):
        record = raw_record(valkey, request, n)
        assert result.record_bytes[n] == len(record or b"")
        assert (result.offsets[n] > 0) == (outcome == "cached")
        assert result.lengths[n] == (len(whole[n]) if outcome == "cached" else 0)
        if n in LARGE:
            place = read_pointer(record, sample_id=request.sample_id(n))
            assert place == Pointer(result.pack, result.offsets[n], result.lengths[n])
            record = directory_store.read(place.pack, place.offset, place.length)
            check_record(record, request.sample_id(n))
        if outcome == "cached":
            assert unpack(record)[1].tobytes() == unpack(whole[n])[1].tobytes()
        elif outcome == "tombstone":
            assert read_tombstone(record) == read_tombstone(whole[n])


def test_records_beyond_the_budget_are_pushed_and_stored(root, valkey, directory_store, monkeypatch):
    keys = many_images(root)
    monkeypatch.setenv("SUPER_PUSH_BYTES", str(2**20))
    request = pointing(root, valkey, directory_store, keys)
    result = run(request)
    assert set(result.outcomes) == {"cached"}
    pointed = [n for n in range(60) if result.record_bytes[n] < result.lengths[n]]
    assert len(pointed) == 2**20 // (150 * 150 * 3)
    assert len(assert_whole(directory_store, result.pack).entries) == 60
    for n in range(60):
        place = Pointer(result.pack, result.offsets[n], result.lengths[n])
        record = raw_record(valkey, request, n)
        if n in pointed:
            assert read_pointer(record) == place
        else:
            assert record == directory_store.read(place.pack, place.offset, place.length)


def test_a_refused_pointer_leaves_the_record_in_the_store(root, valkey, directory_store):
    request = pointing(root, valkey, directory_store, ["1.png", "3.png"])
    with valkey.client() as client:
        client.config_set("maxmemory", 1)
        try:
            result = run(request)
        finally:
            client.config_set("maxmemory", 0)
    assert result.outcomes == ("cache_full",) * 2
    assert set(result.record_bytes) == {0}
    assert len(assert_whole(directory_store, result.pack).entries) == len(set(result.offsets)) == 2
    assert not list(Path(directory_store.address, "tmp").iterdir())


def test_a_pack_in_s3_takes_one_put(root, valkey, s3_store):
    first, second = run(saving(root, valkey, s3_store)), run(saving(root, valkey, s3_store))
    assert first.store_requests == second.store_requests == 1  # the mark is read once in a process
    assert set(s3_store.packs()) == {first.pack, second.pack}


@pytest.mark.parametrize("kind", KINDS)
def test_useless_records_are_not_stored(root, valkey, directory_store, monkeypatch, kind):
    flip = Recipe([{"op": "horizontal_flip"}])
    nothing = ("", (), "", 0)
    for recipe, keys, read_only in ((flip, GOOD, ""), (PLAIN, ["text.png"], ""), (PLAIN, GOOD, "1")):
        monkeypatch.setenv("SUPER_STORE_READ_ONLY", read_only)
        request = saving(root, valkey, directory_store, keys, recipe, kind)
        result = run(request)
        assert not set(result.outcomes) - {"cached", "tombstone"}
        assert (result.pack, result.offsets, result.store_trouble, result.store_bytes) == nothing
        assert all(raw_record(valkey, request, n) for n in range(len(keys)))
    assert files_of(Path(directory_store.address)) == []


def test_a_late_pack_is_dropped(root, valkey, directory_store):
    request = saving(root, valkey, directory_store, GOOD)
    invocation = Invocation(request, FunctionSettings.from_environment(), expires_at_s=0)
    invocation.outcomes[0] = Outcome.CACHED
    meta = PackMeta("0" * 16, request.bucket, request.recipe, "", "")
    run(request)
    record = raw_record(valkey, request, 0)
    with PackSaver(invocation, meta) as saver:
        saver.add(0, record[:64], memoryview(record)[64:])
        assert list(Path(directory_store.address, "tmp").iterdir()) != []
    assert invocation.store_trouble == f"{request.store}: the request expired before its pack was written"
    assert list(Path(directory_store.address, "tmp").iterdir()) == []
    assert len(directory_store.packs()) == 1


@pytest.mark.parametrize(
    ("waiting", "between", "packs"),
    [
        (0.0001, 0.003, 40),
        (9.0, 10.0, 40),  # slow, but faster than the function
        (0.05, 0.01, 1),
        (0.2, 0.01, 0),
    ],
)
def test_packs_are_dropped_if_the_disk_is_slower_than_the_function(
    root, valkey, directory_store, waiting, between, packs
):
    """The store is real, but the clock reports a wait for each write, and a time between writes."""
    request = saving(root, valkey, directory_store, GOOD)
    run(request)
    record, pace, troubles = raw_record(valkey, request, 0), Pace(), []
    meta = PackMeta("0" * 16, request.bucket, request.recipe, "", "")
    for _ in range(40):
        invocation = Invocation(request, FunctionSettings.from_environment(), expires_at_s=1e12)
        invocation.outcomes[:] = [Outcome.CACHED] * len(GOOD)
        clock = itertools.accumulate(itertools.cycle((waiting, between))).__next__
        with PackSaver(invocation, meta, pace=pace, clock=clock) as saver:
            for n in range(len(GOOD)):
                saver.add(n, record[:64], memoryview(record)[64:])
        assert bool(invocation.pack) != bool(invocation.store_trouble)
        if invocation.store_trouble:
            troubles.append(invocation.store_trouble)
            break
    assert len(directory_store.packs()) - 1 == packs
    assert all("the store's disk is slower than the functions" in words for words in troubles)
    assert not list(Path(directory_store.address, "tmp").iterdir())


def assert_delivered_with_trouble(result, words, valkey, request):
    assert result.outcomes == ("cached",) * len(GOOD)
    assert words in result.store_trouble
    assert (result.pack, result.offsets, result.lengths, result.store_bytes) == ("", (), (), 0)
    whole, sizes = records_of(valkey, request)
    assert whole == [pixels(side, side + 3, seed=side).tobytes() for side in SIDES]
    assert result.record_bytes == sizes


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_functions_own_store_is_used(root, valkey, directory_store, tmp_path, monkeypatch, kind):
    other = DirectoryStore.open(tmp_path / "other", create=True)
    request = saving(root, valkey, directory_store, GOOD, kind=kind)
    for setting in ("", other.address, "s3://bucket/p"):
        monkeypatch.setenv("SUPER_STORE", setting)
        words = f"the request's store is {directory_store.address}, but the function's SUPER_STORE "
        words += f"is {setting}. Use" if setting else "is not set. Use"
        assert_delivered_with_trouble(run(request), words, valkey, request)
    assert files_of(Path(directory_store.address)) == files_of(Path(other.address)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_or_replaced_directory_costs_packs_until_it_is_back(root, valkey, directory_store, kind):
    path = Path(directory_store.address)
    request = saving(root, valkey, directory_store, GOOD, kind=kind)
    assert run(request).pack
    shutil.rmtree(path)
    assert_delivered_with_trouble(run(request), str(path), valkey, request)
    path.write_bytes(b"")
    assert_delivered_with_trouble(run(request), f"{path} is not a directory", valkey, request)
    path.unlink()
    path.mkdir()
    assert_delivered_with_trouble(run(request), str(path), valkey, request)
    again = DirectoryStore.open(path, create=True)
    result = run(request)
    assert set(again.packs()) == {result.pack}


def test_a_directory_removed_before_the_commit_costs_the_pack(root, valkey, directory_store, monkeypatch):
    request, commit = pointing(root, valkey, directory_store, GOOD), PackSaver.commit

    def committed(self):
        shutil.rmtree(directory_store.address, ignore_errors=True)
        return commit(self)

    monkeypatch.setattr(PackSaver, "commit", committed)
    assert_delivered_with_trouble(run(request), "No such file", valkey, request)


_FULL = """
import json, resource, sys
from tests.lambda_prefetch.prefetching import Context
from superdl.lambda_prefetch.handler import handler
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
print(json.dumps(handler(json.loads(sys.argv[1]), Context())))
"""


def program(source, *arguments):
    quiet = {"SUPER_LOG_LEVEL": "ERROR", "POWERTOOLS_METRICS_DISABLED": "true"}
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [100, 60_000, 130_000])
def test_a_full_disk_costs_the_pack_and_no_sample(root, valkey, directory_store, room, kind):
    """A limit on a file's size stands for the disk: the kernel refuses the write in the midst of it."""
    request = saving(root, valkey, directory_store, GOOD, kind=kind)
    (answer,) = program(_FULL, request.to_json(), str(room))
    result = PrefetchResult.from_mapping(answer)
    assert_delivered_with_trouble(result, "File too large", valkey, request)
    assert files_of(Path(directory_store.address)) == []


@pytest.mark.parametrize(
    ("status", "code", "puts"),
    [(503, "SlowDown", 2), (403, "AccessDenied", 1), (404, "NoSuchBucket", 1), (0, "", 2)],
)
def test_an_s3_error_costs_the_pack_and_no_sample(root, valkey, s3_store, spoil_s3, status, code, puts):
    """There are at most two attempts."""
    request, asked = saving(root, valkey, s3_store, GOOD), spoil_s3(status, code)
    assert_delivered_with_trouble(run(request), code or f"{s3_store.address}/packs/", valkey, request)
    assert [command for command, _ in asked] == ["GET", *["PUT"] * puts]
    assert s3_store.packs() == {}
