"""What functions answer is read by its fields and held to what was asked; clocks may differ."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError
from superdl.coordinator.executors.messages import FunctionClock, read_object, read_warmed
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.request import Outcome
from tests.coordinator.executors.asking import TIMEOUT_S
from tests.coordinator.executors.lambda_running import executor_for, handler_of, request_for_objects, using

WARM = {"function_version": installed_version(), "golden": "a" * 32, "clock_s": 12.5}


def test_a_warm_answer_tells_version_fingerprint_and_clock():
    warmed = read_warmed(WARM, "it", "")
    assert (warmed.function_version, warmed.fingerprint, warmed.clock_s) == (*WARM.values(),)
    for clock_s in (float("nan"), float("inf"), "12", None):
        assert read_warmed({**WARM, "clock_s": clock_s}, "it", "").clock_s == 0.0
    for wrong in ({"golden": "x"}, {"golden": None}, {"function_version": 1}):
        with pytest.raises(ExecutorError, match="it answered a warm event with .*: install SUPER there"):
            read_warmed({**WARM, **wrong}, "it", "install SUPER there")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no result"),
    ],
)
def test_what_is_no_answer_of_ours_is_refused(text, reason):
    with pytest.raises(FunctionRaisedError, match=reason):
        read_object(text, "it")


@pytest.mark.parametrize(("ahead_s", "side"), [(100.0, "behind"), (-100.0, "ahead of")])
def test_a_function_with_another_clock_makes_the_samples(
    lambda_service, object_store, valkey, caplog, ahead_s, side
):
    lambda_service.deploy(handler=handler_of("with_a_clock_ahead"), environment={"AHEAD_S": str(ahead_s)})
    request = replace(request_for_objects(object_store, valkey.url, 2), expires_at=time.time() + 20.0)
    expired = replace(request, request_id="late", expires_at=time.time() - 20.0)

    async def work(executor):
        return [await executor.invoke(one, timeout_s=TIMEOUT_S) for one in (request, expired)]

    made, late = using(executor_for(lambda_service, valkey.url), work)
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
