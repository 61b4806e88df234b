"""What dies in mid-epoch: the epoch ends all the same, every sample once, in plan order, with its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def restart_cache(stack: Stack) -> None:
    stack.valkey.restart_empty()


def flush_cache(stack: Stack) -> None:
    stack.valkey.client().flushall()


def restart_coordinator(stack: Stack) -> None:
    stack.kill_coordinator()
    stack.start_coordinator()


def kill_a_function(stack: Stack) -> None:
    stack.functions()[0].kill()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("fault", [restart_cache, flush_cache, restart_coordinator, kill_a_function])
def test_the_epoch_goes_on(
    restarted_stack: Stack, images: Path, fault: Callable[[Stack], None], workers: int
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=restarted_stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
        undisturbed = collect(loader)
        sampler.set_epoch(0)
        disturbed = []
        for number, batch in enumerate(loader):
            if number in {5, 20}:
                fault(restarted_stack)
            disturbed += collect([batch])
        after = collect(loader)
    assert disturbed == undisturbed
    for delivered in (disturbed, after):
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))


def test_without_a_coordinator_the_wait_is_bounded_and_explained(
    restarted_stack: Stack, images: Path
) -> None:
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=1.0)
    with SuperSampler(dataset, batch_size=4, coordinator=restarted_stack.address) as sampler:
        iterator = iter(sampler)
        ref = next(iterator)
        restarted_stack.kill_coordinator()
        restarted_stack.valkey.client().flushall()
        with pytest.raises(
            ReadTimeoutError, match=rf"{ref.batch_id.hex()}(.|\n)*4 samples(.|\n)*coordinator"
        ):
            dataset[ref]
        restarted_stack.start_coordinator()
