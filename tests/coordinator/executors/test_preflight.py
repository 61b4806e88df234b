"""What functions elsewhere cannot do is told before a job opens."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.datasets import Dataset, Listing
from superdl.coordinator.catalog.s3_client import bucket_region
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.coordinator.executors import (
    ExecutorError,
    FunctionRaisedError,
    FunctionTimedOutError,
    ThrottledError,
)
from superdl.coordinator.executors import preflight as preflight_module
from superdl.coordinator.executors.preflight import Preflight
from superdl.super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from superdl.super_wire.request import Outcome
from tests.coordinator.running import ENOUGH_S, RECIPE, ScriptedExecutor, record_of

KEYS = [f"cat/{number}.jpg" for number in range(9)]


def dataset_of(keys=KEYS, bucket="s3://photos"):
    packed = PackedStrings.pack(key.encode() for key in keys)
    versions = PackedStrings.pack(b"1" for _ in keys)
    labels = np.zeros(len(keys), dtype=np.int64)
    catalog = Catalog.build(bucket, packed, versions, labels, ("cat",))
    ids = np.frombuffer(catalog.sample_ids(RECIPE.digest), dtype=np.uint8).reshape(-1, ID_BYTES)
    return Dataset(b"d" * 16, RECIPE, Listing("s3://photos/train", "", catalog=catalog), ids)


class Remote(ScriptedExecutor):
    name = "lambda"
    remote = True
    region = "us-east-1"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(preflight_module, "_PAUSE_S", 0.0)


@pytest.fixture
def executor(valkey):
    return Remote(valkey.unix_url)


def try_out(executor, dataset, *, times=1, region=""):
    """Takes the trial so often, one after the other; whether it is passed."""

    async def work():
        preflight = Preflight(executor, "redis://cache", region_of=lambda _bucket: region)
        for _ in range(times):
            await preflight.check(dataset, ENOUGH_S)
        return preflight.passed(dataset)

    return asyncio.run(work())


def explain(outcome, message):
    """An answer that says so of every sample."""

    def edit(result):
        count = len(result.outcomes)
        messages = {str(place): message for place in range(count)}
        return dataclasses.replace(result, outcomes=(outcome,) * count, messages=messages)

    return edit


@pytest.mark.parametrize(("keys", "asked"), [(KEYS, [KEYS[0], KEYS[4], KEYS[8]]), (KEYS[:1], KEYS[:1])])
def test_a_few_samples_from_all_over_are_asked_for_once(executor, keys, asked):
    assert try_out(executor, dataset_of(keys), times=3)
    assert executor.keys_asked == asked
    assert [request.cache for request in executor.requests] == ["redis://cache"]


def test_functions_of_this_machine_are_not_tried(valkey):
    executor = ScriptedExecutor(valkey.unix_url)
    assert try_out(executor, dataset_of())
    assert not executor.requests


@pytest.mark.parametrize("source", ["file:///data", "/data", "data"])
def test_a_directory_of_this_machine_is_for_its_own_functions(executor, valkey, source):
    with pytest.raises(ConfigError, match=r"is a directory of the coordinator's machine.*s3://bucket/prefix"):
        Preflight(executor, "").check_source(source)
    Preflight(executor, "").check_source("s3://bucket/train")
    Preflight(ScriptedExecutor(valkey.unix_url), "").check_source(source)


def test_what_is_refused_for_all_is_told_and_tried_again(executor):
    executor.edit = explain(Outcome.REFUSED, "403: grant it")

    async def work():
        preflight, dataset = Preflight(executor, "", region_of=lambda _bucket: ""), dataset_of()
        for _ in range(2):
            with pytest.raises(
                SourceForbiddenError, match="functions may not read s3://photos/train: 403: grant it"
            ):
                await preflight.check(dataset, ENOUGH_S)
        assert not preflight.passed(dataset)
        executor.edit = lambda result: result
        await preflight.check(dataset, ENOUGH_S)
        assert preflight.passed(dataset)

    asyncio.run(work())
    assert len(executor.requests) == 2 * 2 + 1


def test_a_refusal_that_passes_stops_nobody(executor):
    refuse = explain(Outcome.REFUSED, "403: not yet")
    executor.edit = lambda result: refuse(result) if len(executor.requests) == 1 else result
    assert try_out(executor, dataset_of())
    assert len(executor.requests) == 2


def test_what_functions_have_made_is_not_tried(executor, valkey):
    dataset = dataset_of()

    async def work():
        cache = Cache(valkey.unix_url, owner="test")
        try:
            preflight = Preflight(executor, cache.address, audit=cache.audit, region_of=lambda _bucket: "")
            executor.edit = explain(Outcome.REFUSED, "403: grant it")
            with pytest.raises(SourceForbiddenError):
                await preflight.check(dataset, ENOUGH_S)
            with valkey.client() as client:
                sample_id = bytes(dataset.ids(np.array([8]), 0))
                client.set(cache_key(sample_id), record_of(KEYS[8], sample_id))
            await preflight.check(dataset, ENOUGH_S)
            return preflight.passed(dataset)
        finally:
            await cache.close()

    assert asyncio.run(work())
    assert len(executor.requests) == 2


def test_a_cache_that_cannot_be_asked_is_no_reason_to_try_nothing(executor, valkey):
    async def work():
        cache = Cache(f"unix://{valkey.directory}/none.sock", owner="test")
        try:
            preflight = Preflight(executor, "", audit=cache.audit, region_of=lambda _bucket: "")
            await preflight.check(dataset_of(), ENOUGH_S)
        finally:
            await cache.close()

    asyncio.run(work())
    assert len(executor.requests) == 1


def test_one_that_is_refused_is_no_reason(executor):
    executor.outcomes = {KEYS[0]: Outcome.REFUSED, KEYS[4]: Outcome.TOMBSTONE, KEYS[8]: Outcome.MISSING}
    assert try_out(executor, dataset_of())


def test_a_cache_that_refuses_records_is_told(executor):
    executor.edit = explain(
        Outcome.CACHE_ERROR, "the cache did not take it: NOPERM this user has no permissions"
    )
    with pytest.raises(
        CacheError, match="may not write to the cache at redis://cache .*NOPERM.*docs/cache.md"
    ):
        try_out(executor, dataset_of())


def test_functions_that_may_not_append_their_outcomes_are_told(executor):
    async def fail(_request):
        raise FunctionRaisedError("raised CacheRefusedError: the cache refuses the outcome: NOPERM xadd")

    executor.before = fail
    with pytest.raises(CacheError, match=r"may not write to the cache .*xadd.*docs/cache.md"):
        try_out(executor, dataset_of())
    assert len(executor.requests) == 2


@pytest.mark.parametrize(
    "outcome", [Outcome.SOURCE_ERROR, Outcome.MISSING, Outcome.CACHE_ERROR, Outcome.EXPIRED]
)
def test_what_may_pass_is_logged_and_holds_nobody_up(executor, caplog, outcome):
    executor.edit = explain(outcome, "the weather")
    assert try_out(executor, dataset_of())
    assert "could produce none of 3 samples that were tried: the weather" in caplog.text
    assert ("the clocks of the function and of this machine differ" in caplog.text) is (
        outcome == Outcome.EXPIRED
    )


@pytest.mark.parametrize("error", [ThrottledError("busy"), ExecutorError("not ready")])
def test_functions_with_other_worries_hold_nobody_up(executor, caplog, error):
    async def fail(_request):
        raise error

    executor.before = fail
    assert try_out(executor, dataset_of())
    assert str(error) in caplog.text


@pytest.mark.parametrize(("failures", "refused"), [(1, False), (2, True)])
def test_functions_that_raise_are_asked_again_once(executor, failures, refused):
    async def fail(_request):
        if len(executor.requests) <= failures:
            raise FunctionRaisedError("RecipeError: no module their_steps")

    executor.before = fail
    if refused:
        with pytest.raises(
            ConfigError, match="functions refuse what s3://photos/train asks of them.*their_steps"
        ):
            try_out(executor, dataset_of())
    else:
        assert try_out(executor, dataset_of())


def test_ranks_share_a_trial_and_wait_for_it_as_long_as_they_like(executor):
    async def work():
        go_on = asyncio.Event()
        executor.before = lambda _request: go_on.wait()
        preflight, dataset = Preflight(executor, "", region_of=lambda _bucket: ""), dataset_of()
        await preflight.check(dataset, 0.0)
        assert not preflight.passed(dataset)
        ranks = [asyncio.create_task(preflight.check(dataset, ENOUGH_S)) for _ in range(4)]
        go_on.set()
        await asyncio.gather(*ranks)
        assert preflight.passed(dataset)

    asyncio.run(work())
    assert len(executor.requests) == 1


def test_the_end_waits_for_no_trial(executor):
    async def work():
        executor.before = lambda _request: asyncio.Event().wait()
        preflight = Preflight(executor, "", region_of=lambda _bucket: "")
        await preflight.check(dataset_of(), 0.0)
        async with asyncio.timeout(ENOUGH_S):
            await preflight.close()

    asyncio.run(work())


def test_the_end_waits_for_no_answer_about_a_region(executor):
    asked, go_on, answered = threading.Event(), threading.Event(), threading.Event()

    def region_of(_bucket):
        asked.set()
        go_on.wait(ENOUGH_S)
        answered.set()
        return ""

    async def work():
        preflight = Preflight(executor, "", region_of=region_of)
        await preflight.check(dataset_of(), 0.0)
        assert await asyncio.to_thread(asked.wait, ENOUGH_S)
        await preflight.close()

    asyncio.run(work())  # which waits for threads of its own
    assert not answered.is_set()
    go_on.set()
    assert answered.wait(ENOUGH_S)
    assert not executor.requests


def test_a_region_that_is_not_told_in_time_holds_nobody_up(executor, monkeypatch, caplog):
    monkeypatch.setattr(preflight_module, "_REGION_S", 0.05)
    answer = threading.Event()

    async def work():
        preflight, dataset = (
            Preflight(executor, "", region_of=lambda _bucket: str(answer.wait())),
            dataset_of(),
        )
        await preflight.check(dataset, ENOUGH_S)
        await preflight.close()
        return preflight.passed(dataset)

    try:
        assert asyncio.run(work())
    finally:
        answer.set()
    assert "its region is not known: no answer within" in caplog.text


def test_functions_that_do_not_answer_may_not_reach_the_store(executor, caplog):
    async def fail(_request):
        raise FunctionTimedOutError("no answer within 30 s")

    executor.before = fail
    assert try_out(executor, dataset_of())
    assert "no answer within 30 s; a function in a VPC reaches S3 by a gateway endpoint" in caplog.text


@pytest.mark.parametrize(("region", "told"), [("eu-west-3", True), ("us-east-1", False), ("", False)])
def test_a_bucket_in_another_region_is_told(executor, caplog, region, told):
    assert try_out(executor, dataset_of(), region=region)
    words = f"s3://photos/train: it lies in the region {region} and the functions run in us-east-1"
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any(words in record.getMessage() for record in warned) is told


def test_a_region_that_nobody_tells_holds_nobody_up(executor, caplog):
    def fail(_bucket):
        raise SourceError("no answer")

    async def work():
        preflight, dataset = Preflight(executor, "", region_of=fail), dataset_of()
        await preflight.check(dataset, ENOUGH_S)
        return preflight.passed(dataset)

    assert asyncio.run(work())
    assert "no answer" in caplog.text


def test_the_store_tells_a_buckets_region(monkeypatch):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SUPER_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("s3", endpoint_url=f"http://{host}:{port}")
    try:
        client.create_bucket(
            Bucket="far-tried", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"}
        )
        client.create_bucket(Bucket="near-tried")
        assert (bucket_region("far-tried"), bucket_region("near-tried")) == ("eu-west-3", "us-east-1")
        assert bucket_region("none") == ""
    finally:
        client.close()
        server.stop()
