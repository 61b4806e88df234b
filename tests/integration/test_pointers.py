"""A cold epoch with a store in a directory: records go to packs once, and the cache has pointers to them."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.record import HEADER_BYTES, RecordKind, parse_header
from tests.fixtures.images import expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, pixels_of, remove_busy

SIDE = 80
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
RECORD_BYTES = HEADER_BYTES + 3 * SIDE**2


@pytest.fixture
def stack(tmp_path):
    """A running stack with a store that looks ahead a little."""
    running = Stack(
        arguments=("--slots", "2", "--lookahead-batches", "4", "--store", str(tmp_path / "store"))
    )
    running.start()
    yield running
    running.close()


@pytest.fixture
def expected(images):
    return expected_pixels(images, resize=SIDE, crop=SIDE)


class Reading:
    """One epoch of a job of its own, batch by batch."""

    def __init__(self, stack, images, *, seed=1, straight=True):
        dataset = SuperDataset(images.as_uri(), RECIPE, return_info=True)
        dataset.reads_straight = straight
        self.sampler = SuperSampler(dataset, batch_size=8, shuffle=True, seed=seed, coordinator=stack.address)
        self.batches = iter(DataLoader(dataset, sampler=self.sampler, batch_size=None))
        self.delivered = []
        self.straight = self.hits = self.misses = 0

    def read(self, batches=None):
        """The next batches, or all that are left."""
        for images, labels, info in self.batches:
            self.delivered += zip(pixels_of(images), labels.tolist(), strict=True)
            self.straight += info.straight
            self.hits += info.hits
            self.misses += info.misses
            batches = None if batches is None else batches - 1
            if batches == 0:
                return


def kinds_in_cache(stack):
    """Of each record in the cache its kind; and the bytes of all."""
    with stack.valkey.client() as client:
        records = client.mget(client.keys("super:r1:*"))
    return [parse_header(record).kind for record in records], sum(map(len, records))


def test_a_cold_epoch_is_read_out_of_packs(stack, images, expected):
    reading = Reading(stack, images)
    reading.read()
    assert_exactly_once(reading.delivered, expected)
    assert reading.straight + reading.hits + reading.misses == len(expected)
    kinds, size_bytes = kinds_in_cache(stack)
    pointers = kinds.count(RecordKind.POINTER)
    assert pointers > len(expected) * 3 // 4  # a straggler that was raced has written records
    assert size_bytes <= 200 * pointers + RECORD_BYTES * (len(kinds) - pointers)
    assert reading.hits <= len(kinds) - pointers
    with reading.sampler as sampler:
        assert sampler.job_stats().record_bytes <= size_bytes + RECORD_BYTES * (len(kinds) - pointers)


@pytest.mark.slow
def test_packs_that_go_in_the_midst_of_a_cold_epoch_cost_decodes_alone(stack, images, expected, tmp_path):
    reading = Reading(stack, images)
    for _ in range(3):
        reading.read(2)
        for pack in (tmp_path / "store" / "packs").iterdir():
            pack.unlink()
    reading.read(1)
    remove_busy(tmp_path / "store")
    reading.read()
    assert_exactly_once(reading.delivered, expected)
    reading.sampler.close()


def test_a_job_that_does_not_see_the_store_gets_records(stack, images, expected):
    first, second = Reading(stack, images), None
    first.read(4)
    second = Reading(stack, images, seed=2, straight=False)
    for _ in range(4):
        second.read(2)
        first.read(1)
    second.read()
    first.read()
    for reading in (first, second):
        assert_exactly_once(reading.delivered, expected)
    assert second.straight == 0
    kinds, _ = kinds_in_cache(stack)
    assert RecordKind.POINTER not in kinds
    with first.sampler as one, second.sampler as other:
        produced = one.job_stats().samples_produced + other.job_stats().samples_produced
        assert other.job_stats().samples_restored > 0
    assert produced == len(expected)
