"""Stragglers are raced: the first answer wins, the second changes nothing, and races are few."""

from __future__ import annotations

import pytest

from superdl.coordinator.core.samples import SampleState
from tests.coordinator.core.driver import Driver

S = SampleState


def slow_one(**settings) -> tuple[Driver, object, object]:
    """A driver of which one request takes long and has a rival now; both are in flight."""
    driver = Driver(**{"size": 400, "capacity": 2, "request_samples": 4, "lookahead_batches": 4, **settings})
    driver.open(batch_size=4)
    for position in range(50):
        driver.ask(position, position + 4, yielded=position)
        driver.answer_all()
        driver.read(position)
    straggler = driver.requests[0]
    for request in driver.requests[1:]:
        driver.answer(request)
    driver.wait(1.0)
    rivals = [request for request in driver.requests if request.hedge_of == straggler.request_id]
    return driver, straggler, rivals[0] if rivals else None


def test_a_straggler_is_raced_by_a_request_for_the_same_samples():
    driver, straggler, rival = slow_one()
    assert rival.indices.tolist() == straggler.indices.tolist()
    assert rival.samples == straggler.samples
    assert driver.core.state.stragglers.hedges == driver.core.job("job").counters.hedges == 1


@pytest.mark.parametrize("first", ["straggler", "rival"])
def test_the_first_answer_wins_and_the_second_changes_nothing(first):
    driver, straggler, rival = slow_one()
    one, two = (straggler, rival) if first == "straggler" else (rival, straggler)
    before = driver.core.job("job").counters.samples_produced
    driver.answer(one)
    resident_bytes = driver.core.state.resident_bytes
    assert (driver.core.state.states(one.samples, one.indices) == S.RESIDENT).all()
    driver.answer(two)
    assert driver.core.state.resident_bytes == resident_bytes
    assert driver.core.job("job").counters.samples_produced == before + one.indices.size
    assert driver.core.job("job").counters.requests_in_flight == len(driver.core.state.requests)
    assert driver.state.reserved_bytes == sum(r.reserved_bytes for r in driver.state.requests.values())
