"""Simulated functions: cold starts, their ramp, refusals, time limits and bills."""

import numpy as np
import pytest

from superdl.coordinator.core import CoreSettings, FailureKind, Prefetch, RequestFailed, SetKey
from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, WorldModel

DATA = DatasetModel(b"a", random=False, record_bytes=np.full(1000, 5000), source_bytes=700)
LAMBDA = FunctionsModel(
    capacity=10,
    queues=False,
    burst=4,
    per_s=1.0,
    cold_start_s=2.0,
    warm_s=60.0,
    overhead_s=0.5,
    decode_s=0.1,
    spread=0.0,
    memory_gb=2.0,
)


def results_of(functions, *requests):
    """Send requests (samples, seconds of arrival, time limit) in a world without jobs."""
    world, results = World(WorldModel(1, CoreSettings(10**9), functions, {b"a": DATA}, ())), []
    world.answer = results.append
    (executor,) = world.executors
    for number, (samples, at_s, expires_in_s) in enumerate(requests):
        request = Prefetch(number, "job", SetKey(b"a", -1), np.arange(samples), expires_in_s)
        world.after(at_s, lambda request=request: executor.submit(request))
    while world.step():
        pass
    return executor.usage, results


def test_only_the_first_request_starts_cold():
    usage, (first, second) = results_of(LAMBDA, (5, 0.0, 60.0), (5, 20.0, 60.0))
    assert (first.cold_start, second.cold_start, usage.cold_starts) == (True, False, 1)
    assert second.duration_us == first.duration_us == 1_000_000
    assert first.gb_s > second.gb_s == pytest.approx(2.0)
    assert (second.source_requests, second.source_bytes) == (5, 3500)


def test_cold_starts_are_limited_to_a_burst_and_a_rate():
    usage, results = results_of(LAMBDA, *[(50, 0.0, 60.0)] * 6, *[(50, 2.5, 60.0)] * 3)
    refused = [result for result in results if isinstance(result, RequestFailed)]
    assert [(result.kind, result.gb_s) for result in refused] == [(FailureKind.THROTTLED, 0)] * 3
    assert usage.functions_peak == 6


def test_requests_that_run_or_wait_too_long_fail():
    _, results = results_of(FunctionsModel(1, overhead_s=61.0, spread=0.0), *[(3, 0.0, 60.0)] * 3)
    assert isinstance(results[0], RequestFailed)
    assert results[-1].source_requests == 0, "it expired in the queue"
    _, (result,) = results_of(LAMBDA, (50, 0.0, 0.8))
    assert result.kind is FailureKind.TIMED_OUT
    assert result.gb_s > 1.6
