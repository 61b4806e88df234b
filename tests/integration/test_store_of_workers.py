"""A directory for the store, and workers that call in: those that see it keep what they decode."""

import shutil

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats
from tests.integration.test_store_beside_lambda import COUNT, stored

SOURCE = "s3://photos/train"
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def expected(images, object_store):
    shutil.copytree(images, object_store.directory / "photos" / "train")
    return expected_pixels(images, resize=SIDE, crop=SIDE)


def train(stack):
    """What an epoch delivers whose reader does not see the store, and what was counted for it."""
    dataset = SuperDataset(SOURCE, RECIPE, read_timeout=60)
    dataset.reads_straight = False
    with SuperSampler(dataset, batch_size=8, seed=1, coordinator=stack.address) as sampler:
        return collect(DataLoader(dataset, sampler=sampler, batch_size=None)), settled_stats(sampler)


def test_workers_that_see_the_directory_keep_what_they_decode_and_restore_it(expected, tmp_path):
    store = str(tmp_path / "store")
    stack = Stack(arguments=("--executor", "workers", "--store", store, "--request-samples", "8"))
    with workers(stack.address, 1, environment={"SUPER_STORE": store}, slots=2):
        stack.start()
        blind = WorkerProcess(stack.address, "--store", str(tmp_path / "elsewhere"), slots=1)
        try:
            until(lambda: "does not see the store" in stack.log.read_text())
            delivered, stats = train(stack)
            assert_exactly_once(delivered, expected)
            assert stats.samples_produced == COUNT
            kept = stored(tmp_path / "store")
            assert 0 < kept <= COUNT
            with stack.valkey.client() as client:
                client.flushall()
            stack.close_coordinator()
            stack.start_coordinator()
            again, stats = train(stack)
            assert again == delivered
            assert kept // 2 < stats.samples_restored <= kept
            assert not (tmp_path / "elsewhere").exists()
        finally:
            blind.close()
            stack.close()


def test_a_worker_for_the_store_alone_saves_for_functions_on_lambda(
    expected, tmp_path, lambda_service, valkey
):
    """One that decodes is refused there, as is one that sees another store."""
    lambda_service.concurrency, store = 2, str(tmp_path / "store")
    arguments = ("--executor", "lambda", "--lambda-warm", "2", "--request-samples", "4", "--store", store)
    with Stack(arguments=arguments, cache=valkey.url) as stack:
        for options, words in (
            ((), "with --store-only"),
            (("--store-only", "--store", str(tmp_path)), f"does not see the store {store}"),
        ):
            stranger = WorkerProcess(stack.address, *options)
            assert stranger.ended() == 2
            assert words in stranger.log.read_text()
            stranger.close()
        with workers(stack.address, 1, environment={"SUPER_STORE": store}) as (decoder,):
            assert decoder.ended() == 2
        saver = WorkerProcess(stack.address, "--store-only", "--store", store, slots=2)
        try:
            until(lambda: "connected with 2 slots" in stack.log.read_text())
            delivered, stats = train(stack)
            assert_exactly_once(delivered, expected)
            assert stats.samples_produced == COUNT
            until(lambda: stored(tmp_path / "store") == COUNT)
            assert [(one.name, one.slots) for one in stats.workers if one.name != "local"] != []
        finally:
            saver.close()
