"""Clocks that differ: requests are told by the functions' clock, also once one of them is set."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from superdl.coordinator.executors.function_clock import FunctionClock
from superdl.super_wire.request import Outcome
from tests.coordinator.executors.asking import TIMEOUT_S
from tests.coordinator.executors.lambda_running import executor_for, handler_of, request_for_objects, using


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


def test_a_clock_that_is_set_while_functions_serve_is_met_again(lambda_service, object_store, valkey):
    request = replace(request_for_objects(object_store, valkey.url, 2), expires_at=time.time() + 20.0)

    async def work(executor):
        lambda_service.deploy(handler=handler_of("with_a_clock_ahead"), environment={"AHEAD_S": str(100.0)})
        return [await executor.invoke(request, timeout_s=TIMEOUT_S) for _ in range(2)]

    first, second = using(executor_for(lambda_service, valkey.url), work)
    assert first.outcomes == (Outcome.EXPIRED,) * 2
    assert second.outcomes == (Outcome.CACHED,) * 2


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
