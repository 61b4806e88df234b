"""All that can fail and heal, one after another in a single epoch."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.cut_network import Cut, CutNetwork
from tests.fixtures.faulty_function import FUNCTION, Script
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
ARGUMENTS = (
    "--workers",
    "2",
    "--request-samples",
    "4",
    "--lookahead-batches",
    "4",
    "--request-timeout-s",
    "0.5",
)
CUT_S = 2.0
AT_CALLS = {4: "raise", 12: "answer twice", 20: "hang", 28: "die", 36: "answer for another"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_goes_on(images: Path, tmp_path: Path, workers: int) -> None:
    script = Script(tmp_path)
    for number, does in AT_CALLS.items():
        script.at_call(number, does)
    arguments = (*ARGUMENTS, "--function", FUNCTION)
    stack = Stack(tcp=True, arguments=arguments, environment=script.environment)
    stack.start()
    network = CutNetwork(stack.address)
    try:
        delivered, undisturbed = train(stack, network, images, workers)
    finally:
        network.close()
        stack.close()
    assert set(script.done()) == set(AT_CALLS), "or this test shows less than it says"
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert delivered == undisturbed


def train(
    stack: Stack, network: CutNetwork, images: Path, workers: int
) -> tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]]:
    """One epoch with all faults, and the same without."""
    at_batches: dict[int, Callable[[], object]] = {
        10: stack.valkey.client().flushall,
        25: partial(cut, network, Cut.SILENT),
        45: partial(restart_coordinator, stack),
        65: stack.valkey.restart_empty,
        85: partial(kill_a_function, stack),
        100: partial(restart_both, stack),
        120: partial(cut, network, Cut.REFUSING),
    }
    dataset = SuperDataset(images.as_uri(), RECIPE)
    delivered = []
    with SuperSampler(dataset, batch_size=1, seed=1, coordinator=network.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)
        for number, batch in enumerate(loader):
            if number in at_batches:
                at_batches[number]()
            delivered += collect([batch])
        sampler.set_epoch(0)
        return delivered, collect(loader)


def cut(network: CutNetwork, how: Cut) -> None:
    network.cut(how)
    threading.Timer(CUT_S, network.mend).start()


def restart_coordinator(stack: Stack) -> None:
    stack.kill_coordinator()
    stack.start_coordinator()


def kill_a_function(stack: Stack) -> None:
    stack.functions()[0].kill()


def restart_both(stack: Stack) -> None:
    """Coordinator and cache at once: nothing is left but the plan."""
    stack.kill_coordinator()
    stack.valkey.restart_empty()
    stack.start_coordinator()
