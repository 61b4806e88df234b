"""A directory beside functions on Lambda, which do not see it: local processes save and restore for them."""

import shutil
import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.store import DirectoryStore, check_record
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats

SOURCE = "s3://photos/train"
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
COUNT = 150
SAVED_WITHIN_S = 30.0


@pytest.fixture
def coordinator(lambda_service, object_store, valkey, images, tmp_path):
    """Starts a coordinator with an empty cache, whose functions run on Lambda; ended before the next one."""
    lambda_service.concurrency = 2
    shutil.copytree(images, object_store.directory / "photos" / "train")
    store = ("--store", str(tmp_path / "store"), "--slots", "2")
    started = []

    def start():
        for stack in started:
            assert stack.close_coordinator() == 0
        with valkey.client() as client:
            client.flushall()
        arguments = ("--executor", "lambda", "--lambda-warm", "2", "--request-samples", "4", *store)
        started.append(Stack(arguments=arguments, cache=valkey.url))
        started[-1].start()
        return started[-1]

    yield start
    for stack in started:
        stack.close()


def train(stack, *, straight, disturb=lambda _: None):
    """What an epoch delivers, whose readers see the store or not, and what was counted for it."""
    dataset = SuperDataset(SOURCE, RECIPE)
    dataset.reads_straight = straight
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        delivered = []
        for number, batch in enumerate(DataLoader(dataset, sampler=sampler, batch_size=None)):
            disturb(number)
            delivered += collect([batch])
        return delivered, settled_stats(sampler)


def stored(directory):
    """How many samples lie in packs, each of them whole."""
    store = DirectoryStore.open(directory, create=False, read_only=True)
    found = set()
    for pack, size in store.packs().items():
        for entry in store.read_index(pack, size).entries:
            record = store.read(pack, int(entry["offset"]), int(entry["bytes"]))
            check_record(record, bytes(entry["id"]))
            found.add(bytes(entry["id"]))
    return len(found)


def wait_until_stored(directory):
    deadline = time.monotonic() + SAVED_WITHIN_S
    while (count := stored(directory)) < COUNT:
        assert time.monotonic() < deadline, f"only {count} samples lie in packs"
        time.sleep(0.05)


@pytest.mark.slow
def test_after_one_epoch_all_lies_in_packs_and_nothing_is_decoded_again(
    coordinator, images, tmp_path, lambda_service
):
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    delivered, stats = train(stack := coordinator(), straight=False)
    assert_exactly_once(delivered, expected)
    assert stats.samples_produced == COUNT
    wait_until_stored(tmp_path / "store")
    assert "a bug" not in stack.log.read_text()
    for straight in (False, True):
        stack = coordinator()
        before = len(lambda_service.invocations)
        again, stats = train(stack, straight=straight)
        assert again == delivered
        assert (stats.samples_produced, stats.source_requests) == (0, 0)
        assert stats.samples_restored == (0 if straight else COUNT)
        asked = [one.event for one in lambda_service.invocations[before:] if b"super_request" in one.event]
        assert all(b"preflight-" in event for event in asked)


@pytest.mark.slow
def test_a_killed_saving_function_leaves_no_half_pack_and_its_samples_are_saved_later(
    coordinator, images, tmp_path
):
    stack = coordinator()

    def kill(number):
        if number in (3, 8, 13):
            for process in stack.functions():
                process.kill()

    delivered, _ = train(stack, straight=False, disturb=kill)
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    wait_until_stored(tmp_path / "store")
