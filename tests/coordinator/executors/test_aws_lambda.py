"""The Lambda executor against the tests' Lambda service: it starts, prefetches, tells what is billed, ends."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from coordinator.executors import ExecutorError
from coordinator.executors.aws_lambda import LambdaExecutor
from super_wire.errors import ConfigError
from super_wire.keys import cache_key
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.fixtures.images import write_images

NAME = "super-prefetch"


def executor_for(service, cache="", **changes):
    return LambdaExecutor(NAME, cache=cache, endpoint_url=service.url, **{"warm": 1, **changes})


def using(executor, work):
    """Runs ``work(executor)`` between start and close."""

    async def body():
        try:
            await executor.start()
            return await work(executor)
        finally:
            await executor.close()

    return asyncio.run(body())


def request_for_objects(store, cache, count, request_id="r"):
    directory = store.directory / "photos"
    write_images(directory, count)
    keys = sorted(path.relative_to(directory).as_posix() for path in directory.glob("*/*.jpg"))
    import boto3

    client = boto3.client("s3", endpoint_url=store.url)
    listed = client.list_objects_v2(Bucket="photos")["Contents"]
    client.close()
    etags = {entry["Key"]: entry["ETag"].strip('"') for entry in listed}
    return ask(request_id, "s3://photos", keys, [etags[key] for key in keys], cache)


def test_a_request_is_carried_out_and_its_bill_is_told(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 6)

    async def work(executor):
        assert len(executor.golden) == 32
        first = await executor.invoke(request, timeout_s=TIMEOUT_S)
        lambda_service.reset()
        return first, await executor.invoke(request, timeout_s=TIMEOUT_S)

    warm, cold = using(executor_for(lambda_service, valkey.url), work)
    assert warm.outcomes == cold.outcomes == ("cached",) * 6
    assert (warm.cold_start, cold.cold_start) == (False, True)
    assert warm.memory_mb == cold.memory_mb == 1769
    for result in (warm, cold):
        assert result.billed_us % 1000 == 0
        assert result.billed_us >= result.duration_us
    assert cold.billed_us > cold.duration_us + 50_000  # the start of a process is billed
    with valkey.client() as client:
        assert client.exists(*(cache_key(bytes.fromhex(one)) for one in request.ids)) == 6
