"""How many samples a request carries: all functions at a start, then few invocations, but in time."""

from __future__ import annotations

import math

import pytest

from superdl.coordinator.core.timing import LatencyModel, request_size


def taught(*, invocation_s: float, sample_s: float) -> LatencyModel:
    model = LatencyModel()
    for samples in (4, 16, 64) * 20:
        duration_s = sample_s * samples
        model.observe(samples, duration_s + invocation_s, duration_s)
    return model


@pytest.mark.parametrize(("idle", "size"), [(0, 64), (1, 64), (8, 32), (40, 7), (1000, 4)])
def test_at_the_start_a_batch_is_spread_over_all_functions(idle, size):
    assert request_size(LatencyModel(), wanted=256, idle=idle, slack_s=5.0, most=64) == size


def test_in_steady_state_the_invocation_is_a_twentieth_at_most():
    model = taught(invocation_s=0.01, sample_s=0.005)
    size = request_size(model, wanted=256, idle=4, slack_s=60.0, most=4096)
    assert size == 38
    assert model.invocation_s / (model.invocation_s + model.sample_s * size) == pytest.approx(0.05, rel=0.02)


def test_a_cheap_invocation_allows_small_requests():
    assert (
        request_size(taught(invocation_s=0.0, sample_s=0.005), wanted=256, idle=4, slack_s=60.0, most=64) == 1
    )


def test_a_near_deadline_makes_requests_small():
    model = taught(invocation_s=0.05, sample_s=0.005)
    sizes = [
        request_size(model, wanted=256, idle=64, slack_s=slack_s, most=4096)
        for slack_s in (60.0, 1.0, 0.5, 0.2)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 190
    assert model.expected_s(sizes[2]) <= 0.25


@pytest.mark.parametrize(("invocation_s", "size"), [(0.001, 16), (0.05, 16), (0.1, 20), (5.0, 1000)])
def test_what_is_late_is_spread_but_not_into_requests_that_are_mere_overhead(invocation_s, size):
    model = taught(invocation_s=invocation_s, sample_s=0.005)
    assert request_size(model, wanted=256, idle=64, slack_s=-1.0, most=4096) == pytest.approx(size, abs=1)
    assert request_size(model, wanted=256, idle=2, slack_s=-1.0, most=64) == 64


def test_without_a_deadline_that_can_be_met_requests_pay():
    model = taught(invocation_s=0.02, sample_s=0.002)
    assert request_size(model, wanted=256, idle=3000, slack_s=math.inf, most=4096) == pytest.approx(
        190, abs=1
    )
