"""What is measured of time: latency, pace, and the size of a request that follows."""

from __future__ import annotations

import random

import pytest

from superdl.coordinator.core.timing import LatencyModel, Pace, request_size


def taught(
    answers: int = 200, *, fixed_s=0.02, sample_s=0.005, around_s=0.01, sizes=(4, 16, 64)
) -> LatencyModel:
    model = LatencyModel()
    for number in range(answers):
        samples = sizes[number % len(sizes)]
        duration_s = fixed_s + sample_s * samples
        model.observe(samples, duration_s + around_s, duration_s)
    return model


def test_the_line_over_the_number_of_samples_is_found():
    model = taught()
    assert model.sample_s == pytest.approx(0.005)
    assert model.expected_s(100) == pytest.approx(0.02 + 0.5 + 0.01)
    assert model.invocation_s == pytest.approx(0.03)


def test_a_quantile_tells_how_long_the_slow_ones_take_for_any_size():
    model, rng = LatencyModel(), random.Random(1)
    for _ in range(256):
        samples = rng.choice((8, 32))
        model.observe(samples, samples * 0.01 * (5.0 if rng.random() < 0.1 else 1.0), samples * 0.01)
    mean_s, slow_s = model.expected_s(100), model.quantile_s(100, 0.99)
    assert slow_s > 2.5 * mean_s
    assert model.quantile_s(100, 0.5) < mean_s
    assert model.quantile_s(50, 0.99) < slow_s


def taught_sizing(*, invocation_s: float, sample_s: float) -> LatencyModel:
    model = LatencyModel()
    for samples in (4, 16, 64) * 20:
        duration_s = sample_s * samples
        model.observe(samples, duration_s + invocation_s, duration_s)
    return model


@pytest.mark.parametrize(("idle", "size"), [(0, 64), (1, 64), (8, 32), (40, 7), (1000, 4)])
def test_at_the_start_a_batch_is_spread_over_all_functions(idle, size):
    assert request_size(LatencyModel(), wanted=256, idle=idle, slack_s=5.0, most=64) == size


def test_a_near_deadline_makes_requests_small():
    model = taught_sizing(invocation_s=0.05, sample_s=0.005)
    sizes = [
        request_size(model, wanted=256, idle=64, slack_s=slack_s, most=4096)
        for slack_s in (60.0, 1.0, 0.5, 0.2)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 190
    assert model.expected_s(sizes[2]) <= 0.25


@pytest.mark.parametrize(("invocation_s", "size"), [(0.001, 16), (0.05, 16), (0.1, 20), (5.0, 1000)])
def test_what_is_late_is_spread_but_not_into_requests_that_are_mere_overhead(invocation_s, size):
    model = taught_sizing(invocation_s=invocation_s, sample_s=0.005)
    assert request_size(model, wanted=256, idle=64, slack_s=-1.0, most=4096) == pytest.approx(size, abs=1)
    assert request_size(model, wanted=256, idle=2, slack_s=-1.0, most=64) == 64


def after(reads: list[tuple[float, bool]]) -> float:
    pace = Pace(0.0)
    for at_s, stalled in reads:
        pace.read(1, at_s, stalled=stalled)
    return pace.interval_s


@pytest.mark.parametrize("interval_s", [0.002, 0.1, 2.0])
def test_a_steady_pace_is_found(interval_s):
    count = int(30 * max(1.0, 1.0 / interval_s))
    assert after([(interval_s * n, False) for n in range(1, count)]) == pytest.approx(interval_s, rel=0.02)


def test_waiting_is_no_slow_pace():
    steady = [(0.1 * n, False) for n in range(1, 200)]
    waiting = [(20.0 + 2.0 * n, True) for n in range(1, 50)]
    assert after(steady + waiting) < 0.25


def test_a_pause_is_no_change_of_pace():
    steady = [(0.1 * n, False) for n in range(1, 200)]
    going_on = [(320.0 + 0.1 * n, False) for n in range(40)]
    assert after([*steady, *going_on]) < 0.25


def test_a_faster_pace_is_believed_though_readers_wait():
    slow = [(1.0 * n, False) for n in range(1, 30)]
    fast = [(30.0 + 0.1 * n, True) for n in range(1, 300)]
    assert after(slow + fast) == pytest.approx(0.1, rel=0.02)
