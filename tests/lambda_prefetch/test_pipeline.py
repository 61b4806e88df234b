"""Threads fetch and decode: each sample has one outcome, all threads stop, and memory is bounded."""

import contextlib
import importlib
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from superdl.lambda_prefetch import fetching
from superdl.lambda_prefetch.sources import read_object
from superdl.super_wire.objects.s3 import S3Bucket
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import parse_header
from superdl.super_wire.request import RequestKind
from tests.fixtures.valkey import Valkey
from tests.lambda_prefetch.prefetching import (
    Context,
    array_of,
    encode,
    file_request,
    pixels,
    raw_record,
    request_for,
    run,
    tombstone_of,
)

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20


@pytest.mark.parametrize("decoders", ["1", "5", "64"])
def test_every_sample_has_its_own_outcome(tmp_path, valkey, monkeypatch, decoders):
    monkeypatch.setenv("SUPER_DECODERS", decoders)
    expected, keys = [], []
    for n in range(60):
        key = f"{n}.png"
        keys.append(key)
        if n % 7 == 3:
            expected.append("missing")
            continue
        body = b"no image" if n % 5 == 0 else encode(pixels(20 + n, 30, seed=n))
        (tmp_path / key).write_bytes(body)
        expected.append("tombstone" if n % 5 == 0 else "cached")
    request = file_request(tmp_path, keys, valkey.unix_url)
    result = run(request)
    assert list(result.outcomes) == expected
    assert result.source_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert result.source_requests == len(list(tmp_path.iterdir()))
    for n, outcome in enumerate(expected):
        if outcome == "cached":
            assert np.array_equal(array_of(valkey, request, n), pixels(20 + n, 30, seed=n))
            header = parse_header(raw_record(valkey, request, n))
            assert 0 < header.fetch_us <= result.fetch_us
            assert 0 < header.decode_us <= result.decode_us
            assert result.record_bytes[n] == 64 + (20 + n) * 30 * 3
        elif outcome == "tombstone":
            assert tombstone_of(valkey, request, n).key == keys[n]
            assert result.messages[str(n)].startswith(f"{request.bucket}/{keys[n]}: ")
        else:
            assert raw_record(valkey, request, n) is None
            assert str(n) in result.messages


HANGING = """
import threading
from superdl.lambda_prefetch import custom_step
go_on, ended = threading.Event(), threading.Event()
@custom_step("1")
def hang(array):
    if array.shape[1] == 77:
        go_on.wait()
        ended.set()
    return array
"""


@pytest.mark.parametrize("decoders", ["1", "3"])
def test_a_sample_that_takes_too_long_is_abandoned(tmp_path, valkey, monkeypatch, decoders):
    """The other samples have their outcomes, and the stuck sample's late result is dropped."""
    name = f"hanging_{decoders}_of_pipeline_test"
    (tmp_path / f"{name}.py").write_text(HANGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    for variable, value in {
        "SUPER_STEP_MODULES": name,
        "SUPER_DECODERS": decoders,
        "SUPER_DECODE_TIMEOUT_S": "1",
    }.items():
        monkeypatch.setenv(variable, value)
    keys = [f"{n}.png" for n in range(8)]
    for n, key in enumerate(keys):
        (tmp_path / key).write_bytes(encode(pixels(20, 77 if n == 4 else 30, seed=n)))
    request = file_request(
        tmp_path, keys, valkey.unix_url, Recipe([{"op": "custom", "name": f"{name}:hang@1"}])
    )
    context, before = EndingContext(), set(threading.enumerate())
    began_s = time.monotonic()
    result = run(request, context)
    assert time.monotonic() - began_s < 10
    assert context.ends
    assert result.outcomes[4] == "timed_out"
    assert result.messages["4"].startswith(f"{request.bucket}/4.png: decoding took longer than 1 s")
    assert "SUPER_DECODE_TIMEOUT_S" in result.messages["4"]
    assert set(result.outcomes) <= {"timed_out", "cached", "expired"}
    assert decoders == "1" or result.outcomes.count("cached") == 7
    (stuck,) = set(threading.enumerate()) - before
    hanging = importlib.import_module(name)
    hanging.go_on.set()
    stuck.join(20)
    assert hanging.ended.is_set()
    assert raw_record(valkey, request, 4) is None
    for n, outcome in enumerate(result.outcomes):
        assert (raw_record(valkey, request, n) is not None) == (outcome == "cached")


class EndingContext(Context):
    """A context whose executor can end the function's process."""

    ends = False

    def end_when_answered(self):
        self.ends = True


@pytest.fixture
def together_server(s3_server):
    """Start a server that answers only after several requests have arrived. Return its bucket."""
    with contextlib.ExitStack() as ending:

        def start(together, body):
            enough = threading.Barrier(together)

            def answer(request):
                with contextlib.suppress(threading.BrokenBarrierError):
                    enough.wait()
                    request.answer(200, {"ETag": f'"{"0" * 32}"'}, body)

            ending.callback(enough.abort)
            return s3_server(answer)

        yield start


def test_a_thread_has_several_requests_in_flight(together_server):
    body = encode(pixels())
    bucket = together_server(together=8, body=body)
    begun = [bucket.begin(f"{n}.png", "0" * 32) for n in range(8)]
    for n, pending in enumerate(begun):
        options = {"limit_bytes": 10**6, "reserve": lambda _: None, "begun": pending}
        assert read_object(bucket, f"{n}.png", "0" * 32, **options) == body
    assert bucket.in_flight >= 8


def test_a_silent_server_fails_its_samples_in_time(together_server, valkey, monkeypatch):
    monkeypatch.setattr(fetching, "_MAX_SILENCE_S", 1)
    together_server(together=1000, body=b"")
    begun_s = time.monotonic()
    result = run(request_for("s3://data", {f"{n}.png": "0" * 32 for n in range(20)}, valkey.unix_url))
    assert set(result.outcomes) == {"unavailable"}
    assert "no reply arrived within 1 s" in result.messages["0"]
    assert time.monotonic() - begun_s < 60  # not the 80 s that one read may take, and never their sum


@pytest.mark.parametrize("decoders", ["1", "3"])
def test_a_bug_in_a_fetching_thread_is_raised(s3_server, valkey, monkeypatch, decoders):
    class Strange:
        def fileno(self):
            raise ValueError("a descriptor of nothing")

        def close(self):
            """Nothing was opened."""

    monkeypatch.setenv("SUPER_DECODERS", decoders)
    monkeypatch.setattr(S3Bucket, "begin", lambda *_: Strange())
    s3_server(lambda _: None)
    request = request_for("s3://data", {f"{n}.png": "0" * 32 for n in range(9)}, valkey.unix_url)
    with pytest.raises(ValueError, match="a descriptor of nothing"):
        run(request)


# getrusage would count the peak of the process that forked this one, too.
PROGRAM = """
import json, re, sys
from pathlib import Path
from superdl.lambda_prefetch import store
from superdl.lambda_prefetch.handler import handler
from tests.lambda_prefetch.prefetching import Context

store._MIN_WAIT_S = 1e9  # a pack is written, however slow this disk is

def kib(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

*earlier, large = (json.loads(line) for line in sys.stdin)
for event in earlier:
    result = handler(event, Context())
if large["packs"]:
    large |= {"packs": [result["pack"]], "offsets": result["offsets"], "lengths": result["record_bytes"]}
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = kib("VmRSS")
outcomes = handler(large, Context())["outcomes"]
print(json.dumps([sorted(set(outcomes)), (kib("VmHWM") - before) * 1024]))
"""


@pytest.mark.parametrize(
    ("decoders", "restores"),
    [(1, True), *(pytest.param(decoders, False, marks=pytest.mark.slow) for decoders in (1, 3))],
)
def test_peak_memory_stays_within_the_formula(tmp_path, directory_store, decoders, restores):
    """Twenty large images: without a bound on any one term they would take several times as much.

    What is written to a store takes nothing more, and what is restored only what waits.
    """
    side, count, budget = 2000, 20, 16 * MIB
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    large = encode(Image.fromarray(noise), "JPEG", quality=90, exif=_turned())
    (tmp_path / "small.png").write_bytes(encode(pixels()))
    keys = [f"{n}.jpg" for n in range(count)]
    for key in keys:
        (tmp_path / key).write_bytes(large)
    record = side * side * 3 + 64
    bound = max(budget, len(large)) + max(budget, record) + decoders * (len(large) + 12 * side * side)
    if restores:
        bound = 2 * max(budget, record)
    with Valkey(maxmemory="1gb") as server:
        small = file_request(tmp_path, ["small.png"], server.unix_url, Recipe.image(resize=8))
        request = replace(
            file_request(tmp_path, keys, server.unix_url, Recipe.image(crop=side)),
            kind=RequestKind.DECODE_TO_STORE,
            store=directory_store.address,
        )
        requests = [small, request]
        if restores:
            # The places are those that the request before tells.
            requests.append(
                replace(request, kind=RequestKind.RESTORE, packs=("later",), pack_of=(0,) * count)
            )
        events = [one.to_json() for one in requests]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="\n".join(events),
            env={
                "PYTHONPATH": str(ROOT),
                "SUPER_STORE": directory_store.address,
                "SUPER_DECODERS": str(decoders),
                "SUPER_FETCH_BYTES": str(budget),
                "SUPER_PUSH_BYTES": str(budget),
                "SUPER_FETCH_THREADS": "8",
                "SUPER_LOG_LEVEL": "ERROR",
                "POWERTOOLS_METRICS_DISABLED": "true",
                # Memory is given back at once: the peak is of what is held, not of what malloc keeps.
                "MALLOC_MMAP_THRESHOLD_": "65536",
                "MALLOC_TRIM_THRESHOLD_": "65536",
                "MALLOC_ARENA_MAX": "2",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
    outcomes, peak = json.loads(done.stdout.splitlines()[-1])
    assert outcomes == ["cached"]
    assert len(directory_store.packs()) == 1
    assert peak <= bound + 12 * MIB  # the interpreter's own threads, and the C libraries' scratch
    assert peak > bound / 4  # it is these images that are measured


def _turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif
