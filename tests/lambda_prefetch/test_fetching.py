"""Objects of S3 are asked for ahead of their reading, and each arrives once, read or failed."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time

import numpy as np
import pytest

from superdl.lambda_prefetch import fetching
from superdl.lambda_prefetch.sources import read_object
from superdl.super_wire.objects import open_bucket
from superdl.super_wire.objects.s3 import S3Bucket
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.object_store import ObjectStore, object_store
from tests.lambda_prefetch.prefetching import array_of, encode, pixels, request_for, run

__all__ = ["object_store"]


@pytest.fixture
def bucket(object_store: ObjectStore):
    """300 small images, one in ten missing: keys and versions."""
    (object_store.directory / "data").mkdir()
    versions = {}
    for n in range(300):
        body = encode(pixels(20, 30 + n % 7, seed=n))
        if n % 10 != 3:
            (object_store.directory / "data" / f"{n:03}.png").write_bytes(body)
        versions[f"{n:03}.png"] = hashlib.md5(body, usedforsecurity=False).hexdigest()
    return versions


@pytest.mark.parametrize("decoders", ["1", "2", "40"])
@pytest.mark.parametrize("fetch_threads", ["0", "1", "7"])
def test_every_object_arrives_once(bucket, valkey, monkeypatch, decoders, fetch_threads):
    monkeypatch.setenv("SUPER_DECODERS", decoders)
    monkeypatch.setattr("superdl.lambda_prefetch.pipeline._WORTH_A_THREAD_US", 0)
    monkeypatch.setenv("SUPER_FETCH_THREADS", fetch_threads)
    request = request_for("s3://data", bucket, valkey.unix_url)
    result = run(request)
    assert list(result.outcomes) == ["missing" if n % 10 == 3 else "cached" for n in range(300)]
    assert np.array_equal(array_of(valkey, request, 299), pixels(20, 30 + 299 % 7, seed=299))
    assert all(
        us > 0 for us, outcome in zip(result.fetch_us, result.outcomes, strict=True) if outcome == "cached"
    )


def test_a_small_budget_holds_back_what_was_asked_for(object_store, valkey, monkeypatch):
    monkeypatch.setattr(fetching, "_ENOUGH_ARRIVED", 2)
    monkeypatch.setattr(fetching, "_FEW_ARRIVED", 0)
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(2**20))
    body = encode(pixels(400, 400), "BMP")
    assert len(body) < 2**19  # two fit
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    (object_store.directory / "data").mkdir()
    for n in range(50):
        (object_store.directory / "data" / f"{n}.bmp").write_bytes(body)
    request = request_for("s3://data", {f"{n}.bmp": etag for n in range(50)}, valkey.unix_url)
    assert run(request).outcomes == ("cached",) * 50


@pytest.fixture
def together_server(monkeypatch):
    """Starts a server that answers GETs with one body, but nobody before enough have asked; its URL."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "not looked at")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with contextlib.ExitStack() as ending:

        def start(together, body):
            enough = threading.Barrier(together)

            def answer(request):
                with contextlib.suppress(threading.BrokenBarrierError):
                    enough.wait()
                    request.answer(200, {"ETag": f'"{"0" * 32}"'}, body)

            server = ending.enter_context(contextlib.closing(LoopbackServer(answer)))
            ending.callback(enough.abort)
            return f"http://127.0.0.1:{server.port}"

        yield start


def test_several_are_in_flight_in_one_thread(together_server, monkeypatch):
    """The server answers nobody before eight have asked."""
    body = encode(pixels())
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", together_server(together=8, body=body))
    bucket = open_bucket("s3://data")
    begun = [bucket.begin(f"{n}.png", "0" * 32) for n in range(8)]
    got = [
        read_object(bucket, f"{n}.png", "0" * 32, limit_bytes=10**6, reserve=lambda _: None, begun=one)
        for n, one in enumerate(begun)
    ]
    assert got == [body] * 8
    assert bucket.in_flight >= 8


def test_a_server_that_is_silent_fails_what_was_asked_for(together_server, valkey, monkeypatch):
    monkeypatch.setattr(fetching, "_MAX_SILENCE_S", 1)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", together_server(together=1000, body=b""))
    begun_s = time.monotonic()
    result = run(request_for("s3://data", {f"{n}.png": "0" * 32 for n in range(20)}, valkey.unix_url))
    assert set(result.outcomes) == {"unavailable"}
    assert "no answer came for 1 s" in result.messages["0"]
    assert time.monotonic() - begun_s < 60  # not the 80 s that one read may take, and never their sum


@pytest.mark.parametrize("decoders", ["1", "3"])
def test_a_bug_in_a_fetching_thread_is_raised_and_keeps_nobody_waiting(bucket, valkey, monkeypatch, decoders):
    class Strange:
        def fileno(self):
            raise ValueError("a descriptor of nothing")

        def close(self):
            """Nothing was opened."""

    monkeypatch.setenv("SUPER_DECODERS", decoders)
    monkeypatch.setattr("superdl.lambda_prefetch.pipeline._WORTH_A_THREAD_US", 0)
    monkeypatch.setattr(S3Bucket, "begin", lambda *_: Strange())
    with pytest.raises(ValueError, match="a descriptor of nothing"):
        run(request_for("s3://data", bucket, valkey.unix_url))
