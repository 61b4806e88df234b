"""A source that gives nothing for a while: no attempt is lost, and it is not asked for everything at once."""

from __future__ import annotations

import itertools

import pytest

from superdl.coordinator.core import SampleState
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

ANSWER_S = 1.5  # of a function whose source is throttled


def reading(size: int) -> Driver:
    driver = Driver(size=size, capacity=64, lookahead_batches=1000)
    driver.open(batch_size=64, shuffle=False)
    driver.ask(0, -(-size // 64))
    return driver


def answer_those_in_flight(driver: Driver, outcome: Outcome) -> int:
    """Answer what is in flight, after a while; return how many samples that were."""
    requests = list(driver.requests)
    driver.wait(ANSWER_S)
    driver.ask(0, 1)  # a sign of life
    for request in requests:
        driver.answer(request, outcome, after_s=0.0)
    return sum(request.indices.size for request in requests)


@pytest.mark.parametrize(
    ("size", "outage_s"),
    [
        *itertools.product([2, 30], [5, 20, 60]),
        (5000, 5),
        *(pytest.param(5000, outage_s, marks=pytest.mark.slow) for outage_s in (20, 60)),
    ],
)
def test_an_outage_is_probed_by_few_requests_and_costs_no_sample(size, outage_s):
    driver = reading(size)
    asked = 0
    while driver.now_s < outage_s:
        asked += answer_those_in_flight(driver, Outcome.UNAVAILABLE)
    assert asked <= size + 64 * 2 * (3 + outage_s / 2), "each once, then one request in each growing wait"
    back_s = driver.now_s
    while len(driver.in_state(SampleState.RESIDENT)) < size:
        answer_those_in_flight(driver, Outcome.CACHED)
        assert driver.now_s < back_s + 20
    assert driver.tombstones == []
    assert driver.core.unavailable_for_s(driver.key()) == 0


def test_a_throttled_subset_takes_ever_fewer_places_and_the_others_flow():
    driver = reading(640)
    throttled = set(range(640)[::10])
    places = []
    for _ in range(40):
        requests = list(driver.requests)
        driver.wait(ANSWER_S)
        for request in requests:
            away = throttled.intersection(request.indices.tolist())
            driver.answer(request, but=dict.fromkeys(away, Outcome.UNAVAILABLE), after_s=0.0)
        places.append(len(requests))
    assert set(driver.in_state(SampleState.RESIDENT)) == set(range(640)) - throttled
    assert sum(places[-10:]) < sum(places[1:11]), "the waits grow"
    assert driver.tombstones == []
    assert driver.core.unavailable_for_s(driver.key()) > 50
