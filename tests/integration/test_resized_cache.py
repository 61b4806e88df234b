"""The cache's memory shrinks and grows while a job trains: the budget follows, and nobody waits for long."""

from __future__ import annotations

import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.sampler.rpc.client import FIRST_CONTACT, Client
from superdl.sampler.rpc.connection import checked_address
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from tests.fixtures.images import expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

CROP = 224  # 150 samples take 25 MiB
SIZES_MB = (12, 64, 8, 48)
LONGEST_WAIT_S = 10.0
FOLLOWS_WITHIN_S = 5.0


@pytest.mark.slow
def test_a_cache_resized_four_times_in_mid_epoch_fails_no_job(images):
    with Stack(maxmemory="40mb", arguments=("--slots", "2")) as stack:
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=CROP, crop=CROP))
        asking = Client(checked_address(stack.address, "--coordinator"))
        with (
            asking.hold(),
            stack.valkey.client() as client,
            SuperSampler(dataset, batch_size=5, shuffle=True, seed=1, coordinator=stack.address) as sampler,
        ):

            def budget_bytes():
                told = asking.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
                return int(told.cache.budget_bytes)

            def resize(megabytes, *, waits):
                client.config_set("maxmemory", f"{megabytes}mb")
                deadline_s = time.monotonic() + FOLLOWS_WITHIN_S
                while waits and not 0.7 <= budget_bytes() / (megabytes * 2**20) <= 0.9:
                    assert time.monotonic() < deadline_s, f"the budget does not follow to {megabytes} MB"

            loader = DataLoader(dataset, sampler=sampler, batch_size=None)
            expected = expected_pixels(images, resize=CROP, crop=CROP)
            collect(loader)
            for waits in (True, False):
                delivered, longest_s, asked_s = [], 0.0, time.monotonic()
                for number, batch in enumerate(loader):
                    longest_s = max(longest_s, time.monotonic() - asked_s)
                    delivered += collect([batch])
                    if number % 6 == 5 and number // 6 < len(SIZES_MB):
                        resize(SIZES_MB[number // 6], waits=waits)
                    asked_s = time.monotonic()
                assert_exactly_once(delivered, expected)
                assert longest_s < LONGEST_WAIT_S
            assert client.info("stats")["evicted_keys"] == 0
