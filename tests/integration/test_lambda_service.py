"""The Lambda service of the tests is what it says: unmodified boto3 before it, AWS's runtime behind it."""

from __future__ import annotations

import base64
import json
import re
from concurrent.futures import ThreadPoolExecutor

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.fixtures.lambda_answers import MAX_ASYNCHRONOUS_BYTES, MAX_SYNCHRONOUS_BYTES
from tests.fixtures.lambda_service import LambdaService

NAME = "super-prefetch"
WARM = json.dumps({"super_warm": 1, "cache": ""}).encode()


@pytest.fixture
def client(lambda_service):
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=16)
    made = boto3.client("lambda", endpoint_url=lambda_service.url, config=config)
    yield made
    made.close()


def invoke(client, **changes):
    answer = client.invoke(**{"FunctionName": NAME, "Payload": WARM, "LogType": "Tail", **changes})
    return answer, json.loads(answer["Payload"].read() or b"null")


def log_of(answer):
    return base64.b64decode(answer["LogResult"]).decode()


def test_our_function_answers_through_awss_runtime_cold_and_then_warm(lambda_service, client):
    first, warmed = invoke(client)
    assert warmed["super_warm"] == 1
    assert warmed["cold_start"] is True
    report = log_of(first).splitlines()[-1]
    words = re.fullmatch(
        r"REPORT RequestId: (\S+)\tDuration: ([\d.]+) ms\tBilled Duration: (\d+) ms\tMemory Size: 1769 MB\t"
        r"Max Memory Used: \d+ MB\tInit Duration: ([\d.]+) ms\t",
        report,
    )
    assert words is not None, report
    assert words[1] == first["ResponseMetadata"]["RequestId"]
    assert int(words[3]) >= float(words[2]) + float(words[4])  # the start is billed
    assert first["ExecutedVersion"] == "$LATEST"
    second, warmed = invoke(client)
    assert warmed["cold_start"] is False
    assert "Init Duration" not in log_of(second)
    lambda_service.deploy(json_logs=True, memory_mb=512, version="2")
    third, warmed = invoke(client, Qualifier="2")
    record = json.loads(log_of(third).splitlines()[-1])["record"]
    assert warmed["cold_start"] is True
    assert record["metrics"]["memorySizeMB"] == 512
    assert lambda_service.cold_starts == 2


def test_errors_crashes_and_refusals_come_as_awss_do(lambda_service, client):
    answer, words = invoke(client, Payload=b'{"super_warm": 3}')
    assert answer["FunctionError"] == "Unhandled"
    assert words["errorType"] == "ConfigError"
    lambda_service.crash_next()
    answer, words = invoke(client)
    assert words["errorType"] == "Runtime.ExitError"
    assert "signal: killed" in words["errorMessage"]
    lambda_service.deploy(handler="nowhere.handler")
    answer, words = invoke(client)
    assert words["errorType"] == "Runtime.ImportModuleError"
    lambda_service.throttle_next(1)
    for changes, code in (
        ({}, "TooManyRequestsException"),
        ({"FunctionName": "another"}, "ResourceNotFoundException"),
        ({"Qualifier": "7"}, "ResourceNotFoundException"),
        ({"Payload": b'"' + b"x" * MAX_SYNCHRONOUS_BYTES + b'"'}, "RequestTooLargeException"),
        (
            {"Payload": b'"' + b"x" * MAX_ASYNCHRONOUS_BYTES + b'"', "InvocationType": "Event"},
            "RequestTooLargeException",
        ),
        ({"Payload": b"no json"}, "InvalidRequestContentException"),
    ):
        with pytest.raises(ClientError) as refused:
            invoke(client, **changes)
        assert refused.value.response["Error"]["Code"] == code
    assert client.invoke(FunctionName=NAME, InvocationType="DryRun")["StatusCode"] == 204
    configuration = client.get_function_configuration(FunctionName=lambda_service.function.arn)
    assert configuration["MemorySize"] == 1769


def test_what_takes_too_long_is_killed(lambda_service, client, tmp_path):
    (tmp_path / "slow.py").write_text("import time\ndef handler(event, context):\n    time.sleep(60)\n")
    lambda_service.deploy(handler="slow.handler", timeout_s=0.5, environment={"PYTHONPATH": str(tmp_path)})
    answer, words = invoke(client)
    assert answer["FunctionError"] == "Unhandled"
    assert words["errorType"] == "Sandbox.Timedout"
    assert words["errorMessage"].endswith("Error: Task timed out after 0.50 seconds")
    lambda_service.wait_until(lambda: not lambda_service.environments[0].alive)


def test_the_concurrency_limit_throttles_calls_and_holds_events_back(lambda_service, client, tmp_path):
    gate = tmp_path / "gate"
    (tmp_path / "gated.py").write_text(
        "import os, time\n"
        "def handler(event, context):\n"
        f"    while not os.path.exists({str(gate)!r}):\n"
        "        time.sleep(0.005)\n"
        "    return event\n"
    )
    lambda_service.concurrency = 1
    lambda_service.deploy(handler="gated.handler", environment={"PYTHONPATH": str(tmp_path)})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(invoke, client)
        lambda_service.wait_until(lambda: lambda_service.busy == 1)
        with pytest.raises(ClientError, match="Rate Exceeded"):
            invoke(client)
        answers = [
            client.invoke(FunctionName=NAME, Payload=b"%d" % number, InvocationType="Event")
            for number in range(3)
        ]
        assert {answer["StatusCode"] for answer in answers} == {202}
        gate.touch()
        running.result()
    lambda_service.wait_until(lambda: len(lambda_service.invocations) == 4 and not lambda_service.busy)
    assert sorted(one.payload for one in lambda_service.invocations[1:]) == [b"0", b"1", b"2"]
    assert lambda_service.most_at_once == 1


def test_failed_events_are_tried_again_as_often_as_is_set(lambda_service, client):
    lambda_service.event_retries = 2
    client.invoke(FunctionName=NAME, Payload=b'{"super_warm": 3}', InvocationType="Event")
    lambda_service.wait_until(lambda: lambda_service.dropped_events)
    assert [one.tries for one in lambda_service.invocations] == [1, 2, 3]
    assert len({one.request_id for one in lambda_service.invocations}) == 1


def test_all_that_it_starts_ends_with_it(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    before = set(psutil.Process().children(recursive=True))
    service = LambdaService()
    made = boto3.client("lambda", endpoint_url=service.url, region_name="us-east-1")
    try:
        invoke(made)
        assert len(set(psutil.Process().children(recursive=True)) - before) == 1
    finally:
        made.close()
        service.close()
    assert set(psutil.Process().children(recursive=True)) <= before
