"""Which executor gets a request, how many at once, and how large: by price, latency and failures."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.coordinator.core.capacity import (
    OPEN_MAX_S,
    CircuitBreaker,
    Concurrency,
    LatencyModel,
    Pace,
    request_size,
)
from superdl.coordinator.core.events import (
    ExecutorResized,
    FailureKind,
)
from superdl.coordinator.core.fleet import Deadline, Fleet, pick
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.settings import ExecutorFacts, Prices
from superdl.coordinator.core.teams import NO_TEAM, Teams
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

CHEAP, DEAR = ExecutorFacts("cheap"), ExecutorFacts("dear", Prices(invocation=0.01))


def mixed(cheap=1, dear=8, **settings):
    driver = Driver(capacity=cheap, executors=(CHEAP, DEAR), **settings)
    driver.step(ExecutorResized(cheap, backlog=0))
    driver.step(ExecutorResized(dear, backlog=0, executor=1))
    return driver


def there(driver):
    """The executors of the open requests."""
    return [request.executor for request in driver.requests]


def test_the_cheapest_is_filled_first_and_the_next_takes_the_overflow():
    driver = mixed(cheap=2, dear=3)
    driver.open()
    assert there(driver) == [0, 0, 1, 1, 1]


def test_a_job_that_the_cheapest_keeps_up_with_costs_nothing():
    """Each request takes 0.1 s there, and the job wants a batch a second."""
    driver = mixed(size=800, cheap=2, dear=8, request_samples=8, lookahead_batches=32, hedge_share=0.0)
    driver.open()
    driver.answer_all()
    for position in range(90):
        driver.ask(position, position + 4, yielded=position)
        driver.read(position, after_s=1.0)
        while driver.requests:
            driver.answer(driver.requests[0], after_s=0.01)
    billed = driver.state.fleet.executors[1].requests
    for position in range(10):
        driver.ask(position, position + 4, epoch=0)
    assert driver.state.fleet.executors[0].requests > 3 * billed
    assert billed < 32, "only the first look-ahead, of which nothing was known, overflows"


@pytest.mark.parametrize("kind", [FailureKind.THROTTLED, FailureKind.UNAVAILABLE])
def test_what_one_refuses_another_has_at_once(kind):
    driver = mixed(dear=100)
    driver.open(batch_size=8)
    refused = driver.requests[0]
    assert refused.executor == 0
    driver.fail(refused, kind)
    again = [request for request in driver.requests if set(request.indices) & set(refused.indices)]
    assert [request.executor for request in again] == [1] * len(again)
    assert sorted(index for one in again for index in one.indices) == sorted(refused.indices)
    assert not driver.state.set_of(driver.key()).attempts.any()


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.CACHE_ERROR, Outcome.STEP_ERROR])
def test_one_that_may_not_read_or_write_is_set_aside_too(outcome):
    driver = mixed(cheap=1, dear=1, attempts=5)
    driver.open()
    for _ in range(2000):
        if not driver.requests:
            if not driver.wait(5.0):
                break
            continue
        request = driver.requests[0]
        driver.answer(request, outcome if request.executor == 0 else Outcome.CACHED)
    assert not driver.tombstones
    assert driver.in_state(SampleState.RESIDENT) == list(range(driver.size))
    assert driver.state.fleet.executors[1].samples == driver.size


def test_an_executor_that_never_answers_is_raced_by_the_other_and_set_aside():
    driver = mixed(cheap=4, dear=100, size=640)
    driver.open()
    until_s = driver.now_s + 7.0
    while driver.now_s < until_s:
        for request in [one for one in driver.requests if one.executor == 1]:
            driver.answer(request)
        driver.wait(0.1)
    first = driver.core.job("job").plan.batch(0, 0, 0).indices
    assert (driver.core.state.states(driver.key(), first) == SampleState.RESIDENT).all()
    assert "when another executor had answered" in driver.state.fleet.executors[0].breaker.reason


def fleet_of(*capacities):
    fleet = Fleet([ExecutorFacts(f"executor-{number}") for number in range(len(capacities))])
    for executor, capacity in zip(fleet.executors, capacities, strict=True):
        executor.concurrency.resize(ExecutorResized(capacity, backlog=0), 0.0)
    return fleet


def eligible_for(*capacities):
    return fleet_of(*capacities).eligible(frozenset())


def learn(eligible, *seconds):
    """Requests take so long at each, whatever they carry."""
    for executor, one_s in zip(eligible.executors, seconds, strict=False):
        for _ in range(20):
            executor.latency.observe(8, one_s, one_s)


def picked(eligible, now, slack_s=0.0, samples=1, **but):
    executor, _ = pick(eligible, Deadline(slack_s, samples=samples), now, **but)
    return None if executor is None else executor.name


def test_what_can_wait_is_kept_for_the_cheaper():
    eligible = eligible_for(1, 8)
    learn(eligible, 2.0, 0.5)
    eligible.executors[0].in_flight = 1
    assert picked(eligible, 0.0, slack_s=2.4, samples=8) == "executor-1"
    nobody, in_s = pick(eligible, Deadline(2.6, samples=8), 0.0)
    assert nobody is None
    assert in_s == pytest.approx(0.1)
    assert picked(eligible, 0.0, slack_s=2.6 - in_s - 1e-3, samples=8) == "executor-1"


def test_what_has_failed_at_the_cheaper_waits_for_it_no_more():
    eligible = eligible_for(8, 8)
    learn(eligible, 2.0, 0.5)
    assert picked(eligible, 0.0, slack_s=60.0, samples=8) == "executor-0"
    assert picked(eligible, 0.0, slack_s=60.0, samples=8, failed_by=0) == "executor-1"
    eligible.executors[1].in_flight = 8
    assert pick(eligible, Deadline(60.0, samples=8), 0.0, failed_by=0) == (None, math.inf)
    eligible.executors[1].breaker.refused("gone", 0.0, 0.0)
    assert picked(eligible, 0.0, slack_s=60.0, samples=8, failed_by=0) == "executor-0"


def test_where_all_are_set_aside_no_pause_is_long():
    eligible = eligible_for(4, 8)
    for executor in eligible.executors:
        for number in range(8):
            executor.breaker.refused("gone", 100.0 * number, 100.0 * number)
    assert eligible.places(701.0) == 0
    assert sorted(eligible.wake_times_s(701.0)) == [705.0, 705.0]
    assert picked(eligible, 705.0) == "executor-0"


def test_the_only_one_that_can_produce_a_dataset_is_never_set_aside_for_it():
    fleet = fleet_of(4, 8)
    fleet.executors[0].breaker.refused("throttled", 1.0, 1.0)
    only, both = fleet.eligible(frozenset({1})), fleet.eligible(frozenset())
    assert only.places(1.0) == 4
    assert picked(only, 1.0) == "executor-0"
    assert not only.can_turn_elsewhere(fleet.executors[0])
    assert both.places_of(fleet.executors[0], 1.0) == 0


def test_a_rival_runs_elsewhere_if_it_can():
    eligible = eligible_for(4, 1)
    assert picked(eligible, 0.0, other_than=0) == "executor-1"
    eligible.executors[1].in_flight = 1
    assert picked(eligible, 0.0, other_than=0) == "executor-0"


def test_of_several_groups_the_one_with_the_earliest_deadline_goes_first():
    fleet = fleet_of(1, 1)
    late, soon = fleet.eligible(frozenset()), fleet.eligible(frozenset({1}))
    turn = Teams().turn

    def soonest():
        found = fleet.soonest(0.0, turn)
        return found and (found.ranks, found.deadline_s)

    assert soonest() is None
    late.ready[NO_TEAM].add(("a", 0), 5.0)
    soon.ready[NO_TEAM].add(("b", 0), 3.0)
    assert soonest() == (soon.ready[NO_TEAM], 3.0)
    fleet.executors[0].in_flight = 1
    assert soonest() == (late.ready[NO_TEAM], 5.0), "the other has no place"


def made(capacity=100, *, backlog=0, burst=None, per_s=math.inf):
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


def until_s(breaker):
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


def taught(answers=200, *, fixed_s=0.02, sample_s=0.005, around_s=0.01, sizes=(4, 16, 64)):
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


def taught_sizing(*, invocation_s, sample_s):
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


def after(reads):
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
