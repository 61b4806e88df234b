"""A mix of executors: the cheapest is filled first, the next takes the overflow and the failures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from superdl.coordinator.core import dispatching
from superdl.coordinator.core.events import (
    ExecutorResized,
    ExecutorsIneligible,
    FailureKind,
    JobClosed,
    RecordsStored,
)
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.settings import ExecutorFacts, Prices
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import DATASET, Driver

CHEAP, DEAR = ExecutorFacts("cheap"), ExecutorFacts("dear", Prices(invocation=0.01))


def mixed(cheap: int = 1, dear: int = 8, **settings) -> Driver:
    driver = Driver(capacity=cheap, executors=(CHEAP, DEAR), **settings)
    driver.step(ExecutorResized(cheap, backlog=0))
    driver.step(ExecutorResized(dear, backlog=0, executor=1))
    return driver


def there(driver: Driver) -> list[int]:
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


def test_how_long_a_rank_waits_for_the_cheapest_is_its_own():
    """Not the time of one that has gone meanwhile, which is over: nothing would wake the other."""
    driver = mixed(size=800, cheap=1, dear=8, request_samples=8, lookahead_batches=32, hedge_share=0.0)
    driver.open()
    deferred = driver.state.fleet.groups[0].deferred
    for position in range(20):
        driver.ask(position, position + 4, yielded=position)
        driver.read(position, after_s=1.0)
        while any(request.executor for request in driver.requests):
            driver.answer(next(request for request in driver.requests if request.executor))
        if deferred.soonest_s() not in {None, math.inf}:
            break
        while driver.requests:
            driver.answer(driver.requests[0])
    until_s = deferred.soonest_s()
    assert until_s is not None
    assert driver.now_s < until_s < math.inf
    driver.step(JobClosed("job", 0))
    driver.wait(until_s + 1.0 - driver.now_s)
    driver.open("other", seed=1)
    while ("other", 0) not in deferred:  # the driver sees each time that something wakes who waits
        driver.answer(next(request for request in driver.requests if request.executor))


@pytest.mark.parametrize("times_s", [(5.0, math.inf), (math.inf, 5.0), (9.0, 5.0), (5.0, 9.0)])
def test_a_rank_that_may_decode_or_restore_waits_no_longer_than_the_sooner_says(monkeypatch, times_s):
    driver = mixed(store=True)
    driver.step(ExecutorResized(0))
    driver.step(ExecutorResized(0, executor=1))
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, np.arange(0, 64, 2), np.ones(32, dtype=np.uint32)))
    driver.ask(0, 8)
    decoding = driver.state.fleet.groups[0]
    monkeypatch.setattr(
        dispatching, "pick", lambda executors, *_, **__: (None, times_s[executors is not decoding])
    )
    driver.step(ExecutorResized(8))
    until_s = driver.state.fleet.groups[0].deferred.soonest_s()
    assert until_s == pytest.approx(driver.now_s + 5.0, abs=0.01)
    monkeypatch.undo()
    driver.wait(4.9)
    assert not driver.requests
    driver.wait(0.2)
    assert driver.requests


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


def test_the_ineligible_get_none_of_a_dataset():
    driver = mixed(cheap=4, dear=4)
    driver.open(ineligible=frozenset({0}))
    assert set(there(driver)) == {1}
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(0.1)
    assert set(there(driver)) == {1}
    driver.step(ExecutorsIneligible(DATASET, frozenset()))
    driver.wait(1.0)
    assert 0 in there(driver)


def test_the_cap_on_money_holds_though_another_executor_is_free():
    driver = mixed(cheap=2, dear=1000, size=6400, max_usd=0.05)
    driver.step(ExecutorResized(0, executor=1))
    driver.open()
    for _ in range(10):
        driver.answer(driver.requests[0])
    driver.step(ExecutorResized(0))
    driver.step(ExecutorResized(1000, backlog=0, executor=1))
    assert driver.state.fleet.executors[1].in_flight == 4, "until it is known what they cost"
    for _ in range(2000):
        if not driver.requests:
            break
        driver.answer(driver.requests[0])
    assert 0.03 < driver.state.ledger.total_usd <= 0.05


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
