"""What dies in mid-epoch: the epoch ends all the same, every sample once, in plan order, with its bytes."""

from __future__ import annotations

import shutil

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import ReadTimeoutError
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def restart_cache(stack):
    stack.valkey.restart_empty()


def flush_cache(stack):
    stack.valkey.client().flushall()


def restart_coordinator(stack):
    stack.kill_coordinator()
    stack.start_coordinator()


def kill_a_function(stack):
    stack.functions()[0].kill()


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("fault", [restart_cache, flush_cache, restart_coordinator, kill_a_function])
def test_the_epoch_goes_on(restarted_stack, images, fault, workers):
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(
        dataset, batch_size=4, shuffle=True, seed=1, coordinator=restarted_stack.address
    ) as sampler:
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


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_restarted_coordinator_goes_on_with_the_catalog_in_its_state(images, tmp_path, workers):
    source = tmp_path / "source"
    shutil.copytree(images, source)
    expected = expected_pixels(source, resize=SIDE, crop=SIDE)
    with Stack(arguments=("--state", str(tmp_path / "state"), "--catalog-max-age-s", "0.001")) as stack:
        dataset = SuperDataset(source.as_uri(), RECIPE)
        with SuperSampler(dataset, batch_size=4, shuffle=True, seed=1, coordinator=stack.address) as sampler:
            loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
            delivered = []
            for number, batch in enumerate(loader):
                if number == 5:
                    first = next(source.glob("*/*"))
                    shutil.copy(first, first.with_stem("new"))
                    restart_coordinator(stack)
                    flush_cache(stack)
                delivered += collect([batch])
        assert_exactly_once(delivered, expected)
        with SuperSampler(dataset, batch_size=1, shuffle=True, coordinator=stack.address) as sampler:
            assert len(sampler) == len(expected) + 1


def test_without_a_coordinator_the_wait_is_bounded_and_explained(restarted_stack, images):
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=1.0)
    with SuperSampler(dataset, batch_size=4, shuffle=True, coordinator=restarted_stack.address) as sampler:
        iterator = iter(sampler)
        ref = next(iterator)
        restarted_stack.kill_coordinator()
        restarted_stack.valkey.client().flushall()
        with pytest.raises(
            ReadTimeoutError, match=rf"{ref.batch_id.hex()}(.|\n)*4 samples(.|\n)*coordinator"
        ):
            dataset[ref]
        restarted_stack.start_coordinator()
