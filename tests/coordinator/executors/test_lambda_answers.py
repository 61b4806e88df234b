"""What functions and AWS answer: any bytes are read with care, held to what was asked; clocks may differ."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.aws_lambda import FunctionClock, Warmed, read_reply
from superdl.coordinator.executors.base import (
    ExecutorError,
)
from superdl.coordinator.executors.lambda_client import Reply, Target, from_function
from superdl.coordinator.executors.messages import read_object
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.request import Outcome
from tests.coordinator.executors.asking import TIMEOUT_S, failing
from tests.coordinator.executors.lambda_running import executor_for, handler_of, request_for_objects, using

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
        (said("Sandbox.Timedout", "x"), FailureKind.TIMED_OUT),
        # As Lambda said it for years, and still does in places.
        (b'{"errorMessage": "2026 Task timed out after 3.00 seconds"}', FailureKind.TIMED_OUT),
        (said("Runtime.ExitError", "x Error: Runtime exited with error"), FailureKind.CRASHED),
        (said("Runtime.OutOfMemory", "x"), FailureKind.CRASHED),
        (said("Extension.Crash", "x"), FailureKind.CRASHED),
        (said("Runtime.Unknown", "x Error: signal: segmentation fault"), FailureKind.CRASHED),
        (said("Function.ResponseSizeTooLarge", "x"), FailureKind.RAISED),
        (said("Runtime.ImportModuleError", "Unable to import module"), FailureKind.RAISED),
        (b"[" * 200_000, FailureKind.RAISED),
        (b"x" * 6_000_000, FailureKind.RAISED),
        (said("E" * 6_000_000, "w" * 6_000_000), FailureKind.RAISED),
        (said("Odd\udfff", "no \ud800 name"), FailureKind.RAISED),
    ],
)
def test_errors_of_functions(payload, kind):
    error = from_function(payload, TARGET, 0.25)
    assert (error.kind, error.ran_s) == (kind, 0.25)
    assert str(error).startswith("the function super-prefetch (us-east-1) ")
    assert len(str(error)) < MAX_CHARACTERS
    assert str(error).encode()


@given(PAYLOADS)
def test_any_answer_is_an_error_of_ours_or_a_result(payload):
    reply = Reply(payload, 0.25)
    for read, ran_s in (
        (lambda: read_reply(reply, TARGET, "r"), 0.25),
        (lambda: Warmed.of(reply, TARGET), 0.0),
    ):
        with pytest.raises(ExecutorError) as told:
            read()
        assert (len(str(told.value)) < MAX_CHARACTERS, told.value.ran_s) == (True, ran_s)
    assert len(str(from_function(payload, TARGET, 0.25))) < MAX_CHARACTERS


def test_a_function_is_named_without_a_password():
    assert str(Target("f", "us-east-1", "http://u:hunter2@host:1")) == "the function f (http://***@host:1)"


WARM = {"function_version": installed_version(), "golden": "a" * 32, "clock_s": 12.5}


def warmed(**changes):
    return Warmed.of(Reply(json.dumps({**WARM, **changes}).encode(), 0.0), TARGET)


def test_a_warm_answer_tells_version_fingerprint_and_clock():
    assert warmed() == (WARM["golden"], WARM["clock_s"])
    for clock_s in (float("nan"), float("inf"), "12", None):
        assert warmed(clock_s=clock_s).clock_s == 0.0
    for wrong in ({"golden": "x"}, {"golden": None}, {"function_version": 1}):
        with pytest.raises(ExecutorError, match="answered a warm event with .*: deploy SUPER's function"):
            warmed(**wrong)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no result"),
    ],
)
def test_what_is_no_answer_of_ours_is_refused(text, reason):
    with failing(FailureKind.RAISED, match=reason):
        read_object(text, "it")


@pytest.mark.parametrize(("ahead_s", "side"), [(100.0, "behind"), (-100.0, "ahead of")])
async def test_a_function_with_another_clock_makes_the_samples(
    lambda_service, object_store, valkey, caplog, ahead_s, side
):
    lambda_service.deploy(handler=handler_of("with_a_clock_ahead"), environment={"AHEAD_S": str(ahead_s)})
    request = replace(request_for_objects(object_store, valkey.url, 2), expires_at=time.time() + 20.0)
    expired = replace(request, request_id="late", expires_at=time.time() - 20.0)

    async with using(executor_for(lambda_service, valkey.url)) as executor:
        made, late = [await executor.invoke(one, timeout_s=TIMEOUT_S) for one in (request, expired)]
    assert made.outcomes == (Outcome.CACHED,) * 2
    assert late.outcomes == (Outcome.EXPIRED,) * 2
    told = [record for record in caplog.records if "clock is 100 s" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert f"this machine's clock is 100 s {side} that of the functions" in told[0].getMessage()


def test_small_differences_are_none_and_what_is_set_right_is_forgotten(caplog):
    clock = FunctionClock()
    for clock_s in (0.0, time.time() + 2.0, time.time() - 2.0):
        clock.told(clock_s)
        assert clock.ahead_s == 0.0
    assert not caplog.records
    clock.told(time.time() + 60.0)
    clock.told(time.time() + 62.0)
    assert 59.0 < clock.ahead_s < 61.0
    clock.told(time.time())
    assert clock.ahead_s == 0.0
    assert len(caplog.records) == 1
