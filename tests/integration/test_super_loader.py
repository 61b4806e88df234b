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


@pytest.fixture(scope="module")
def orders(shared_stack: Stack, images: Path) -> list[list[tuple[bytes, int]]]:
    """What a plain DataLoader delivers in three epochs."""
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(shared_stack, dataset) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        return [collect(loader) for _ in range(3)]


@pytest.mark.parametrize("threads", [1, 2])
def test_three_epochs_as_a_data_loader_delivers_them(
    shared_stack: Stack, images: Path, orders: list[list[tuple[bytes, int]]], threads: int
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(shared_stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler, threads=threads)
        assert len(loader) == BATCHES
        delivered = [collect(loader) for _ in range(3)]
        loader.close()
    for epoch in delivered:
        assert_exactly_once(epoch, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert delivered == orders


@pytest.mark.parametrize("stop", [0, 1, 7, BATCHES])
def test_resumes_after_the_batch_that_the_loop_got_last(
    shared_stack: Stack, images: Path, orders: list[list[tuple[bytes, int]]], stop: int
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(shared_stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler, prefetch=4)
        collect(loader)
        batches = iter(loader)
        got = list(islice(batches, stop))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(shared_stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler)
        loader.load_state_dict(state)
        rest, following = collect(loader), collect(loader)
        loader.close()
    assert collect(got) + rest == orders[1]
    assert following == orders[2]


def test_between_epochs_the_state_names_the_next(
    shared_stack: Stack, images: Path, orders: list[list[tuple[bytes, int]]]
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with sampler_of(shared_stack, dataset) as sampler:
        loader = SuperLoader(dataset, sampler)
        assert collect(loader) == orders[0]
        loader.load_state_dict(loader.state_dict())
        assert collect(loader) == orders[1]
        loader.close()


def test_a_validation_loader_with_workers_starts_in_the_middle_of_an_epoch(
    shared_stack: Stack, images: Path
) -> None:
    expected = expected_pixels(images, resize=SIDE + 4, crop=SIDE)
    recipe = Recipe.image(resize=SIDE + 4, crop=SIDE)  # not cached yet
    dataset, held = (SuperDataset(images.as_uri(), recipe) for _ in range(2))
    with sampler_of(shared_stack, dataset) as sampler, sampler_of(shared_stack, held, shuffle=False) as other:
        validation = DataLoader(held, sampler=other, batch_size=None, num_workers=2)
        loader = SuperLoader(dataset, sampler)
        delivered: list[tuple[bytes, int]] = []
        for n, (batch, labels) in enumerate(loader):
            if n in {2, 5}:  # forks while threads read
                assert_exactly_once(collect(validation), expected)
            delivered += zip(pixels_of(batch), labels.tolist(), strict=True)
        loader.close()
    assert_exactly_once(delivered, expected)
