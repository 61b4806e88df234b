"""Executors are set aside when they refuse or go on failing, longer each time, and forgiven by success."""

from __future__ import annotations

import pytest

from superdl.coordinator.core.throttling import OPEN_MAX_S, CircuitBreaker


def until_s(breaker: CircuitBreaker) -> float:
    return breaker.open_until_s()


def test_at_first_all_is_well():
    breaker = CircuitBreaker()
    assert not breaker.tripped
    assert until_s(breaker) < 0


def test_a_refusal_sets_aside_at_once():
    breaker = CircuitBreaker()
    breaker.refused("throttled", 10.0, 10.0)
    assert breaker.tripped
    assert breaker.reason == "throttled"
    assert until_s(breaker) > 10.0


def test_failures_set_aside_once_there_are_several_in_a_row():
    breaker = CircuitBreaker()
    for now in (1.0, 2.0):
        breaker.failed("raised", now, now)
    breaker.worked()
    for now in (3.0, 4.0):
        breaker.failed("raised", now, now)
    assert not breaker.tripped
    breaker.failed("raised", 5.0, 5.0)
    assert breaker.tripped


def test_each_pause_is_longer_up_to_a_bound():
    breaker, now, pauses = CircuitBreaker(), 0.0, []
    for _ in range(12):
        breaker.refused("gone", now, now)
        pauses.append(until_s(breaker) - now)
        now = until_s(breaker)
    assert pauses == sorted(pauses)
    assert pauses[1] == pytest.approx(2 * pauses[0])
    assert pauses[-1] == pytest.approx(OPEN_MAX_S)


def test_many_that_fail_together_make_one_pause():
    breaker = CircuitBreaker()
    breaker.refused("gone", 0.5, 1.0)
    first_s = until_s(breaker)
    for _ in range(20):
        breaker.refused("gone", 0.9, 1.01)
    assert until_s(breaker) == first_s
    breaker.refused("gone", 1.02, 1.03)
    assert until_s(breaker) > first_s, "that one was made to see whether it works again"


def test_a_pause_can_be_cut_short():
    breaker = CircuitBreaker()
    for now in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0):
        breaker.refused("gone", now, now)
    assert breaker.open_until_s(open_max_s=1.0) == 501.0


def test_success_forgives_all():
    breaker = CircuitBreaker()
    breaker.refused("gone", 1.0, 1.0)
    breaker.refused("gone", 60.0, 60.0)
    breaker.worked()
    assert not breaker.tripped
    assert breaker.reason == ""
    breaker.refused("gone", 100.0, 100.0)
    assert until_s(breaker) == pytest.approx(100.5)
