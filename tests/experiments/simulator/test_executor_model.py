"""Simulated functions: cold starts, the ramp, refusals, queues and bills."""

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


class Bench:
    """A world without jobs, to send requests to its functions."""

    def __init__(self, functions):
        self.world = World(WorldModel(1, CoreSettings(10**9), functions, {b"a": DATA}, ()))
        self.answers = []
        self.world.answer = lambda event: self.answers.append((self.world.now_s, event))
        self._number = 0

    def ask(self, samples, *, at_s=0.0, expires_in_s=60.0):
        self._number += 1
        request = Prefetch(self._number, "job", SetKey(b"a", -1), np.arange(samples), expires_in_s)
        self.world.after(at_s - self.world.now_s, lambda: self.world.executors[0].submit(request))

    def run(self):
        while self.world.step():
            pass
        return [event for _, event in self.answers]

    def throttled(self):
        failed = [event for _, event in self.answers if isinstance(event, RequestFailed)]
        assert all(event.kind is FailureKind.THROTTLED and event.gb_s == 0 for event in failed)
        return len(failed)


def test_only_the_first_request_starts_cold():
    bench = Bench(LAMBDA)
    bench.ask(5)
    bench.ask(5, at_s=20.0)
    first, second = bench.run()
    assert (first.cold_start, second.cold_start) == (True, False)
    assert bench.world.executors[0].usage.cold_starts == 1
    assert second.duration_us == first.duration_us == 1_000_000
    assert first.gb_s > second.gb_s == pytest.approx(2.0)
    assert (second.source_requests, second.source_bytes) == (5, 3500)


def test_cold_starts_are_limited_to_a_burst_and_a_rate():
    bench = Bench(LAMBDA)
    for _ in range(6):
        bench.ask(50)
    for _ in range(3):
        bench.ask(50, at_s=2.5)
    bench.run()
    assert bench.throttled() == 2 + 1
    assert bench.world.executors[0].usage.functions_peak == 6


def test_requests_that_run_or_wait_too_long_fail():
    bench = Bench(FunctionsModel(1, overhead_s=61.0, spread=0.0))
    for _ in range(3):
        bench.ask(3)
    events = bench.run()
    assert isinstance(events[0], RequestFailed)
    assert events[-1].source_requests == 0, "it expired in the queue"
    bench = Bench(LAMBDA)
    bench.ask(50, expires_in_s=0.8)
    (event,) = bench.run()
    assert event.kind is FailureKind.TIMED_OUT
    assert event.gb_s > 1.6
