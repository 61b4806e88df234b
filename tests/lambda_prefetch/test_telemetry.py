"""Each invocation logs a structured line and metrics, unless they are turned off."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os
from superdl.lambda_prefetch.telemetry import log_invocation
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.super_wire.request import PrefetchResult
from tests.lambda_prefetch.prefetching import Context
result = PrefetchResult(
    request_id="r1", function_version="0", cold_start=True, outcomes=("cached", "missing"), fetch_us=15,
    decode_us=20, push_us=30, source_bytes=100, record_bytes=(200, 0),
    messages={"1": "file:///a/b.jpg: there is no such file"}, duration_us=7000,
    store_trouble="/store: No space left on device", store_bytes=300,
)
for _ in range(int(os.environ.get("TIMES", "2"))):
    log_invocation(result, Context(), FunctionSettings.from_environment().log_level)
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


def test_each_invocation_logs_a_line_and_metrics():
    log, metrics, second_log, second_metrics = lines()
    assert (log["level"], log["message"], log["request_id"]) == ("INFO", "prefetched", "r1")
    assert log["outcomes"] == {"cached": 1, "missing": 1}
    assert log["messages"] == ["file:///a/b.jpg: there is no such file"]
    assert log["duration_ms"] == 7
    assert log["store_trouble"] == "/store: No space left on device"
    assert metrics["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "SUPER"
    assert metrics["function_name"] == "super-prefetch"
    expected = {
        "ColdStart": 1,
        "SamplesCached": 1,
        "SamplesFailed": 1,
        "SourceBytes": 100,
        "RecordBytes": 200,
    }
    expected |= {"StoreBytes": 300, "StoreTroubles": 1, "FetchTime": 15, "DecodeTime": 20, "PushTime": 30}
    for values in (metrics, second_metrics):
        assert {name: values[name][0] for name in expected} == expected
    assert second_log["request_id"] == "r1"


def test_log_and_metrics_can_be_turned_off():
    """Powertools would print a metric after a hundred values."""
    assert lines(SUPER_LOG_LEVEL="WARNING", POWERTOOLS_METRICS_DISABLED="true", TIMES="120") == []
