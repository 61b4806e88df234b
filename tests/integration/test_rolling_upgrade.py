"""Workers of another decoder: they wait while a job needs the one in use, and then take its place."""

import shutil
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperSampler
from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from tests.coordinator.executors.functions import FINGERPRINT, MODULE
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
PYTHONPATH = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
KEY = "super:golden"


@pytest.mark.slow
def test_a_decoder_takes_the_place_of_another_once_no_job_needs_that(images, object_store):
    """The cache has records of a third decoder, of which no worker comes."""
    shutil.copytree(images, object_store.directory / "photos" / "train")
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
    stack, other = Stack(arguments=("--executor", "workers")), f"{MODULE}:of_another_decoder"
    stack.valkey.start()
    try:
        with stack.valkey.client() as client, workers(stack.address, 1, slots=2):
            client.set(KEY, "c" * 32)
            client.set("super:r1:" + "0" * 32, b"a record of that decoder")
            stack.start_coordinator(timeout_s=180)
            assert client.get(KEY) == decoder_fingerprint().encode()
            dataset = SuperDataset("s3://photos/train", RECIPE, read_timeout=120)
            with SuperSampler(dataset, batch_size=4, coordinator=stack.address) as sampler:
                batches = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
                read = [next(batches)]
                newer = WorkerProcess(stack.address, "--function", other, environment=PYTHONPATH)
                until(lambda: "and has to wait:" in stack.log.read_text(), 90)
                read += batches
                assert_exactly_once(collect(read), expected)
                assert client.get(KEY) == decoder_fingerprint().encode()
            until(lambda: client.get(KEY) == FINGERPRINT.encode(), 180)
            assert client.keys("super:r1:*") == []
            with SuperSampler(dataset, batch_size=4, coordinator=stack.address) as sampler:
                epoch = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
            assert_exactly_once(epoch, expected)
            newer.close()
    finally:
        stack.close()
