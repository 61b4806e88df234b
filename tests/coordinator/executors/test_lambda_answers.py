"""What functions and AWS say of an invocation: any bytes are read with care, and become few words of ours."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.executors import (
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
)
from superdl.coordinator.executors.lambda_answers import (
    Report,
    from_function,
    read_reply,
    read_report,
    read_warm_reply,
)
from superdl.coordinator.executors.lambda_client import Reply, Target

TARGET = Target("super-prefetch", "us-east-1")
MAX_CHARACTERS = 5000  # an escape takes up to ten
ID = "7c1a5bd0-0000-4000-8000-3f2b1d5e9a10"
PLAIN = (
    f"REPORT RequestId: {ID}\tDuration: 12.30 ms\tBilled Duration: 13 ms\tMemory Size: 1769 MB\t"
    "Max Memory Used: 90 MB\t"
)
COLD = PLAIN.replace("13 ms", "480 ms") + "Init Duration: 466.91 ms\t"
METRICS = {"billedDurationMs": 480, "memorySizeMB": 1769, "maxMemoryUsedMB": 90, "initDurationMs": 466.91}
RECORD = {"type": "platform.report", "record": {"requestId": ID, "metrics": METRICS}}
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ERRORS = st.fixed_dictionaries({}, optional={"errorType": JSON, "errorMessage": JSON, "stackTrace": JSON})
PAYLOADS = st.binary(max_size=200) | (JSON | ERRORS).map(lambda value: json.dumps(value).encode())


def said(kind, words):
    return json.dumps({"errorType": kind, "errorMessage": words}).encode()


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (said("Sandbox.Timedout", "x"), FunctionTimedOutError),
        # As Lambda said it for years, and still does in places.
        (b'{"errorMessage": "2026 Task timed out after 3.00 seconds"}', FunctionTimedOutError),
        (said("Runtime.ExitError", "x Error: Runtime exited with error"), FunctionCrashedError),
        (said("Runtime.OutOfMemory", "x"), FunctionCrashedError),
        (said("Extension.Crash", "x"), FunctionCrashedError),
        (said("Runtime.Unknown", "x Error: signal: segmentation fault"), FunctionCrashedError),
        (said("Function.ResponseSizeTooLarge", "x"), PayloadTooLargeError),
        (said("Runtime.ImportModuleError", "Unable to import module"), FunctionRaisedError),
        (b"[" * 200_000, FunctionRaisedError),
        (b"x" * 6_000_000, FunctionRaisedError),
        (said("E" * 6_000_000, "w" * 6_000_000), FunctionRaisedError),
        (said("Odd\udfff", "no \ud800 name"), FunctionRaisedError),
    ],
)
def test_errors_of_functions(payload, kind):
    error = from_function(payload, TARGET)
    assert type(error) is kind
    assert str(error).startswith("the function super-prefetch (us-east-1) ")
    assert len(str(error)) < MAX_CHARACTERS
    assert str(error).encode()


@given(PAYLOADS, st.booleans(), st.text(max_size=40))
def test_any_answer_is_an_error_of_ours_or_a_result(payload, failed, log):
    reply = Reply(payload, "id", function_error="Unhandled" if failed else "", log_result=log)
    for read in (
        lambda: read_reply(reply, TARGET, "r", 0.25),
        lambda: read_warm_reply(reply, TARGET, "redis://cache:6379", 0.25),
    ):
        with pytest.raises(ExecutorError) as told:
            read()
        assert len(str(told.value)) < MAX_CHARACTERS
        assert told.value.ran_s in {0.0, 0.25}


def test_a_function_is_named_without_a_password():
    assert str(Target("f", "us-east-1", "http://u:hunter2@host:1")) == "the function f (http://***@host:1)"


def report_of(*lines):
    return read_report(b64encode("\n".join(lines).encode()).decode(), ID)


@pytest.mark.parametrize(
    ("lines", "report"),
    [
        ([f"START RequestId: {ID}", "words", f"END RequestId: {ID}", PLAIN, ""], Report(13, 1769)),
        ([COLD, "XRAY TraceId: 1-5e\t"], Report(480, 1769)),
        ([PLAIN + "Restore Duration: 300.1 ms\t"], Report(13, 1769)),
        ([f"REPORT RequestId: {ID}\tBilled Duration: 13 ms"], Report(13)),
        ([PLAIN, PLAIN.replace(ID, "another").replace("13 ms", "99 ms")], Report(13, 1769)),
        ([json.dumps(RECORD), json.dumps(RECORD).replace(ID, "another")], Report(480, 1769)),
        ([f"REPORT RequestId: {ID} is what I print"], None),
        ([f"REPORT RequestId: {ID}\tBilled Duration: {'9' * 99} ms"], None),
        ([json.dumps(RECORD).replace("480", "1e999")], None),
        (['{"platform.report": ' + "[" * 2000], None),
    ],
)
def test_reports(lines, report):
    assert report_of(*lines) == report


@given(st.sampled_from(["record", "requestId", "metrics", "billedDurationMs", "memorySizeMB", "type"]), JSON)
def test_any_value_of_a_record_is_read_or_passed_over(name, value):
    record = json.loads(json.dumps(RECORD))
    for holder in (record, record["record"], record["record"]["metrics"]):
        if name in holder:
            holder[name] = value
    report = report_of(json.dumps(record))
    assert report is None or (0 < report.billed_ms <= 10**9 and 0 <= report.memory_mb <= 10**9)
