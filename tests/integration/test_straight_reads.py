"""Readers that see the store read its packs: decoded samples are not restored, and broken packs heal.

In a cold epoch records go to packs once, and the cache gets pointers to them.
"""

import random

import pytest

from superdl.super_dataset import Recipe, SuperLoader
from superdl.super_wire.record import HEADER_BYTES, RecordKind, parse_header
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import assert_exactly_once, pixels_of, reading, remove_busy, settled_stats

SIDE = 80
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
RECORD_BYTES = HEADER_BYTES + 3 * SIDE**2


@pytest.fixture
def stack(tmp_path):
    """A running stack with a store and a short look-ahead."""
    arguments = ("--slots", "2", "--lookahead-batches", "4", "--store", str(tmp_path / "store"))
    with Stack(arguments=arguments) as running:
        yield running


@pytest.fixture(scope="module")
def expected(images):
    return expected_pixels(images, resize=SIDE, crop=SIDE)


@pytest.fixture
def job(stack, images):
    """Make a sampler and a loader of the images."""

    def job(**how):
        return reading(images.as_uri(), stack.address, RECIPE, batch_size=8, return_info=True, **how)

    return job


class Reading:
    """An epoch, batch by batch: the samples so far, and where they came from."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.delivered = []
        self.straight = self.hits = self.misses = 0

    def read(self, batches=None):
        """Read this many batches, or all that are left."""
        for images, labels, info in self.batches:
            self.delivered += zip(pixels_of(images), labels.tolist(), strict=True)
            self.straight += info.straight
            self.hits += info.hits
            self.misses += info.misses
            batches = None if batches is None else batches - 1
            if batches == 0:
                break
        return self


def kinds_in_cache(stack):
    """The kind of each record in the cache, and the total size in bytes."""
    with stack.valkey.client() as client:
        records = client.mget(client.keys("super:r1:*"))
    return [parse_header(record).kind for record in records], sum(map(len, records))


def test_a_cold_epoch_is_read_out_of_packs(stack, job, expected):
    with job() as (sampler, loader):
        epoch = Reading(loader).read()
        assert_exactly_once(epoch.delivered, expected)
        assert epoch.straight + epoch.hits + epoch.misses == len(expected)
        kinds, size_bytes = kinds_in_cache(stack)
        pointers = kinds.count(RecordKind.POINTER)
        assert pointers > len(expected) * 3 // 4  # stragglers that lost a race write records
        assert size_bytes <= 200 * pointers + RECORD_BYTES * (len(kinds) - pointers)
        assert epoch.hits <= len(kinds) - pointers
        assert sampler.job_stats().record_bytes <= size_bytes + RECORD_BYTES * (len(kinds) - pointers)


@pytest.mark.slow
def test_packs_that_go_in_the_midst_of_a_cold_epoch_cost_decodes_alone(job, expected, tmp_path):
    with job() as (_, loader):
        epoch = Reading(loader)
        for _ in range(3):
            epoch.read(2)
            for pack in (tmp_path / "store" / "packs").iterdir():
                pack.unlink()
        epoch.read(1)
        remove_busy(tmp_path / "store")
        assert_exactly_once(epoch.read().delivered, expected)


def test_a_job_that_does_not_see_the_store_gets_records(stack, job, expected):
    with job() as (one, of_one):
        first = Reading(of_one).read(4)
        with job(seed=2, straight=False) as (other, of_other):
            second = Reading(of_other)
            for _ in range(4):
                second.read(2)
                first.read(1)
            for epoch in (second, first):
                assert_exactly_once(epoch.read().delivered, expected)
            assert second.straight == 0
            kinds, _ = kinds_in_cache(stack)
            assert RecordKind.POINTER not in kinds
            produced = one.job_stats().samples_produced + other.job_stats().samples_produced
            assert other.job_stats().samples_restored > 0
    assert produced == len(expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_after_the_first_are_read_straight(stack, job, expected, workers):
    with job(workers=workers) as (sampler, by_workers):
        loader = by_workers if workers else SuperLoader(by_workers.dataset, sampler, threads=2)
        first = Reading(loader).read()
        assert_exactly_once(first.delivered, expected)
        until(lambda: sampler.job_stats().batches_read == len(sampler), 30.0)
        made = settled_stats(sampler).samples_produced
        assert made == len(expected)
        with stack.valkey.client() as client:
            client.delete(*client.keys("super:r1:*"))  # empty the cache: nobody needs it now
        for _ in range(2):
            epoch = Reading(loader).read()
            assert_exactly_once(epoch.delivered, expected)
            assert (epoch.straight, epoch.misses) == (len(expected), 0)
        until(lambda: sampler.job_stats().batches_read == 3 * len(sampler), 30.0)
        stats = sampler.job_stats()
    assert stats.samples_produced == made
    assert stats.samples_restored <= first.misses, "restored more than the first epoch's misses"
    assert stats.cache_hits + stats.samples_straight + stats.cache_misses == 3 * len(expected)
    assert stats.samples_straight == first.straight + 2 * len(expected)


def test_packs_that_are_spoilt_within_an_epoch_heal(job, expected, tmp_path):
    store, rng = DirectoryStore.open(tmp_path / "store", create=True), random.Random(3)

    def spoil_packs():
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

    with job() as (_, loader):
        Reading(loader).read()
        for _ in range(3):
            epoch = Reading(loader).read(1)
            spoil_packs()
            assert_exactly_once(epoch.read().delivered, expected)
            assert epoch.straight >= 8
