"""What functions and AWS say of an invocation: any bytes are read with care, and become few words of ours."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.executors.base import (
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
)
from superdl.coordinator.executors.lambda_answers import (
    from_function,
    read_reply,
    read_warm_reply,
)
from superdl.coordinator.executors.lambda_client import Reply, Target

TARGET = Target("super-prefetch", "us-east-1")
MAX_CHARACTERS = 5000  # an escape takes up to ten
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


@given(PAYLOADS, st.sampled_from(["", "Unhandled"]))
def test_any_answer_is_an_error_of_ours_or_a_result(payload, function_error):
    reply = Reply(payload, function_error)
    for read in (
        lambda: read_reply(reply, TARGET, "r", 0.25),
        lambda: read_warm_reply(reply, TARGET, "redis://cache:6379"),
    ):
        with pytest.raises(ExecutorError) as told:
            read()
        assert len(str(told.value)) < MAX_CHARACTERS
        assert told.value.ran_s in {0.0, 0.25}


def test_a_function_is_named_without_a_password():
    assert str(Target("f", "us-east-1", "http://u:hunter2@host:1")) == "the function f (http://***@host:1)"
