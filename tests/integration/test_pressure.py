"""A cache that drops records of its own accord: the epoch goes on, and the coordinator says what it saw."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.mark.slow
def test_what_the_server_evicts_is_produced_again(images: Path) -> None:
    stack = Stack(maxmemory="24mb", arguments=("--workers", "2"))
    stack.start()
    try:
        with stack.valkey.client() as client:
            client.config_set("maxmemory-policy", "allkeys-random")
            dataset = SuperDataset(images.as_uri(), RECIPE)
            with SuperSampler(dataset, batch_size=10, seed=1, coordinator=stack.address) as sampler:
                loader = DataLoader(dataset, sampler=sampler, batch_size=None)
                collect(loader)
                delivered = []
                for number, batch in enumerate(loader):
                    if number == 3:
                        for _ in range(400):  # 40 MB of somebody else's
                            client.set(os.urandom(8), bytes(100_000))
                        assert client.info("stats")["evicted_keys"] > 0
                    delivered += collect([batch])
                assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
                while "of its own accord" not in stack.log.read_text():
                    sampler.job_stats()
                assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
    finally:
        stack.close()
