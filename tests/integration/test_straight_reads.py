"""Readers that see the store read it themselves: no restore, no decode; what is broken there heals."""

from __future__ import annotations

import random

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, pixels_of
from tests.integration.resuming import settled_stats, wait_until

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def stack(tmp_path):
    """A running stack with a store."""
    running = Stack(arguments=("--slots", "2", "--store", str(tmp_path / "store")))
    running.start()
    yield running
    running.close()


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
def test_epochs_after_the_first_are_read_straight(stack, images, method):
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
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


def test_packs_that_are_spoilt_within_an_epoch_heal(stack, images, tmp_path):
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
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
