"""How much an executor is given: a bound that follows throttling, and a circuit breaker."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.coordinator.core.events import ExecutorResized
from superdl.coordinator.core.throttling import OPEN_MAX_S, CircuitBreaker, Concurrency


def made(capacity=100, *, backlog=0, burst=None, per_s=math.inf) -> Concurrency:
    concurrency = Concurrency()
    concurrency.resize(ExecutorResized(capacity, burst, per_s, backlog), 0.0)
    return concurrency


def test_a_ramp_is_followed():
    concurrency = made(1000, burst=10, per_s=5.0)
    assert concurrency.limit(0.0) == 10
    for in_flight in range(1, 11):
        concurrency.used(in_flight, 0.0)
    assert concurrency.places(10, 0.0) == 0
    assert concurrency.more_at_s(0.0) == 0.2
    assert concurrency.limit(1.0) == 15, "five environments more each second"
    concurrency.used(15, 1.0)
    assert concurrency.places(0, 1.0) == 15, "environments that were in use are warm"
    assert concurrency.limit(1000.0) == 25, "no more than a burst is saved up"


def test_throttling_halves_at_most_once_a_second_and_answers_raise_again():
    concurrency = made(100)
    concurrency.throttled(79, 0.0)
    concurrency.throttled(79, 0.5)
    assert concurrency.limit(0.5) == 40
    concurrency.throttled(39, 1.5)
    assert concurrency.limit(1.5) == 20
    for _ in range(25):
        concurrency.succeeded()
    assert concurrency.limit(2.0) == 21
    for _ in range(5000):
        concurrency.succeeded()
    assert concurrency.limit(2.0) == 100


@given(
    st.lists(
        st.tuples(st.sampled_from(["use", "throttle", "succeed"]), st.integers(0, 200), st.floats(0.0, 20.0)),
        max_size=60,
    )
)
@example([("use", 8, 12.214929095477702), ("use", 0, 4.0)])  # too little is missing for a clock
def test_the_limit_lies_between_one_and_what_is_stated(steps):
    concurrency, now = made(150, burst=20, per_s=2.0), 0.0
    for kind, in_flight, passed_s in steps:
        now += passed_s
        if kind == "use":
            concurrency.used(min(in_flight, concurrency.limit(now)), now)
        elif kind == "throttle":
            concurrency.throttled(in_flight, now)
        else:
            concurrency.succeeded()
        assert 1 <= concurrency.limit(now) <= 150
        more_at_s = concurrency.more_at_s(now)
        assert more_at_s is None or more_at_s > now


def until_s(breaker: CircuitBreaker) -> float:
    return breaker.open_until_s()


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
