"""One structured line and one set of metrics per invocation, and nothing where they are turned down."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from superdl.lambda_prefetch import telemetry as module
from superdl.super_wire.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
from superdl.lambda_prefetch.telemetry import telemetry
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.super_wire.request import PrefetchResult
from tests.lambda_prefetch.prefetching import Context
result = PrefetchResult(
    request_id="r1", function_version="0", cold_start=True, outcomes=("cached", "missing"), fetch_us=(10, 5),
    decode_us=(20, 0), push_us=(30, 0), source_bytes=(100, 0), record_bytes=(200, 0),
    messages={"1": "file:///a/b.jpg: there is no such file"}, duration_us=7000,
)
for _ in range(int(os.environ.get("TIMES", "2"))):
    telemetry(FunctionSettings.from_environment().log_level).finished(result, Context())
"""


def lines(**variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_line_and_a_set_of_metrics_per_invocation():
    log, metrics, second_log, second_metrics = lines()
    assert (log["level"], log["message"], log["request_id"]) == ("INFO", "prefetched", "r1")
    assert log["outcomes"] == {"cached": 1, "missing": 1}
    assert log["messages"] == ["file:///a/b.jpg: there is no such file"]
    assert log["duration_ms"] == 7
    assert metrics["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "SUPER"
    assert metrics["function_name"] == "super-prefetch"
    expected = {
        "ColdStart": 1,
        "SamplesCached": 1,
        "SamplesFailed": 1,
        "SourceBytes": 100,
        "RecordBytes": 200,
    }
    times = {"FetchTime": 15, "DecodeTime": 20, "PushTime": 30}
    for found in (metrics, second_metrics):
        assert {name: found[name][0] for name in expected | times} == expected | times
    assert second_log["request_id"] == "r1"


def test_the_metrics_are_what_cloudwatch_reads_out_of_a_line():
    """The embedded metric format, as AWS specifies it: each metric and dimension that a directive names is a
    member at the root of the line.
    """
    _, line, *_ = lines(AWS_LAMBDA_FUNCTION_NAME="super-prefetch", LAMBDA_TASK_ROOT="/var/task")
    assert isinstance(line["_aws"]["Timestamp"], int)
    assert 1_700_000_000_000 < line["_aws"]["Timestamp"] < 10_000_000_000_000, "milliseconds"
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "SUPER"
    assert directive["Dimensions"] == [["function_name", "service"]] or directive["Dimensions"] == [
        ["service", "function_name"]
    ]
    for dimension in directive["Dimensions"][0]:
        assert isinstance(line[dimension], str)
    units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
    assert units == dict.fromkeys(("ColdStart", "SamplesCached", "SamplesFailed"), "Count") | dict.fromkeys(
        ("SourceBytes", "RecordBytes"), "Bytes"
    ) | dict.fromkeys(("FetchTime", "DecodeTime", "PushTime"), "Microseconds")
    for name in units:
        assert all(isinstance(value, float | int) for value in line[name])


def test_silent_where_they_are_turned_down():
    """However long: Powertools prints a metric by itself when it has a hundred values."""
    assert lines(SUPER_LOG_LEVEL="WARNING", POWERTOOLS_METRICS_DISABLED="true", TIMES="120") == []


TRACED = """
from superdl.lambda_prefetch.handler import handler
from superdl.super_wire.errors import ConfigError
from tests.lambda_prefetch.prefetching import Context
try:
    handler({"format": "nothing"}, Context())
except ConfigError:
    print("refused")
"""


def trace_of(daemon, **variables):
    """What a refused request tells X-Ray's daemon: a header line and a segment."""
    subprocess.run(
        [sys.executable, "-c", TRACED],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LAMBDA_TASK_ROOT": "/var/task",
            "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
            "_X_AMZN_TRACE_ID": "Root=1-5e988ad4-0123456789abcdef01234567;Parent=0123456789abcdef;Sampled=1",
            **variables,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    try:
        return json.loads(daemon.recv(65536).split(b"\n", 1)[1])
    except BlockingIOError:
        return None


@pytest.fixture
def daemon():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setblocking(False)
        yield listening


def test_a_request_is_a_segment_where_tracing_is_asked_for(daemon):
    segment = trace_of(daemon, SUPER_TRACE="1")
    assert segment["name"] == "## prefetch"
    assert segment["trace_id"] == "1-5e988ad4-0123456789abcdef01234567"
    assert segment["fault"] is True
    assert segment["cause"]["exceptions"][0]["type"] == "ConfigError"


def test_nothing_is_traced_unless_asked_for(daemon):
    assert trace_of(daemon) is None
    assert trace_of(daemon, SUPER_TRACE="1", POWERTOOLS_TRACE_DISABLED="true") is None


def test_a_missing_sdk_is_named(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="SUPER_TRACE is 1, and the function has no aws_xray_sdk: add it"):
        module.Telemetry("INFO", trace=True)
