"""Whole epochs whose functions answer through the cache: with crashes, second deliveries, lost streams."""

from __future__ import annotations

import json
import re
from pathlib import Path

import boto3
import pytest

from tests.fixtures.stack import Stack
from tests.integration.delivery import train

SOURCE = "s3://photos/train"
SMALL_STEPS = ("--request-samples", "4", "--lookahead-batches", "4", "--request-timeout-s", "0.5")
CONCURRENCY = 2


@pytest.fixture
def stack(lambda_service, photos, valkey):
    """A coordinator whose functions run on Lambda, by events."""
    lambda_service.concurrency = CONCURRENCY  # as many processes as this machine likes
    arguments = ("--executor", "lambda", "--lambda-invocation", "Event", "--lambda-warm", "2", *SMALL_STEPS)
    with Stack(arguments=arguments, cache=valkey.url) as running:
        yield running


def outcome_streams(valkey):
    with valkey.client() as client:
        return list(client.keys("super:o1:*"))


@pytest.mark.slow
def test_an_epoch_through_events(stack, images, lambda_service, valkey):
    train(stack, images, SOURCE)
    kinds = [invocation.kind for invocation in lambda_service.invocations]
    assert kinds.count("RequestResponse") == 3  # two that were warmed, one that tried the stream
    assert len(kinds) >= 150 / 4
    (stream,) = outcome_streams(valkey)
    with valkey.client() as client:
        assert client.ttl(stream) > 0
        assert client.xlen(stream) < 10


@pytest.mark.slow
def test_functions_that_crash_say_nothing_and_their_samples_come(stack, images, lambda_service):
    train(stack, images, SOURCE, disturb={2: lambda: lambda_service.crash_next(2)})
    assert len(lambda_service.dropped_events) == 2
    assert "no outcome of the function" in stack.log.read_text()


@pytest.mark.slow
def test_events_that_are_delivered_twice_change_nothing(stack, images, lambda_service):
    client = boto3.session.Session().client("lambda", endpoint_url=lambda_service.url)

    def again():
        for invocation in list(lambda_service.invocations):
            if b"super_request" in invocation.event:
                client.invoke(FunctionName="super-prefetch", InvocationType="Event", Payload=invocation.event)

    train(stack, images, SOURCE, disturb={3: again, 12: again})
    client.close()
    answered = [
        json.loads(one.event)["request_id"] for one in lambda_service.invocations if one.kind == "Event"
    ]
    assert len(answered) > len(set(answered))


@pytest.mark.slow
def test_a_cache_that_is_emptied_in_between_loses_outcomes_and_no_sample(stack, images, valkey):
    train(stack, images, SOURCE, disturb={5: valkey.restart_empty, 20: valkey.restart_empty})


@pytest.mark.slow
def test_each_side_needs_no_more_rights_than_the_page_says(
    lambda_service, photos, valkey, images, monkeypatch
):
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    with valkey.client() as client:
        for line in re.findall(r"^ACL SETUSER super-.*$", page, re.MULTILINE):
            client.execute_command(*line.split())
        client.execute_command(
            "ACL", "SETUSER", "default", "resetkeys", "-@all", "+ping", "+hello", "+client"
        )
    lambda_service.concurrency = CONCURRENCY
    user = {"SUPER_CACHE_PASSWORD": "SECRET"}
    lambda_service.deploy(environment={**user, "SUPER_CACHE_USERNAME": "super-function"})
    arguments = ("--executor", "lambda", "--lambda-invocation", "Event", *SMALL_STEPS)
    environment = {**user, "SUPER_CACHE_USERNAME": "super-coordinator"}
    with Stack(arguments=arguments, cache=valkey.url, environment=environment) as running:
        monkeypatch.setenv("SUPER_CACHE_USERNAME", "super-reader")
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", "SECRET")
        train(running, images, SOURCE)
        assert "NOPERM" not in running.log.read_text()


SLOW = """
import time

from superdl.lambda_prefetch.handler import handler as real


def handler(event, context):
    if "super_request" in event:
        time.sleep(0.5)
    return real(event, context)
"""


@pytest.mark.slow
def test_more_events_than_functions_are_asked_for_more_slowly_and_no_sample_is_blamed(
    lambda_service, photos, valkey, images, tmp_path
):
    lambda_service.concurrency = CONCURRENCY
    lambda_service.event_max_age_s, lambda_service.event_pause_s = 4.0, 1.0
    (tmp_path / "slow.py").write_text(SLOW)
    paths = f"{Path(__file__).parents[2]}:{tmp_path}"
    lambda_service.deploy(handler="slow.handler", environment={"PYTHONPATH": paths})
    steps = ("--request-samples", "8", "--lookahead-batches", "32", "--request-timeout-s", "4")
    arguments = ("--executor", "lambda", "--lambda-invocation", "Event", "--lambda-warm", "2", *steps)
    with Stack(arguments=arguments, cache=valkey.url) as running:
        stats = train(running, images, SOURCE, batch_size=8)
        assert lambda_service.dropped_events  # else this says nothing
        assert stats.samples_failed == 0
        assert stats.concurrency < 8
        assert "could not be produced: " not in running.log.read_text()
