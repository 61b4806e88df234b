"""A worker process of the DataLoader is killed in mid-epoch: an error says so, and a new loader goes on."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect
from tests.super_dataset.stored_batches import bound_dataset, ref_of, stored
from tests.super_dataset.stored_batches import images as random_images

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
LAST = 30
WAIT_S = 30.0


class DieAt:
    """A transform that kills its process in the batch after the last, once that has arrived: so nothing of
    this worker is on its way, which torch would tell by another error.
    """

    def __init__(self, arrived):
        self.arrived = arrived

    def __call__(self, images, labels, info):
        if info.epoch == 0 and info.position == LAST + 1:
            deadline_s = time.monotonic() + WAIT_S
            while not self.arrived.exists() and time.monotonic() < deadline_s:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return images, labels


def test_it_is_told_and_the_next_loader_goes_on(stack, images, tmp_path):
    """Torch tells at once, or within the five seconds after which it looks."""
    dataset = SuperDataset(images.as_uri(), RECIPE, transform=DieAt(tmp_path / "arrived"))
    whole = SuperDataset(images.as_uri(), RECIPE)
    before = []
    with SuperSampler(dataset, batch_size=2, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\)") as caught:
            train(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2), before, tmp_path)
        said = f"{caught.value} {caught.value.__cause__}"
        assert re.search("is killed by signal: Killed", said), said
        epoch_1 = collect(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
    with SuperSampler(whole, batch_size=2, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        epoch_0 = collect(DataLoader(whole, sampler=sampler, batch_size=None, num_workers=2))
    for delivered in (epoch_0, epoch_1):
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert before == epoch_0[: 2 * (LAST + 1)]


def train(loader, delivered, directory):
    for number, batch in enumerate(loader):
        delivered += collect([batch])
        if number == LAST:
            (directory / "arrived").touch()


@pytest.mark.slow
def test_whenever_it_is_killed_torch_s_own_error_comes(valkey):
    """Forty kills at random instants: while a worker reads, waits for a sample or hands a batch over."""
    there = [stored(valkey, random_images(16, 64, seed=n), position=n) for n in range(12)] * 60
    missing = ref_of(16, valkey.unix_url, position=99)
    for seed in range(40):
        chance = random.Random(seed)
        refs = [*there[: chance.choice([5, len(there), len(there)])], missing]
        dataset = bound_dataset(read_timeout=1.0)  # what waits on when the other worker is killed ends soon
        batches = iter(DataLoader(dataset, sampler=refs, batch_size=None, num_workers=2, prefetch_factor=8))
        killer = threading.Timer(chance.uniform(0, 0.2), chance.choice(batches._workers).kill)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*\) (exited unexp|is killed by)"):
            read_while(killer, batches)
        killer.join()


def read_while(killer, batches):
    killer.start()
    for _ in batches:
        pass
