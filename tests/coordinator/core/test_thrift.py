"""Caps on spending: first what nobody waits for stops, at the hard cap readers are told why."""

from __future__ import annotations

import numpy as np

from superdl.coordinator.core.events import RequestDone, Warn
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.settings import ExecutorFacts, Prices
from superdl.super_wire.record import SPENDING_CAP
from tests.coordinator.core.driver import Driver

ONE_USD_EACH = Prices(invocation=1.0)


def spend(driver: Driver) -> list[str]:
    """Answer all that is asked for, reading nothing; the warnings on the way."""
    told = []
    for _ in range(1000):
        if not driver.requests:
            return told
        told += [action.message for action in driver.answer(driver.requests[0]) if isinstance(action, Warn)]
    raise AssertionError


def capped(**settings) -> Driver:
    return Driver(
        **{
            "size": 400,
            "capacity": 1,
            "request_samples": 8,
            "executors": (ExecutorFacts("local", ONE_USD_EACH),),
            "lease_s": 1e6,
            **settings,
        }
    )


def test_without_caps_nothing_is_held_back():
    driver = capped()
    driver.open()
    assert spend(driver) == []
    assert driver.core.ledger.total_usd == driver.core.job("job").counters.invocations
    assert driver.core.spending is Spending.FREELY


def test_near_the_hard_cap_only_what_is_waited_for_is_produced():
    driver = capped(max_usd=20.0)
    driver.open()
    (warning,) = spend(driver)
    assert "max_usd 20" in warning
    assert driver.core.spending is Spending.SLOWED
    assert 15 <= driver.core.ledger.total_usd <= 19
    driver.ask(0, 40)
    assert driver.requests == []
    driver.read(39, missed=(0, 1, 2))
    assert len(driver.requested()) == 3
    spend(driver)
    assert (
        driver.core.states(driver.key(), driver.core.job("job").plan.batch(0, 39, 0).indices[:3])
        == SampleState.RESIDENT
    ).all()


def test_at_the_hard_cap_readers_are_told_and_nothing_is_spent():
    driver = capped(max_usd=5.0)
    driver.open()
    driver.ask(0, 40)
    for position in range(40):
        driver.read(position, missed=(0, 1))
        spend(driver)
    assert driver.core.spending is Spending.STOPPED
    assert driver.core.ledger.total_usd <= 5.0
    assert driver.requests == []
    assert driver.tombstones
    assert {tombstone.reason for tombstone in driver.tombstones} == {SPENDING_CAP}
    told = driver.tombstones[-1]
    assert "max_usd is 5" in told.messages[0]
    assert (driver.core.states(told.samples, told.indices) == SampleState.FAILED).all()
    driver.wait(61.0)
    assert (driver.core.states(told.samples, told.indices) == SampleState.ABSENT).all()


def test_beyond_the_cap_by_the_hour_it_goes_on_as_time_passes():
    driver = capped(max_usd_per_hour=120.0)
    driver.open()
    (warning,) = spend(driver)
    assert "max_usd_per_hour 120" in warning
    before = driver.core.job("job").counters.invocations
    assert before <= 12
    driver.wait(95.0)
    assert driver.core.job("job").counters.invocations > before


def test_a_failed_request_is_billed_too():
    driver = Driver(
        size=8, capacity=1, executors=(ExecutorFacts("local", Prices(invocation=1.0, gb_s=10.0)),)
    )
    driver.open()
    request = driver.requests[0]
    driver.requests.clear()
    driver.step(
        RequestDone(
            request_id=request.request_id,
            outcomes=np.full(request.indices.size, 5, dtype=np.uint8),
            record_bytes=np.zeros(request.indices.size, dtype=np.int64),
            source_bytes=0,
            fetch_us=0,
            decode_us=0,
            push_us=0,
            gb_s=0.5,
        )
    )
    assert driver.core.ledger.total_usd == 6.0
    assert driver.core.job("job").counters.gb_s == 0.5
