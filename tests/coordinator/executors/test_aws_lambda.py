"""Run the Lambda executor against the tests' Lambda service: start, prefetch, bill, end."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors import aws_lambda
from superdl.coordinator.executors.base import ExecutorError
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.keys import cache_keys
from superdl.super_wire.protocol import installed_version
from tests.coordinator.executors.asking import TIMEOUT_S, ask, failing
from tests.coordinator.executors.lambda_running import (
    executor_for,
    handler_of,
    request_for_objects,
    start_and_close,
    using,
)
from tests.fixtures.ports import free_port

ROOT = Path(__file__).resolve().parents[3]


async def test_a_request_is_run_and_billed(lambda_service, object_store, valkey):
    request = request_for_objects(object_store, valkey.url, 6)

    async with using(executor_for(lambda_service, valkey.url)) as executor:
        assert len(executor.fingerprint) == 32
        first = await executor.invoke(request, timeout_s=TIMEOUT_S)
        lambda_service.reset()
        warm, cold = first, await executor.invoke(request, timeout_s=TIMEOUT_S)
    assert warm.outcomes == cold.outcomes == ("cached",) * 6
    assert (warm.cold_start, cold.cold_start) == (False, True)
    assert warm.memory_mb == cold.memory_mb == 1769
    for result in (warm, cold):
        assert result.billed_us % 1000 == 0
        assert result.billed_us >= result.duration_us
    assert cold.billed_us > cold.duration_us + 50_000  # process startup is billed
    with valkey.client() as client:
        assert client.exists(*cache_keys(request.ids)) == 6


async def test_environments_and_connections_are_ready_before_the_first_request(
    lambda_service, valkey, tmp_path
):
    await start_and_close(executor_for(lambda_service, valkey.url))
    with valkey.client() as client:
        assert len(client.client_list()) == 2  # the function's connection and this one
    environment = {"GATHER_IN": str(tmp_path), "GATHER": "3"}  # each waits for the two others
    lambda_service.deploy(handler=handler_of("gathering"), environment=environment)
    await start_and_close(executor_for(lambda_service, warm=3))
    assert len(list(tmp_path.iterdir())) == 3


ELSEWHERE = "arn:aws:lambda:us-east-1:123456789012:function:super-prefetch"


@pytest.mark.parametrize(
    ("changes", "kind", "remedy"),
    [
        ({"function": "no such name!"}, ConfigError, "lambda_function"),
        ({"function": "nobody"}, ConfigError, "SUPER_LAMBDA_FUNCTION"),
        ({"function": "super-prefetch:7"}, ConfigError, "super-prefetch:7"),
        ({"region": "eu-west-9"}, ExecutorError, "lambda_region"),
        ({"region": "in the north"}, ConfigError, "lambda_region"),
        ({"function": ELSEWHERE, "region": "eu-west-1"}, ConfigError, "us-east-1.* eu-west-1"),
        ({"endpoint_url": "127.0.0.1:1"}, ConfigError, "lambda_endpoint_url"),
        ({"endpoint_url": f"http://127.0.0.1:{free_port()}"}, ExecutorError, "lambda_endpoint_url"),
    ],
)
async def test_wrong_settings_are_reported_with_a_remedy(lambda_service, changes, kind, remedy):
    with pytest.raises(kind, match=remedy) as told:
        await start_and_close(executor_for(lambda_service, **changes))
    assert isinstance(told.value, ConfigError) == (kind is ConfigError)  # exit code 2 or 1


async def test_a_region_is_required_and_aws_region_is_used(lambda_service, monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match=r"has no region. Set lambda_region \(SUPER_LAMBDA_REGION\)"):
        executor_for(lambda_service)
    lambda_service.deploy(handler=handler_of("misbehaving"))
    arn = lambda_service.function.arn
    await start_and_close(executor_for(lambda_service, function=arn))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    await start_and_close(executor_for(lambda_service))


async def test_missing_and_unknown_credentials_are_reported(lambda_service, monkeypatch, tmp_path):
    lambda_service.access_key = "another"
    with pytest.raises(ExecutorError, match="does not accept the coordinator's credentials .*security token"):
        await start_and_close(executor_for(lambda_service))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no usable AWS credentials .*Set AWS_ACCESS_KEY_ID"):
        await start_and_close(executor_for(lambda_service))


async def test_a_function_without_access_to_the_cache_is_reported(lambda_service):
    cache = f"redis://127.0.0.1:{free_port()}"
    with failing(FailureKind.RAISED, match=f"cannot use the cache .*{cache}.*security groups"):
        await start_and_close(executor_for(lambda_service, cache))


@pytest.mark.parametrize(
    ("handler", "kind", "named"),
    [
        ("of_another_version", ConfigError, installed_version()),
        ("of_no_version", ExecutorError, "hello"),
        ("disagreeing", ConfigError, "Redeploy"),
        ("nowhere", ExecutorError, "Runtime.HandlerNotFound"),
    ],
)
async def test_a_wrong_function_is_refused(lambda_service, tmp_path, handler, kind, named):
    environment = {"GATHER_IN": str(tmp_path), "GATHER": "2"}
    lambda_service.deploy(handler=handler_of(handler), environment=environment)
    with pytest.raises(kind, match=named):
        await start_and_close(executor_for(lambda_service, warm=2))


async def test_throttled_warm_events_are_retried(lambda_service, monkeypatch, caplog):
    monkeypatch.setattr(aws_lambda, "_THROTTLED_PAUSE_S", 0.01)
    lambda_service.deploy(handler=handler_of("misbehaving"))
    lambda_service.throttle_next(3)
    await start_and_close(executor_for(lambda_service, warm=2))
    assert len(lambda_service.invocations) == 2
    refused = lambda_service.refused
    assert caplog.text.count("waiting for functions to start: ") == 1
    lambda_service.throttle_next(1000, reason="ReservedFunctionConcurrentInvocationLimitExceeded")
    with failing(FailureKind.THROTTLED, match="raise the function's reserved concurrency"):
        await start_and_close(executor_for(lambda_service))
    assert lambda_service.refused - refused == 30


async def test_concurrency_is_limited(lambda_service, tmp_path):
    lambda_service.deploy(handler=handler_of("misbehaving"))
    gate = tmp_path / "gate"

    async with using(executor_for(lambda_service, concurrency=2)) as executor:
        invoked = [
            asyncio.create_task(executor.invoke(ask(f"wait:{gate}"), timeout_s=TIMEOUT_S)) for _ in range(5)
        ]
        await asyncio.to_thread(lambda_service.wait_until, lambda: lambda_service.busy == 2)
        with failing(FailureKind.THROTTLED, match="none of the 2 threads was free within 0.05 s"):
            await executor.invoke(ask(), timeout_s=0.05)
        gate.touch()
        await asyncio.gather(*invoked)
    assert lambda_service.most_at_once == 2


async def test_a_silent_function_is_abandoned(lambda_service, tmp_path):
    lambda_service.deploy(handler=handler_of("misbehaving"))

    await start_and_close(executor_for(lambda_service))  # leaves a warm environment that answers in time
    async with using(
        executor_for(lambda_service, request_timeout_s=1.0 - aws_lambda._READ_MARGIN_S)
    ) as executor:
        with failing(FailureKind.TIMED_OUT, match="did not respond within 0.2 s") as told:
            await executor.invoke(ask("hang"), timeout_s=0.2)
        assert told.value.ran_s > 0
        # A shorter timeout of the connection applies first.
        with failing(FailureKind.TIMED_OUT, match="did not respond in time") as told:
            await executor.invoke(ask("hang"), timeout_s=TIMEOUT_S)
        assert told.value.ran_s >= 1.0


async def test_closing_fails_running_requests_without_waiting(lambda_service):
    lambda_service.deploy(handler=handler_of("misbehaving"))

    async with using(executor_for(lambda_service)) as executor:
        hanging = asyncio.create_task(executor.invoke(ask("hang"), timeout_s=TIMEOUT_S))
        await asyncio.to_thread(lambda_service.wait_until, lambda: lambda_service.busy == 1)
        await executor.close()
        with pytest.raises(ExecutorError, match="the executor is closed"):
            await hanging
        with pytest.raises(ExecutorError, match="the executor is closed"):
            await executor.invoke(ask(), timeout_s=TIMEOUT_S)


PROGRAM = """
import asyncio, sys
from superdl.coordinator.executors.base import ExecutorContext
from superdl.coordinator.executors.aws_lambda import LambdaExecutor, LambdaSettings
from tests.coordinator.executors.asking import ask

async def main():
    settings = LambdaSettings(lambda_endpoint_url=sys.argv[1], lambda_warm=1)
    executor = LambdaExecutor(settings, ExecutorContext(""))
    await executor.start()
    hanging = asyncio.create_task(executor.invoke(ask("hang"), timeout_s=600))
    print("asked", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await executor.close()

asyncio.run(main())
"""


def test_a_process_exits_while_functions_hang(lambda_service):
    lambda_service.deploy(handler=handler_of("misbehaving"), timeout_s=600.0)
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM, lambda_service.url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        lambda_service.wait_until(lambda: lambda_service.busy == 1 and len(lambda_service.invocations) == 2)
        _, errors = process.communicate(b"end\n", timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert lambda_service.busy == 1  # it is still hanging
