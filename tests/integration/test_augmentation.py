"""Augmentation after the cache, end to end: fresh by epoch, the same in every way to load, nothing decoded
twice.
"""

from __future__ import annotations

import operator
import random

import numpy as np
import torch
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Augment, PerSample, Recipe, SuperDataset, SuperLoader

RECIPE = Recipe.image(resize=40, crop=40)
AUGMENT = Augment(32, brightness=0.4, hue=0.1, mean=(0.5,) * 3, std=(0.25,) * 3, seed=5)


def with_ids(images, labels, info):
    """Augment in the reader, and tell which samples they were."""
    return *AUGMENT(images, labels, info), info.sample_ids


def pictures(loader):
    """Sample id -> pixels, of one epoch; padding must agree with what it repeats."""
    seen = {}
    for images, _, ids in loader:
        assert images.shape == (len(ids) // 16, 3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)
        for at, image in enumerate(images):
            pixels = np.ascontiguousarray(image).tobytes()
            assert seen.setdefault(ids[16 * at : 16 * at + 16], pixels) == pixels
    return seen


def test_the_same_by_every_loader_in_any_batch_and_fresh_by_epoch(shared_stack, images):
    dataset = SuperDataset(images, Recipe.image(resize=41, crop=40), transform=with_ids)  # not cached yet
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        first, second = pictures(loader), pictures(loader)
        produced = sampler.job_stats().samples_produced
    assert len(first) == 150
    assert first.keys() == second.keys()
    assert not set(first.values()) & set(second.values())
    assert produced == 150
    # Other batches, another order, workers, threads, two ranks: each sample looks as it did.
    with SuperSampler(
        dataset, batch_size=7, shuffle=True, seed=9, coordinator=shared_stack.address
    ) as sampler:
        assert pictures(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)) == first
        assert pictures(SuperLoader(dataset, sampler)) == second
    ranks = {}
    for rank in range(2):
        with SuperSampler(
            dataset,
            batch_size=8,
            shuffle=True,
            rank=rank,
            num_replicas=2,
            job="ranks",
            coordinator=shared_stack.address,
        ) as sampler:
            ranks |= pictures(DataLoader(dataset, sampler=sampler, batch_size=None))
    assert ranks == first


def cropped(image):
    """A crop of one PIL image and its brightness, as global generators draw them."""
    left, top = random.randrange(24), random.randrange(24)
    return torch.from_numpy(np.array(image.crop((left, top, left + 16, top + 16)))) * torch.rand(1)


def test_a_transform_for_one_image_gives_the_same_by_any_workers(shared_stack, images):
    seeded = SuperDataset(images, RECIPE, transform=PerSample(cropped, seed=3), return_info=True)
    plain = SuperDataset(images, transform=cropped, return_info=True)  # and no recipe: images as they are

    def crops(workers, dataset=seeded, **plan):
        with SuperSampler(dataset, shuffle=True, coordinator=shared_stack.address, **plan) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
            return [
                {
                    key: image.numpy().tobytes()
                    for pixels, _, info in loader
                    for key, image in zip(info.keys, pixels, strict=True)
                }
                for _ in range(2)
            ]

    first, second = crops(0, batch_size=16)
    assert len(first) == 150
    assert all(first[key] != second[key] for key in first)
    assert crops(2, batch_size=7, seed=9) == [first, second]
    by_sampler = crops(0, plain, batch_size=16, seed=9)
    assert crops(2, plain, batch_size=7, seed=9) == by_sampler
    other = crops(0, plain, batch_size=16, seed=8)
    assert all(by_sampler[0][key] != other[0][key] for key in first)


def test_in_the_training_loop_it_is_what_it_is_in_the_worker(shared_stack, images):
    plain = SuperDataset(images, RECIPE, return_info=True)
    with SuperSampler(plain, batch_size=16, shuffle=True, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(plain, sampler=sampler, batch_size=None, num_workers=2)
        in_loop = [AUGMENT.images(pixels, info) for pixels, _, info in loader]
    augmented = SuperDataset(images, RECIPE, transform=AUGMENT)
    with SuperSampler(augmented, batch_size=16, shuffle=True, coordinator=shared_stack.address) as sampler:
        loader = DataLoader(augmented, sampler=sampler, batch_size=None, num_workers=2)
        in_worker = list(map(operator.itemgetter(0), loader))
    assert all(torch.equal(one, other) for one, other in zip(in_loop, in_worker, strict=True))
