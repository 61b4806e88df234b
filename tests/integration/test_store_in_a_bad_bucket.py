"""A store in a bucket whose S3 throttles, falls silent or breaks off: waits end, and no byte is wrong."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.loopback_http import Request
    from tests.fixtures.object_store import ObjectStore

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
HOP_BY_HOP = {"content-length", "transfer-encoding", "connection"}
SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>'
LONGEST_S = 90.0


class BadFront:
    """Passes requests on to S3; of those that come while ``fault`` is set, one in ``one_in`` fares badly."""

    def __init__(self, store: ObjectStore) -> None:
        self.fault, self.one_in = "", 2
        self.spoilt = 0
        self._place = urlsplit(store.url).netloc
        self._numbers = itertools.count(1)
        self._closing = threading.Event()
        self._server = LoopbackServer(self._answer)
        self.url = f"http://127.0.0.1:{self._server.port}"

    def _answer(self, request: Request) -> None:
        body = request.read_body()
        fault = self.fault if self.fault and next(self._numbers) % self.one_in == 0 else ""
        if fault == "throttled":
            self.spoilt += 1
            request.answer(503, {"Content-Type": "application/xml"}, SLOW_DOWN)
            return
        if fault == "silent":
            self.spoilt += 1
            self._closing.wait(LONGEST_S)
            request.hang_up()
            return
        connection = http.client.HTTPConnection(self._place, timeout=LONGEST_S)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        connection.request(request.command, request.path, body, headers)
        answer = connection.getresponse()
        told = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
        data = answer.read()
        connection.close()
        if fault == "broken off" and len(data) > 1:
            self.spoilt += 1
            request.send_response(answer.status)
            for name, value in {**told, "Content-Length": str(len(data))}.items():
                request.send_header(name, value)
            request.end_headers()
            request.wfile.write(data[: len(data) // 2])
            request.wfile.flush()
            request.hang_up()
            return
        request.answer(answer.status, told, data)

    def close(self) -> None:
        """Let go of who waits, and end."""
        self._closing.set()
        self._server.close()


@pytest.fixture
def front(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadFront]:
    (object_store.directory / "bucket").mkdir()
    bad = BadFront(object_store)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", bad.url)
    yield bad
    bad.close()


@pytest.fixture
def stack(front: BadFront) -> Iterator[Stack]:
    """A coordinator over a store in the bucket behind the front, not started yet."""
    made = Stack(arguments=("--workers", "2", "--lookahead-batches", "2", "--store", "s3://bucket/store"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["throttled", "silent", "broken off"])
def test_s3_that_answers_badly_costs_decodes_alone(
    images: Path, object_store: ObjectStore, front: BadFront, stack: Stack, fault: str
) -> None:
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    stack.start()
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=8, seed=1, coordinator=stack.address) as sampler:
        first = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        settled_stats(sampler)
    assert stack.close_coordinator() == 0, stack.log.read_text()
    assert list((object_store.directory / "bucket").rglob("*.pack"))
    with stack.valkey.client() as client:
        client.flushall()
    front.one_in = 4 if fault == "silent" else 2
    front.fault = fault
    stack.start_coordinator()
    began_s = time.monotonic()
    with SuperSampler(dataset, batch_size=8, seed=1, coordinator=stack.address) as sampler:
        second = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        stats = settled_stats(sampler)
    assert time.monotonic() - began_s < LONGEST_S
    assert front.spoilt
    assert second == first
    assert_exactly_once(second, expected)
    assert stats.samples_produced + stats.samples_restored == len(expected)
    assert stats.samples_restored or fault != "throttled"
    if stats.samples_produced:
        assert "s3://bucket/store" in stack.log.read_text()
