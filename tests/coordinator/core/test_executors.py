"""Which executor gets a request, how many run at once, and their size, by price, latency and failures."""

import pytest

from superdl.coordinator.core.capacity import Concurrency, LatencyModel, Pace, request_size
from superdl.coordinator.core.events import ExecutorResized
from superdl.coordinator.core.fleet import Deadline, Fleet, pick
from superdl.coordinator.core.settings import ExecutorFacts, Prices
from tests.coordinator.core.driver import Driver

CHEAP, DEAR = ExecutorFacts("cheap"), ExecutorFacts("dear", Prices(invocation=0.01))


def mixed(cheap=1, dear=8, **settings):
    driver = Driver(capacity=cheap, executors=(CHEAP, DEAR), **settings)
    driver.step(ExecutorResized(cheap, backlog=0))
    driver.step(ExecutorResized(dear, backlog=0, executor=1))
    return driver


def there(driver):
    """Return the executors of the open requests."""
    return [request.executor for request in driver.requests]


def test_the_cheapest_executor_is_used_first_and_the_next_takes_the_overflow():
    driver = mixed(cheap=2, dear=3)
    driver.open()
    assert there(driver) == [0, 0, 1, 1, 1]


def test_the_expensive_executor_is_not_used_if_the_cheap_one_keeps_up():
    """The cheaper executor takes 0.1 s per request, and the job needs one batch a second."""
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
    assert billed < 32, "only the first look-ahead overflows"


def fleet_of(*capacities):
    fleet = Fleet([ExecutorFacts(f"executor-{number}") for number in range(len(capacities))])
    for executor, capacity in zip(fleet.executors, capacities, strict=True):
        executor.concurrency.resize(ExecutorResized(capacity, backlog=0))
    return fleet


def eligible_for(*capacities):
    return fleet_of(*capacities).eligible(frozenset())


def learn(eligible, *seconds):
    """Teach each executor a time per request, whatever its size."""
    for executor, one_s in zip(eligible.executors, seconds, strict=False):
        for _ in range(20):
            executor.latency.observe(8, one_s, one_s)


def picked(eligible, now, slack_s=0.0, samples=1, **but):
    executor, _ = pick(eligible, Deadline(slack_s, samples=samples), now, **but)
    return None if executor is None else executor.name


def test_a_request_waits_for_the_cheaper_executor_if_it_can():
    eligible = eligible_for(1, 8)
    learn(eligible, 2.0, 0.5)
    eligible.executors[0].in_flight = 1
    assert picked(eligible, 0.0, slack_s=2.4, samples=8) == "executor-1"
    nobody, in_s = pick(eligible, Deadline(2.6, samples=8), 0.0)
    assert nobody is None
    assert in_s == pytest.approx(0.1)
    assert picked(eligible, 0.0, slack_s=2.6 - in_s - 1e-3, samples=8) == "executor-1"


def test_pauses_are_short_if_all_executors_are_set_aside():
    eligible = eligible_for(4, 8)
    for executor in eligible.executors:
        for number in range(8):
            executor.breaker.refused("gone", 100.0 * number, 100.0 * number)
    assert eligible.free_slots(701.0) == 0
    assert sorted(eligible.wake_times_s(701.0)) == [705.0, 705.0]
    assert picked(eligible, 705.0) == "executor-0"


def test_throttling_halves_the_limit_once_a_second_and_results_raise_it_again():
    concurrency = Concurrency()
    concurrency.resize(ExecutorResized(100, backlog=0))
    for at_s, limit in ((0.0, 40), (0.5, 40), (1.5, 20)):
        concurrency.throttled(2 * limit - 1, at_s)
        assert concurrency.limit == limit
    for _ in range(5000):
        concurrency.succeeded()
    assert concurrency.limit == 100


def taught_sizing(*, invocation_s, sample_s):
    model = LatencyModel()
    for samples in (4, 16, 64) * 20:
        duration_s = sample_s * samples
        model.observe(samples, duration_s + invocation_s, duration_s)
    return model


@pytest.mark.parametrize(("idle", "size"), [(0, 64), (1, 64), (8, 32), (40, 7), (1000, 4)])
def test_the_first_batch_is_spread_over_all_functions(idle, size):
    assert request_size(LatencyModel(), requested=256, idle=idle, slack_s=5.0, most=64) == size


def test_a_near_deadline_makes_requests_small():
    model = taught_sizing(invocation_s=0.05, sample_s=0.005)
    assert model.sample_s == pytest.approx(0.005)
    assert model.expected_s(100) == pytest.approx(0.05 + 0.5)
    assert model.invocation_s == pytest.approx(0.05)
    sizes = [
        request_size(model, requested=256, idle=64, slack_s=slack_s, most=4096)
        for slack_s in (60.0, 1.0, 0.5, 0.2)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 190
    assert model.expected_s(sizes[2]) <= 0.25


def reads(begin_s, step_s, count, *, stalled=False):
    """Batches read at a steady pace."""
    return [(begin_s + step_s * number, stalled) for number in range(1, count)]


@pytest.mark.parametrize(
    ("times", "least_s", "most_s"),
    [
        *(
            (reads(0.0, step_s, count), 0.98 * step_s, 1.02 * step_s)
            for step_s, count in ((0.002, 15_000), (0.1, 300), (2.0, 30))
        ),
        pytest.param(reads(0.0, 0.1, 200) + reads(20.0, 2.0, 50, stalled=True), 0.0, 0.25, id="waiting"),
        pytest.param(reads(0.0, 0.1, 200) + reads(320.0, 0.1, 40), 0.0, 0.25, id="a-pause"),
        pytest.param(reads(0.0, 1.0, 30) + reads(30.0, 0.1, 300, stalled=True), 0.098, 0.102, id="faster"),
    ],
)
def test_a_ranks_pace_is_measured_without_its_waits(times, least_s, most_s):
    pace = Pace(0.0)
    for at_s, stalled in times:
        pace.read(1, at_s, stalled=stalled)
    assert least_s <= pace.interval_s <= most_s
