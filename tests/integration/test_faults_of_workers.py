"""A worker process of the DataLoader is killed in mid-epoch: an error says so, and a new loader goes on."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from sampler import SuperSampler
from super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from pathlib import Path

    from super_dataset import BatchInfo
    from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
LAST = 30
WAIT_S = 30.0


class DieAt:
    """A transform that kills its process in the batch after the last, once that has arrived: so nothing of
    this worker is on its way, which torch would tell by another error.
    """

    def __init__(self, arrived: Path) -> None:
        self.arrived = arrived

    def __call__(self, images: Any, labels: Any, info: BatchInfo) -> Any:
        if info.epoch == 0 and info.position == LAST + 1:
            deadline_s = time.monotonic() + WAIT_S
            while not self.arrived.exists() and time.monotonic() < deadline_s:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return images, labels


def test_it_is_told_and_the_next_loader_goes_on(stack: Stack, images: Path, tmp_path: Path) -> None:
    """Torch tells at once, or within the five seconds after which it looks."""
    dataset = SuperDataset(images.as_uri(), RECIPE, transform=DieAt(tmp_path / "arrived"))
    whole = SuperDataset(images.as_uri(), RECIPE)
    before: list[tuple[bytes, int]] = []
    with SuperSampler(dataset, batch_size=2, seed=1, coordinator=stack.address) as sampler:
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\)") as caught:
            train(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2), before, tmp_path)
        said = f"{caught.value} {caught.value.__cause__}"
        assert re.search("is killed by signal: Killed", said), said
        epoch_1 = collect(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
    with SuperSampler(whole, batch_size=2, seed=1, coordinator=stack.address) as sampler:
        epoch_0 = collect(DataLoader(whole, sampler=sampler, batch_size=None, num_workers=2))
    for delivered in (epoch_0, epoch_1):
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert before == epoch_0[: 2 * (LAST + 1)]


def train(loader: DataLoader[Any], delivered: list[tuple[bytes, int]], directory: Path) -> None:
    for number, batch in enumerate(loader):
        delivered += collect([batch])
        if number == LAST:
            (directory / "arrived").touch()
