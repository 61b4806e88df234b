"""The promise users rely on most: each epoch delivers every sample once, with its label and pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture(scope="module")
def expected(images: Path) -> dict[bytes, int]:
    pixels = expected_pixels(images, resize=SIDE, crop=SIDE)
    assert len(pixels) == 150, "the images of this test differ from one another"
    return pixels


def test_three_shuffled_epochs_deliver_every_sample_once(shared_stack: Stack, images: Path) -> None:
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE + 3, crop=SIDE))  # not cached yet
    expected = expected_pixels(images, resize=SIDE + 3, crop=SIDE)
    with SuperSampler(dataset, batch_size=16, seed=1, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        epochs = [collect(loader) for _ in range(3)]
    for delivered in epochs:
        assert_exactly_once(delivered, expected)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0], "each epoch has an order of its own"


def test_the_seed_decides_the_order(shared_stack: Stack, images: Path) -> None:
    def order(seed: int, epoch: int = 0) -> list[tuple[bytes, int]]:
        dataset = SuperDataset(images.as_uri(), RECIPE)
        with SuperSampler(dataset, batch_size=16, seed=seed, coordinator=shared_stack.address) as sampler:
            sampler.set_epoch(epoch)
            return collect(DataLoader(dataset, sampler=sampler, batch_size=None))

    assert order(7) == order(7)
    assert order(7) != order(8)
    assert order(7, epoch=3) == order(7, epoch=3)
    assert order(7, epoch=3) != order(7)


def test_without_shuffle_samples_come_by_key(shared_stack: Stack, images: Path) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=16, shuffle=False, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        delivered = collect(loader)
    assert delivered == list(expected_pixels(images, resize=SIDE, crop=SIDE).items())


def test_drop_last_leaves_out_the_short_batch_alone(
    shared_stack: Stack, images: Path, expected: dict[bytes, int]
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=16, drop_last=True, coordinator=shared_stack.address) as sampler:
        assert len(sampler) == 9
        delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
    assert len(delivered) == len(set(delivered)) == 144
    assert set(delivered) < set(expected.items())


def test_out_of_order_delivers_every_sample_once(shared_stack: Stack, images: Path) -> None:
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE + 1, crop=SIDE))  # not cached yet
    expected = expected_pixels(images, resize=SIDE + 1, crop=SIDE)
    with SuperSampler(dataset, batch_size=16, in_order=False, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        for _ in range(2):
            assert_exactly_once(collect(loader), expected)


def test_ranks_share_the_epoch(shared_stack: Stack, images: Path, expected: dict[bytes, int]) -> None:
    datasets = [SuperDataset(images.as_uri(), RECIPE, return_info=True) for _ in range(2)]
    samplers = [
        SuperSampler(
            dataset, batch_size=8, rank=rank, num_replicas=2, job="ranks", coordinator=shared_stack.address
        )
        for rank, dataset in enumerate(datasets)
    ]
    assert len(samplers[0]) == len(samplers[1]) == 10
    delivered = []
    for dataset, sampler in zip(datasets, samplers, strict=True):
        delivered += collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        sampler.close()
    assert_exactly_once(delivered, expected)  # 150 is a multiple of two: nothing is padded


def test_a_second_job_decodes_nothing_again(shared_stack: Stack, images: Path) -> None:
    recipe = Recipe.image(resize=SIDE + 2, crop=SIDE)  # not cached yet
    expected = expected_pixels(images, resize=SIDE + 2, crop=SIDE)
    first, second = (SuperDataset(images.as_uri(), recipe) for _ in range(2))
    with (
        SuperSampler(first, batch_size=16, seed=1, coordinator=shared_stack.address) as one,
        SuperSampler(second, batch_size=50, seed=2, coordinator=shared_stack.address) as other,
    ):
        assert_exactly_once(collect(DataLoader(first, sampler=one, batch_size=None)), expected)
        assert_exactly_once(collect(DataLoader(second, sampler=other, batch_size=None)), expected)
        assert one.job != other.job
        assert one.job_stats().samples_produced + other.job_stats().samples_produced == 150


def test_a_dataset_of_four_times_the_cache_finishes(tmp_path: Path) -> None:
    side = 96
    images = write_images(tmp_path / "images", 240, side=side)
    expected = expected_pixels(images, resize=side, crop=side)
    record_bytes = 64 + side * side * 3
    stack = Stack(
        maxmemory="64mb", arguments=("--cache-bytes", str(240 * record_bytes // 4), "--workers", "2")
    )
    stack.start()
    try:
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=side, crop=side))
        with SuperSampler(dataset, batch_size=8, seed=3, coordinator=stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
            for _ in range(3):
                assert_exactly_once(collect(loader), expected)
            stats = sampler.job_stats()
        assert stats.dropped_samples > 240, "it did not fit, so samples were dropped"
        assert stats.resident_bytes <= stats.budget_bytes
        assert stats.samples_failed == 0
    finally:
        stack.close()
