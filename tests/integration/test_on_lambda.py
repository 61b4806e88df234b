"""Whole epochs with functions on Lambda: every sample comes once, whatever happens to the functions."""

import os
import re
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import BadSampleError
from tests.fixtures.images import SIDE
from tests.fixtures.lambda_answers import Answer
from tests.fixtures.stack import Stack
from tests.integration.delivery import train

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
SOURCE = "s3://photos/train"
SMALL_STEPS = ("--request-samples", "4", "--lookahead-batches", "4")
CONCURRENCY = 2  # as many processes as this machine likes

# The real function, but for one invocation that finds the file, which hangs.
HANGING = """
import os, time
from superdl.lambda_prefetch.handler import handler as real
def handler(event, context):
    try:
        os.remove(os.environ["HANG"])
    except FileNotFoundError:
        return real(event, context)
    time.sleep(600)
"""

# The real function, as another version of SUPER.
OTHER_VERSION = """
import superdl.lambda_prefetch.handler as real
real.installed_version = lambda: "9.9.9"
handler = real.handler
"""


@pytest.fixture
def stack(lambda_service, photos, valkey):
    """A coordinator whose functions run on Lambda."""
    lambda_service.concurrency = CONCURRENCY
    with Stack(
        arguments=("--executor", "lambda", "--lambda-warm", "2", *SMALL_STEPS), cache=valkey.url
    ) as running:
        yield running


def prefetches(service):
    """How many requests functions were invoked with."""
    return sum(b"super_request" in invocation.event for invocation in service.invocations)


def test_an_epoch_on_lambda_that_throttles_and_fails(stack, images, lambda_service):
    broken = Answer.error(500, "ServiceException", "an internal error")
    stats = train(
        stack,
        images,
        SOURCE,
        disturb={
            2: lambda: lambda_service.throttle_next(2),
            4: lambda: lambda_service.answer_next(broken),
            6: lambda_service.hang_up_next,
            8: lambda_service.crash_next,
        },
    )
    assert lambda_service.most_at_once <= CONCURRENCY
    assert lambda_service.refused >= 4
    log = stack.log.read_text()
    assert "is throttled (ConcurrentInvocationLimitExceeded): lower lambda_concurrency" in log
    assert "crashed (Runtime.ExitError" in log
    assert stats.retries > 0
    assert stats.samples_produced >= 140  # what the crashed one had pushed may be read without its answer
    assert 150 / 4 <= stats.invocations <= prefetches(lambda_service)  # some try a source, or go ahead
    assert stats.gb_s > 0
    assert stats.concurrency < stats.capacity == 100  # throttling lowered it


@pytest.mark.slow
def test_functions_that_hang_are_ended_by_lambda_and_their_samples_come(
    stack, images, lambda_service, tmp_path
):
    (tmp_path / "hanging.py").write_text(HANGING)
    hang = tmp_path / "hang"
    environment = {"HANG": str(hang), "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    lambda_service.deploy(handler="hanging.handler", timeout_s=4.0, environment=environment)
    train(stack, images, SOURCE, disturb={3: hang.touch})
    assert not hang.exists()
    assert "exceeded its own time limit" in stack.log.read_text()


@pytest.mark.slow
def test_a_function_of_another_version_is_not_read_from(stack, lambda_service, tmp_path):
    (tmp_path / "other.py").write_text(OTHER_VERSION)
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    dataset = SuperDataset(SOURCE, RECIPE)
    with SuperSampler(dataset, batch_size=4, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        batches = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
        next(batches)
        lambda_service.deploy(handler="other.handler", environment=environment)
        with pytest.raises(BadSampleError, match="has SUPER 9.9.9, but the coordinator has SUPER"):
            list(batches)


@pytest.mark.slow
def test_each_side_needs_no_more_rights_than_the_page_says(
    lambda_service, photos, valkey, images, monkeypatch
):
    page = (ROOT / "docs" / "reference.md").read_text()
    with valkey.client() as client:
        for line in re.findall(r"^ACL SETUSER super-.*$", page, re.MULTILINE):
            client.execute_command(*line.split())
        client.execute_command(
            "ACL", "SETUSER", "default", "resetkeys", "-@all", "+ping", "+hello", "+client"
        )
    lambda_service.concurrency = CONCURRENCY
    user = {"SUPER_CACHE_PASSWORD": "SECRET"}
    lambda_service.deploy(environment={**user, "SUPER_CACHE_USERNAME": "super-function"})
    environment = {**user, "SUPER_CACHE_USERNAME": "super-coordinator"}
    arguments = ("--executor", "lambda", *SMALL_STEPS)
    with Stack(arguments=arguments, cache=valkey.url, environment=environment) as running:
        monkeypatch.setenv("SUPER_CACHE_USERNAME", "super-reader")
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", "SECRET")
        train(running, images, SOURCE)
        assert "NOPERM" not in running.log.read_text()
