"""Readers that see the store read its packs: once decoded, nothing is restored; what is broken there heals.

In a cold epoch records go to packs once, and the cache has pointers to them.
"""

import random

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.record import HEADER_BYTES, RecordKind, parse_header
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, pixels_of, remove_busy
from tests.integration.resuming import settled_stats, wait_until

SIDE = 80
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
RECORD_BYTES = HEADER_BYTES + 3 * SIDE**2


@pytest.fixture
def stack(tmp_path):
    """A running stack with a store that looks ahead a little."""
    arguments = ("--slots", "2", "--lookahead-batches", "4", "--store", str(tmp_path / "store"))
    with Stack(arguments=arguments) as running:
        yield running


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


def epoch_of(loader, expected):
    """One epoch, in which all came once; how many samples were read straight, and how many missed."""
    delivered, straight, misses = [], 0, 0
    for images, labels, info in loader:
        delivered += zip(pixels_of(images), labels.tolist(), strict=True)
        straight += info.straight
        misses += info.misses
    assert_exactly_once(delivered, expected)
    return straight, misses


@pytest.mark.parametrize("method", ["threads", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_epochs_after_the_first_are_read_straight(stack, images, expected, method):
    dataset = SuperDataset(images.as_uri(), RECIPE, return_info=True)
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        if method == "threads":
            loader = SuperLoader(dataset, sampler, threads=2)
        else:
            workers = {"num_workers": 2, "multiprocessing_context": method}
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, **workers)
        straight, misses = epoch_of(loader, expected)
        wait_until(lambda: sampler.job_stats().batches_read == len(sampler), "the read reports of an epoch")
        made = settled_stats(sampler).samples_produced
        assert made == len(expected)
        with stack.valkey.client() as client:
            client.delete(*client.keys("super:r1:*"))  # the cache has nothing any more, and nobody needs it
        for _ in range(2):
            assert epoch_of(loader, expected) == (len(expected), 0)
        batches = 3 * len(sampler)
        wait_until(lambda: sampler.job_stats().batches_read == batches, "all read reports")
        stats = sampler.job_stats()
    assert stats.samples_produced == made
    assert stats.samples_restored <= misses, "what a reader missed may still have been looked for"
    assert stats.cache_hits + stats.samples_straight + stats.cache_misses == 3 * len(expected)
    assert stats.samples_straight == straight + 2 * len(expected)


def test_packs_that_are_spoilt_within_an_epoch_heal(stack, images, expected, tmp_path):
    dataset = SuperDataset(images.as_uri(), RECIPE, return_info=True)
    store, rng = DirectoryStore.open(tmp_path / "store", create=True), random.Random(3)
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        epoch_of(loader, expected)

        def spoiling():
            for number, batch in enumerate(loader):
                yield batch
                if number == 0:
                    spoil()

        def spoil():
            for name, size in store.packs().items():
                path, fault = tmp_path / "store" / "packs" / name, rng.randrange(4)
                if fault == 0:
                    path.unlink()
                elif fault == 1:
                    with path.open("r+b") as file:
                        file.truncate(rng.randrange(size))
                elif fault == 2:
                    with path.open("r+b") as file:
                        file.write(bytes(size // 2))

        for _ in range(3):
            straight, _ = epoch_of(spoiling(), expected)
            assert straight >= 8
