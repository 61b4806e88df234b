"""Reports on invocations are read from logs of both of Lambda's formats, whatever else is in them."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.executors.lambda_answers import Report, read_report

ID = "7c1a5bd0-0000-4000-8000-3f2b1d5e9a10"
PLAIN = (
    f"REPORT RequestId: {ID}\tDuration: 12.30 ms\tBilled Duration: 13 ms\tMemory Size: 1769 MB\t"
    "Max Memory Used: 90 MB\t"
)
COLD = PLAIN.replace("13 ms", "480 ms") + "Init Duration: 466.91 ms\t"
TRACED = "XRAY TraceId: 1-5e\tSegmentId: 5f\tSampled: true\t"
RECORD = {
    "time": "2026-01-01T00:00:00.000Z",
    "type": "platform.report",
    "record": {
        "requestId": ID,
        "metrics": {
            "durationMs": 12.3,
            "billedDurationMs": 480,
            "memorySizeMB": 1769,
            "maxMemoryUsedMB": 90,
            "initDurationMs": 466.91,
        },
        "status": "success",
    },
}


def read(*lines):
    return read_report(b64encode("\n".join(lines).encode()).decode(), ID)


@pytest.mark.parametrize(
    ("lines", "report"),
    [
        ([f"START RequestId: {ID}", "words", f"END RequestId: {ID}", PLAIN, ""], Report(13, 1769, 90)),
        ([COLD, TRACED], Report(480, 1769, 90, 466.91)),
        (
            [PLAIN + "Restore Duration: 300.1 ms\tBilled Restore Duration: 7 ms\t"],
            Report(13, 1769, 90, 300.1),
        ),
        ([PLAIN + "Status: timeout"], Report(13, 1769, 90)),
        ([f"REPORT RequestId: {ID}\tBilled Duration: 13 ms"], Report(13)),
        ([json.dumps(RECORD)], Report(480, 1769, 90, 466.91)),
        ([PLAIN, PLAIN.replace(ID, "another").replace("13 ms", "99 ms")], Report(13, 1769, 90)),
        ([json.dumps(RECORD), json.dumps(RECORD).replace(ID, "another")], Report(480, 1769, 90, 466.91)),
        (["e of a line that was cut off", PLAIN], Report(13, 1769, 90)),
        ([f"REPORT RequestId: {ID} is what I print"], None),
        ([f"REPORT RequestId: {ID}\tBilled Duration: {'9' * 99} ms"], None),
        (['{"type": "platform.report"'], None),
        (['{"type": "platform.report", "record": []}'], None),
        ([json.dumps(RECORD).replace("480", '"480"')], None),
        ([json.dumps(RECORD).replace("480", "-1")], None),
        ([json.dumps(RECORD).replace("480", "1e999")], None),
        (['{"platform.report": ' + "[" * 2000], None),
        ([""], None),
    ],
)
def test_reports(lines, report):
    assert read(*lines) == report


@pytest.mark.parametrize("log", ["", "no base64!", "////", "YQ"])
def test_what_is_no_log_has_no_report(log):
    assert read_report(log, ID) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_passed_over(data):
    assert read_report(b64encode(data + b"\n" + PLAIN.encode()).decode(), ID) == Report(13, 1769, 90)


@given(st.sampled_from(["record", "requestId", "metrics", "billedDurationMs", "memorySizeMB", "type"]), JSON)
def test_any_value_of_a_record_is_read_or_passed_over(name, value):
    record = json.loads(json.dumps(RECORD))
    for holder in (record, record["record"], record["record"]["metrics"]):
        if name in holder:
            holder[name] = value
    report = read(json.dumps(record))
    assert report is None or (0 < report.billed_ms <= 10**9 and 0 <= report.memory_mb <= 10**9)
