"""A pack holds what the cache acknowledged, byte for byte; what spoils a store spoils no sample."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.lambda_prefetch.results import ResultColumns
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.store import Pace, PackSaver
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome, RequestKind
from superdl.super_wire.store import DirectoryStore, PackMeta, check_record, collection_of
from tests.lambda_prefetch.prefetching import PLAIN, encode, file_request, pixels, raw_record, run

ROOT = Path(__file__).resolve().parents[2]
SIDES = (10, 200, 37, 150, 64)
GOOD = [f"{n}.png" for n in range(len(SIDES))]
ALL = [GOOD[0], "text.png", *GOOD[1:3], "none.png", *GOOD[3:]]
OUTCOMES = ("cached", "tombstone", "cached", "cached", "missing", "cached", "cached")


@pytest.fixture
def root(tmp_path):
    """Good images below and above the size whose payloads begin on pages, and a bad one."""
    return images_in(tmp_path / "images")


def images_in(folder):
    folder.mkdir()
    for name, side in zip(GOOD, SIDES, strict=True):
        (folder / name).write_bytes(encode(pixels(side, side + 3, seed=side)))
    (folder / "text.png").write_bytes(b"no image")
    return folder


def saving(root, valkey, store, keys=ALL, recipe=PLAIN, cache=None, **named):
    request = file_request(root, keys, cache or valkey.unix_url, recipe, **named)
    return replace(request, kind=RequestKind.DECODE_TO_STORE, store=store.address)


def files_of(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "store.json"]


def assert_whole(store, name):
    """Every entry of a pack is a good record."""
    index = store.read_index(name, store.packs()[name])
    for entry in index.entries:
        check_record(store.read(name, int(entry["offset"]), int(entry["bytes"])), bytes(entry["id"]))
    return index


def test_a_pack_of_a_source_with_a_name_knows_that_alone(root, valkey, store):
    result = run(saving(root, valkey, store, GOOD, alias="pets"))
    index = assert_whole(store, result.pack)
    assert index.meta.bucket == "alias://pets"
    assert index.meta.collection == collection_of("alias://pets", PLAIN.digest)


def test_a_pack_holds_exactly_what_the_cache_acknowledged(root, valkey, store):
    request = saving(root, valkey, store)
    result = run(request)
    assert result.outcomes == OUTCOMES
    assert result.store_trouble == ""
    assert store.packs() == {result.pack: result.store_bytes}
    cached = [n for n, outcome in enumerate(OUTCOMES) if outcome == "cached"]
    index = assert_whole(store, result.pack)
    assert index.meta == PackMeta(
        collection_of(request.bucket, PLAIN.digest),
        request.bucket,
        PLAIN.json,
        decoder_fingerprint(),
        installed_version(),
    )
    assert sorted(bytes(entry["id"]).hex() for entry in index.entries) == sorted(
        request.ids[n] for n in cached
    )
    for n, offset in enumerate(result.offsets):
        if n in cached:
            record = raw_record(valkey, request, n)
            assert store.read(result.pack, offset, result.record_bytes[n]) == record
        else:
            assert offset == 0


def test_what_the_cache_refuses_is_in_no_pack(root, valkey, directory_store):
    keys = [f"{n}.png" for n in range(60)]
    for n, key in enumerate(keys):
        (root / key).write_bytes(encode(pixels(150, 150, seed=n)))
    request = saving(root, valkey, directory_store, keys)
    with valkey.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 2**21)
    result = run(request)
    cached = {request.ids[n] for n, outcome in enumerate(result.outcomes) if outcome == "cached"}
    assert set(result.outcomes) == {"cached", "cache_full"}
    index = assert_whole(directory_store, result.pack)
    assert {bytes(entry["id"]).hex() for entry in index.entries} == cached
    assert {request.ids[n] for n, offset in enumerate(result.offsets) if offset} == cached


def test_s3_gets_one_put_before_the_answer(root, valkey, s3_store):
    first, second = run(saving(root, valkey, s3_store)), run(saving(root, valkey, s3_store))
    assert first.store_requests == second.store_requests == 1  # the mark is read once in a process
    assert set(s3_store.packs()) == {first.pack, second.pack}


def test_what_is_never_wanted_again_is_not_kept(root, valkey, directory_store, monkeypatch):
    flip = Recipe([{"op": "horizontal_flip"}])
    nothing = ("", (), "", 0)
    for recipe, keys, read_only in ((flip, GOOD, ""), (PLAIN, ["text.png"], ""), (PLAIN, GOOD, "1")):
        monkeypatch.setenv("SUPER_STORE_READ_ONLY", read_only)
        result = run(saving(root, valkey, directory_store, keys, recipe))
        assert not set(result.outcomes) - {"cached", "tombstone"}
        assert (result.pack, result.offsets, result.store_trouble, result.store_bytes) == nothing
    assert files_of(Path(directory_store.address)) == []


def test_a_pack_that_would_come_late_is_left(root, valkey, directory_store):
    request = saving(root, valkey, directory_store, GOOD)
    columns = ResultColumns(request)
    columns.outcomes[0] = Outcome.CACHED
    meta = PackMeta("0" * 16, request.bucket, request.recipe, "", "")
    run(request)
    record = raw_record(valkey, request, 0)
    with PackSaver(request, meta, FunctionSettings.from_environment(), columns, expires_at=0) as saver:
        saver.add(0, record[:64], memoryview(record)[64:])
        assert list(Path(directory_store.address, "tmp").iterdir()) != []
    assert columns.store_trouble == f"{request.store}: the request expired before its pack was written"
    assert list(Path(directory_store.address, "tmp").iterdir()) == []
    assert len(directory_store.packs()) == 1


class Clock:
    """Tells times that are so far apart, in turn."""

    def __init__(self, *steps):
        self.steps = itertools.cycle(steps)
        self.now = 0.0

    def __call__(self):
        self.now += next(self.steps)
        return self.now


@pytest.mark.parametrize(
    ("waiting", "between", "packs"),
    [
        *((0.0001, 0.003, 40), (0.05, 0.06, 40), (9.0, 10.0, 40)),  # it need not be fast, only faster
        *((0.05, 0.01, 1), (0.2, 0.01, 0), (60.0, 1.0, 0)),
    ],
)
def test_a_disk_that_is_slower_than_the_function_is_spared(
    root, valkey, directory_store, waiting, between, packs
):
    """Time is given, the store is real: five records to a pack, and packs are there that were fast enough."""
    request = saving(root, valkey, directory_store, GOOD)
    run(request)
    record, pace, troubles = raw_record(valkey, request, 0), Pace(), []
    meta = PackMeta("0" * 16, request.bucket, request.recipe, "", "")
    for _ in range(40):
        columns = ResultColumns(request)
        columns.outcomes[:] = [Outcome.CACHED] * len(GOOD)
        clock = Clock(between / 2, between / 2, waiting)  # begun or checked; before a write; after it
        settings = FunctionSettings.from_environment()
        with PackSaver(request, meta, settings, columns, expires_at=1e12, pace=pace, clock=clock) as saver:
            for n in range(len(GOOD)):
                saver.add(n, record[:64], memoryview(record)[64:])
        assert bool(columns.pack) != bool(columns.store_trouble)
        if columns.store_trouble:
            troubles.append(columns.store_trouble)
            break
    assert len(directory_store.packs()) - 1 == packs
    assert all("the store's disk is slower than the functions" in words for words in troubles)
    assert not list(Path(directory_store.address, "tmp").iterdir())


def assert_delivered_with_trouble(result, words):
    assert result.outcomes == ("cached",) * len(GOOD)
    assert words in result.store_trouble
    assert (result.pack, result.offsets, result.store_bytes) == ("", (), 0)


def test_a_store_that_is_not_the_functions_own_is_not_touched(
    root, valkey, directory_store, tmp_path, monkeypatch
):
    other = DirectoryStore.open(tmp_path / "other", create=True)
    for setting, words in (
        ("", "names none"),
        (other.address, f"is {other.address}"),
        ("s3://bucket/p", "is s3://bucket/p"),
    ):
        monkeypatch.setenv("SUPER_STORE", setting)
        result = run(saving(root, valkey, directory_store, GOOD))
        assert_delivered_with_trouble(result, f"the request's store is {directory_store.address}, and")
        assert_delivered_with_trouble(result, f"SUPER_STORE of the function {words}: give the coordinator")
    assert files_of(Path(directory_store.address)) == files_of(Path(other.address)) == []


def test_a_directory_that_is_gone_or_replaced_and_there_again(root, valkey, directory_store):
    path = Path(directory_store.address)
    request = saving(root, valkey, directory_store, GOOD)
    assert run(request).pack
    shutil.rmtree(path)
    assert_delivered_with_trouble(run(request), str(path))
    path.write_bytes(b"")
    assert_delivered_with_trouble(run(request), f"{path} is no directory")
    path.unlink()
    path.mkdir()
    assert_delivered_with_trouble(run(request), str(path))
    again = DirectoryStore.open(path, create=True)
    result = run(request)
    assert set(again.packs()) == {result.pack}


def test_a_directory_without_permission(valkey, monkeypatch):
    """Root may write everywhere, so it is nobody for a moment."""
    with tempfile.TemporaryDirectory(prefix="super-t-") as folder:
        Path(folder).chmod(0o755)
        root, store = (
            images_in(Path(folder, "images")),
            DirectoryStore.open(Path(folder, "store"), create=True),
        )
        Path(store.address).chmod(0o755 if os.geteuid() == 0 else 0o555)
        monkeypatch.setenv("SUPER_STORE", store.address)
        try:
            if os.geteuid() == 0:
                os.seteuid(65534)
            result = run(saving(root, valkey, store, GOOD, cache=valkey.url))
        finally:
            if os.getuid() == 0:
                os.seteuid(0)
            Path(store.address).chmod(0o755)
        assert_delivered_with_trouble(result, "Permission denied")
        assert files_of(Path(store.address)) == []


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


@pytest.mark.parametrize("room", [100, 60_000, 130_000])
def test_a_full_disk_costs_the_pack_and_no_sample(root, valkey, directory_store, room):
    """A limit on a file's size stands for the disk: the kernel refuses the write in the midst of it."""
    request = saving(root, valkey, directory_store, GOOD)
    (result,) = program(_FULL, request.to_json(), str(room))
    assert result["outcomes"] == ["cached"] * len(GOOD)
    assert "File too large" in result["store_trouble"]
    assert result["pack"] == ""
    assert files_of(Path(directory_store.address)) == []


@pytest.mark.parametrize(
    ("status", "code", "puts"),
    [(503, "SlowDown", 2), (403, "AccessDenied", 1), (404, "NoSuchBucket", 1), (0, "", 2)],
)
def test_s3_that_does_not_take_a_pack(root, valkey, s3_store, spoil_s3, status, code, puts):
    """It is tried twice at most, whatever is answered, or if nothing is."""
    request, asked = saving(root, valkey, s3_store, GOOD), spoil_s3(status, code)
    assert_delivered_with_trouble(run(request), code or f"{s3_store.address}/packs/")
    assert [command for command, _ in asked] == ["GET", *["PUT"] * puts]
    assert s3_store.packs() == {}


_KILLED = """
import glob, json, os, signal, sys, threading
from tests.lambda_prefetch.prefetching import Context
from superdl.lambda_prefetch.handler import handler

WATCHED = ("/super_wire/store/", "/lambda_prefetch/store.py", "/lambda_prefetch/saving.py")
event, every, packs = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
handler({"super_warm": 1, "cache": ""}, Context())
last = 0

def produce():
    steps = 0
    def trace(frame, what, _):
        nonlocal steps
        if any(part in frame.f_code.co_filename for part in WATCHED):
            steps += what == "line"
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
    threading.settrace(trace)
    sys.settrace(trace)
    os._exit(0 if handler(event, Context())["pack"] else 1)

ended = -signal.SIGKILL
while ended == -signal.SIGKILL:
    last += every
    child = os.fork()
    if child == 0:
        produce()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"step": last, "ended": ended, "packs": len(glob.glob(packs + "/*"))}), flush=True)
"""


@pytest.mark.parametrize("kind", [RequestKind.DECODE_TO_STORE, RequestKind.DECODE_TO_POINTERS])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_function_that_is_killed_at_any_step_leaves_no_part_of_a_pack(
    root, valkey, directory_store, every, kind
):
    """A process is killed before a line of the store's code that it runs, the next before a later one, ..."""
    request = replace(saving(root, valkey, directory_store, GOOD[1:3]), kind=kind)
    killed_at_each_step(request, directory_store, every)


def killed_at_each_step(request, store, every):
    """A function that is to write a pack is killed at every so many lines; it leaves none, or a whole one."""
    folder = Path(store.address)
    tried = program(_KILLED, request.to_json(), str(every), str(folder / "packs"))
    killed, done = tried[:-1], tried[-1]
    assert done["ended"] == 0
    assert len(killed) * every > 100
    before = [one["packs"] for one in killed]
    assert before[0] == 0
    assert before == sorted(before)  # none was changed or removed
    # Only where a pack was whole did it stay, and those kills were the last.
    first_whole = before.index(1) if 1 in before else len(before)
    assert first_whole > len(killed) // 2
    assert len(files_of(folder / "tmp")) > len(killed) // 4  # killed in the midst of writing; swept one day
    assert len(store.packs()) == done["packs"]
    for name in store.packs():
        assert len(assert_whole(store, name).entries) == len(request.keys)
