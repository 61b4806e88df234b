"""``SuperLoader`` with a real sampler and coordinator: exactly once, and resumable anywhere."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect, pixels_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCHES = 10  # of the 150 images


def sampler_of(stack: Stack, dataset: SuperDataset, **arguments: Any) -> SuperSampler:
    return SuperSampler(dataset, **({"batch_size": 16, "seed": 1, "coordinator": stack.address} | arguments))


def orders(stack: Stack, images: Path, epochs: int) -> list[list[tuple[bytes, int]]]:
    """What a plain DataLoader delivers."""
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        return [collect(loader) for _ in range(epochs)]


@pytest.mark.parametrize("threads", [1, 2])
def test_three_epochs_as_a_data_loader_delivers_them(stack: Stack, images: Path, threads: int) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler, threads=threads)
        assert len(loader) == BATCHES
        delivered = [collect(loader) for _ in range(3)]
        loader.close()
    for epoch in delivered:
        assert_exactly_once(epoch, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert delivered == orders(stack, images, 3)


@pytest.mark.parametrize("stop", [0, 1, 7, BATCHES])
def test_resumes_after_the_batch_that_the_loop_got_last(stack: Stack, images: Path, stop: int) -> None:
    expected = orders(stack, images, 3)
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler, prefetch=4)
        collect(loader)
        batches = iter(loader)
        got = list(islice(batches, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler)
        loader.load_state_dict(state)
        rest, following = collect(loader), collect(loader)
        loader.close()
    assert collect(got) + rest == expected[1]
    assert following == expected[2]


def test_between_epochs_the_state_names_the_next(stack: Stack, images: Path) -> None:
    expected = orders(stack, images, 2)
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler)
        assert collect(loader) == expected[0]
        loader.load_state_dict(loader.state_dict())
        assert collect(loader) == expected[1]
        loader.close()


def test_a_validation_loader_with_workers_starts_in_the_middle_of_an_epoch(
    stack: Stack, images: Path
) -> None:
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    dataset = SuperDataset(images.as_uri(), RECIPE)
    held = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(stack, dataset) as sampler, sampler_of(stack, held, shuffle=False) as other:
        validation = DataLoader(held, sampler=other, batch_size=None, num_workers=2)
        loader = SuperLoader(dataset, sampler)
        delivered: list[tuple[bytes, int]] = []
        for n, (batch, labels) in enumerate(loader):
            if n in {2, 5}:  # forks while threads read
                assert_exactly_once(collect(validation), expected)
            delivered += zip(pixels_of(batch), labels.tolist(), strict=True)
        loader.close()
    assert_exactly_once(delivered, expected)
