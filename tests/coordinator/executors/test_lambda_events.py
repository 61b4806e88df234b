"""Asynchronous invocations of a real function: outcomes come by a real cache, or their absence is told."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace

import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import OutcomeReader
from superdl.coordinator.executors.base import (
    ExecutorError,
    FunctionLostError,
    FunctionRaisedError,
    FunctionTimedOutError,
)
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.keys import cache_key
from tests.coordinator.executors.asking import TIMEOUT_S
from tests.coordinator.executors.lambda_running import executor_for, handler_of, request_for_objects
from tests.coordinator.running import follow

ALONE_S = 1.0


@contextlib.asynccontextmanager
async def using(service, valkey, **changes):
    """An executor, and its outcomes, which are followed as the coordinator has them followed."""
    cache = Cache(valkey.url, owner="")
    outcomes = OutcomeReader(cache.streams)
    await outcomes.begin()
    executor = executor_for(service, valkey.url, outcomes, **changes)
    following = asyncio.create_task(follow(outcomes))
    try:
        await executor.start()
        yield executor, outcomes
    finally:
        await cancel_and_wait(following)
        await executor.close()
        await cache.close()


async def reach_the_stream(executor, request):
    """The first invocation, which waits for its answer."""
    result = await executor.invoke(replace(request, request_id="first"), timeout_s=TIMEOUT_S)
    assert result.request_id == "first"


async def test_an_outcome_comes_through_the_cache_with_what_it_costs(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 6)

    async with using(lambda_service, valkey) as (executor, _outcomes):
        await reach_the_stream(executor, request)
        result = await executor.invoke(request, timeout_s=TIMEOUT_S)
    assert result.outcomes == ("cached",) * 6
    assert result.memory_mb == 1769
    assert result.duration_us <= result.billed_us < result.duration_us + 1000
    assert result.billed_us % 1000 == 0
    kinds = [invocation.kind for invocation in lambda_service.invocations]
    assert kinds == ["RequestResponse", "RequestResponse", "Event"]  # to warm, to see that outcomes come
    with valkey.client() as client:
        assert client.exists(*(cache_key(bytes.fromhex(one)) for one in request.ids)) == 6


@pytest.mark.slow
async def test_hundreds_wait_with_a_few_threads(lambda_service, object_store, valkey):
    lambda_service.concurrency = 2
    request = request_for_objects(object_store, valkey.url, 2)
    requests = [replace(request, request_id=f"r{number}") for number in range(300)]

    async with using(lambda_service, valkey, concurrency=1000) as (executor, outcomes):
        await reach_the_stream(executor, request)  # by a call that is not queued: events might throttle it
        calls = [asyncio.create_task(executor.invoke(one, timeout_s=TIMEOUT_S)) for one in requests]
        while len(outcomes._waiting) < 50:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0)
        threads = sum(thread.name.startswith("super-lambda") for thread in threading.enumerate())
        results = await asyncio.gather(*calls)
    assert threads <= 32
    assert [result.request_id for result in results] == [one.request_id for one in requests]
    assert lambda_service.most_at_once <= 2


@pytest.mark.slow
async def test_a_lost_entry_ends_in_time(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 1)
    with contextlib.suppress(ExecutorError):
        async with using(lambda_service, valkey) as (executor, outcomes):
            await reach_the_stream(executor, request)
            with valkey.client() as client:  # what the function appends to is no stream any more
                client.set(outcomes.stream, "")
            with pytest.raises(FunctionLostError, match="could not reach the cache"):
                await executor.invoke(request, timeout_s=ALONE_S)
    lambda_service.wait_until(lambda: lambda_service.dropped_events)
    assert b"refuses the outcome of request" in lambda_service.dropped_events[0].payload


async def test_a_function_that_may_not_append_its_outcome_says_so(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 1)
    with valkey.client() as client:
        rights = ("-@all", "+set", "+hello", "+auth", "+ping", "+client", "+cluster", "+select")
        client.execute_command("ACL", "SETUSER", "mute", "on", ">word", "~super:r1:*", *rights)
    user = {"SUPER_CACHE_USERNAME": "mute", "SUPER_CACHE_PASSWORD": "word"}
    lambda_service.deploy(environment=user)

    async with using(lambda_service, valkey) as (executor, outcomes):
        with pytest.raises(FunctionRaisedError, match="refuses the outcome of request r: NOPERM") as caught:
            await executor.invoke(request, timeout_s=TIMEOUT_S)
        assert caught.value.ran_s > 0
        lambda_service.deploy(environment={})
        result = await executor.invoke(request, timeout_s=TIMEOUT_S)
        await executor.invoke(request, timeout_s=TIMEOUT_S)
        unawaited = outcomes.unawaited
    assert result.outcomes == ("cached",)
    assert unawaited == 0
    kinds = [invocation.kind for invocation in lambda_service.invocations]
    assert kinds == ["RequestResponse"] * 3 + ["Event"]


@pytest.mark.slow
async def test_functions_that_answer_into_another_cache_are_told(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 1)
    lambda_service.deploy(handler=handler_of("answering_elsewhere"))

    async with using(lambda_service, valkey) as (executor, _outcomes):
        with pytest.raises(FunctionTimedOutError, match="answered, and no outcome of it is in the cache at"):
            await executor.invoke(request, timeout_s=3 * ALONE_S)
