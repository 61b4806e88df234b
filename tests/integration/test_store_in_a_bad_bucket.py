"""A store in a bucket whose S3 throttles, falls silent or breaks off: waits end, and no byte is wrong."""

from __future__ import annotations

import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.bad_front import LONGEST_S, BadFront
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def front(object_store, monkeypatch):
    (object_store.directory / "bucket").mkdir()
    bad = BadFront(object_store)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", bad.url)
    yield bad
    bad.close()


@pytest.fixture
def stack(front):
    """A coordinator over a store in the bucket behind the front, not started yet."""
    made = Stack(arguments=("--slots", "2", "--lookahead-batches", "2", "--store", "s3://bucket/store"))
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["throttled", "silent", "broken off"])
def test_s3_that_answers_badly_costs_decodes_alone(images, object_store, front, stack, fault):
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    stack.start()
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
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
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
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
