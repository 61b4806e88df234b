"""Several executors at once: each takes the overflow and failures of the one before, and every sample comes
once with the same bytes, whichever executor made it.
"""

import contextlib
import io
import json

import pytest

from superdl.main import main
from tests.fixtures.stack import Stack
from tests.integration.delivery import train

SOURCE = "s3://photos/train"
SAMPLES = 150


@pytest.fixture
def made(lambda_service, photos, valkey):
    """Start a coordinator with the given executors."""
    lambda_service.concurrency = 2
    stacks = []

    def make(executors, **settings):
        arguments = ["--executor", executors, "--lambda-warm", "1", "--request-samples", "4"]
        for name, value in ({"lookahead_batches": "16"} | settings).items():
            arguments += [f"--{name.replace('_', '-')}", value]
        stack = Stack(arguments=tuple(arguments), cache=valkey.url)
        stacks.append(stack)
        stack.start()
        return stack

    yield make
    for stack in stacks:
        stack.close()


def fared_in_training(stack, images, source=SOURCE, **disturbed):
    """Train, asserting that every sample comes once. Return the executors' final statistics by name."""
    train(stack, images, source, **disturbed)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["stats", "--json", "--coordinator", stack.address]) == 0
    return {executor["name"]: executor for executor in json.loads(told.getvalue())["executors"]}


@pytest.mark.slow
def test_the_overflow_goes_to_the_next_and_so_does_what_is_throttled(made, images, lambda_service):
    stack = made("local,lambda")
    fared = fared_in_training(stack, images, disturb={4: lambda: lambda_service.throttle_next(1)})
    assert list(fared) == ["local", "lambda"]
    assert fared["local"]["samples"] > 0
    assert fared["lambda"]["samples"] > 0
    assert fared["local"]["samples"] + fared["lambda"]["samples"] >= SAMPLES
    each = {name: executor["usd"] / executor["samples"] for name, executor in fared.items()}
    assert each["local"] < each["lambda"]
    assert "is throttled" in stack.log.read_text()


@pytest.mark.parametrize(
    "happens", ["throttled", *(pytest.param(name, marks=pytest.mark.slow) for name in ("crashing", "gone"))]
)
def test_the_next_does_the_work_of_one_that_fails_in_mid_epoch(made, images, lambda_service, happens):
    stack = made("lambda,local", lookahead_batches="4")
    breaks = {
        "throttled": lambda: lambda_service.throttle_next(10_000),
        "crashing": lambda: lambda_service.crash_next(10_000),
        "gone": lambda: lambda_service.hang_up_next(10_000),
    }
    fared = fared_in_training(stack, images, disturb={4: breaks[happens]})
    assert fared["lambda"]["samples"] < SAMPLES / 2
    assert fared["local"]["samples"] > SAMPLES / 2
    assert fared["lambda"]["trouble"]
    assert fared["local"]["trouble"] == ""


def test_one_that_does_not_start_is_left_out_and_tried_again(made, images, lambda_service, caplog):
    stack = made("lambda,local", lambda_function="nobody")
    with caplog.at_level("WARNING"):
        fared = fared_in_training(stack, images)
    assert fared["lambda"]["capacity"] == fared["lambda"]["requests"] == 0
    assert "nobody" in fared["lambda"]["trouble"]
    assert "the executor lambda is unavailable" in caplog.text
    assert "skipping the executor lambda for now" in stack.log.read_text()


@pytest.mark.slow
def test_functions_that_cannot_read_the_source_are_not_asked_for_it(made, images, lambda_service, caplog):
    """Lambda functions see no local files; in the second epoch they may not read the bucket."""
    lambda_service.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})
    stack = made("lambda,local")
    assert fared_in_training(stack, images, images.as_uri())["lambda"]["requests"] == 0
    assert not any(b"super_request" in invocation.event for invocation in lambda_service.invocations)
    with caplog.at_level("WARNING"):
        fared = fared_in_training(stack, images)
    assert fared["lambda"]["requests"] == 0
    assert (
        "the executor lambda is skipped: functions are not allowed to read s3://photos/train" in caplog.text
    )
