"""What functions say of their errors is read with care: any bytes become one of our errors, in few words."""

from __future__ import annotations

import json

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
from superdl.coordinator.executors.lambda_answers import from_function, read_reply, read_warm_reply
from superdl.coordinator.executors.lambda_client import Reply, Target

TARGET = Target("super-prefetch", "us-east-1")
MAX_CHARACTERS = 5000  # an escape takes up to ten


def said(kind, words, **more):
    return json.dumps({"errorType": kind, "errorMessage": words, **more}).encode()


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (
            said("Sandbox.Timedout", "x Error: Task timed out after 3.00 seconds"),
            FunctionTimedOutError,
        ),
        # As Lambda said it for years, and still does in places.
        (
            b'{"errorMessage": "2026-01-01T00:00Z Task timed out after 3.00 seconds"}',
            FunctionTimedOutError,
        ),
        (
            said("Runtime.ExitError", "x Error: Runtime exited with error: exit status 1"),
            FunctionCrashedError,
        ),
        (
            said("Runtime.ExitError", "x Error: Runtime exited without providing a reason"),
            FunctionCrashedError,
        ),
        (
            said("Runtime.OutOfMemory", "x Error: Runtime exited: out of memory"),
            FunctionCrashedError,
        ),
        (said("Extension.Crash", "x"), FunctionCrashedError),
        (said("Runtime.Unknown", "RequestId: x Error: signal: segmentation fault"), FunctionCrashedError),
        (said("Function.ResponseSizeTooLarge", "x"), PayloadTooLargeError),
        (said("Runtime.ImportModuleError", "Unable to import module"), FunctionRaisedError),
        (said("ConfigError", "x", stackTrace=["  File a, line 1\n"] * 50), FunctionRaisedError),
        (said("", ""), FunctionRaisedError),
        (b"", FunctionRaisedError),
        (b"null", FunctionRaisedError),
        (b"[1, 2]", FunctionRaisedError),
        (b"<html>Bad Gateway</html>", FunctionRaisedError),
        (b'{"errorType": 7, "errorMessage": {"a": 1}}', FunctionRaisedError),
        (b"\xff\xfe\x00", FunctionRaisedError),
        (b"[" * 200_000, FunctionRaisedError),
        (b'{"errorMessage": ' + b"[" * 200_000, FunctionRaisedError),
        (b"9" * 10_000, FunctionRaisedError),
        (b"x" * 6_000_000, FunctionRaisedError),
        (said("E" * 6_000_000, "w" * 6_000_000), FunctionRaisedError),
    ],
)
def test_errors_of_functions(payload, kind):
    error = from_function(payload, TARGET)
    assert type(error) is kind
    assert str(error).startswith("the function super-prefetch (us-east-1) ")
    assert len(str(error)) < MAX_CHARACTERS


def test_memory_is_named_where_it_may_be_too_small():
    killed = said("Runtime.ExitError", "x Error: Runtime exited with error: signal: killed")
    assert str(from_function(killed, TARGET, memory_mb=512)).endswith(
        "; its memory of 512 MB may be too small"
    )
    assert str(from_function(killed, TARGET)).endswith("; its memory may be too small")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ERRORS = st.fixed_dictionaries({}, optional={"errorType": JSON, "errorMessage": JSON, "stackTrace": JSON})
PAYLOADS = st.binary(max_size=200) | (JSON | ERRORS).map(lambda value: json.dumps(value).encode())


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


def test_what_a_function_says_can_be_encoded():
    said = json.dumps({"errorType": "Odd\udfff", "errorMessage": "no \ud800 name"}).encode()
    assert str(from_function(said, TARGET)).encode().endswith(b"Odd?: no ? name")


def test_a_function_is_named_without_a_password():
    assert str(Target("f", "us-east-1", "http://u:hunter2@host:1")) == "the function f (http://***@host:1)"
