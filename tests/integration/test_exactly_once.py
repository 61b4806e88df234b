"""The promise users rely on most: each epoch delivers every sample once, with its label and pixels."""

from __future__ import annotations

from itertools import islice

from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import run_of


def test_without_shuffle_samples_come_by_key(shared_stack, images):
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=16, shuffle=False, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        delivered = collect(loader)
    assert delivered == list(expected_pixels(images, resize=SIDE, crop=SIDE).items())


def test_out_of_order_delivers_every_sample_once(shared_stack, images):
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE + 1, crop=SIDE))  # not cached yet
    expected = expected_pixels(images, resize=SIDE + 1, crop=SIDE)
    with SuperSampler(
        dataset, batch_size=16, shuffle=True, in_order=False, coordinator=shared_stack.address
    ) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        for _ in range(2):
            assert_exactly_once(collect(loader), expected)


def test_a_rank_that_comes_in_mid_epoch_gets_all_of_its_part(shared_stack, images):
    with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=0, job="ranks") as early:
        iterator = iter(early.loader)
        delivered = collect(islice(iterator, 6))
        with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=1, job="ranks") as late:
            delivered += collect(late.loader)
            assert early.sampler.job == late.sampler.job
        delivered += collect(iterator)
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
