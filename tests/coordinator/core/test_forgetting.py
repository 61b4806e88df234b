"""Memory that does not grow: empty sample sets of past epochs and unread datasets are forgotten."""

from __future__ import annotations

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import CacheReset, JobClosed
from superdl.coordinator.core.samples import footprint
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

TAKEN = int(footprint(1000))


def test_past_epochs_of_a_random_recipe_do_not_fill_memory():
    driver = Driver(size=16, random=True, budget_bytes=20 * TAKEN, lookahead_batches=2)
    driver.open()
    for epoch in range(50):
        for position in range(2):
            driver.ask(position, position + 1, epoch=epoch, yielded=position)
            driver.answer_all()
            driver.read(position, epoch=epoch, after_s=20.0)
            driver.answer_all()
    driver.wait(40.0)
    assert len(driver.state.sets) <= 4
    assert driver.core.resident_bytes <= driver.core.budget_bytes


def test_what_holds_something_is_kept():
    driver = Driver(size=16, random=True, lookahead_batches=2)
    driver.open()
    driver.answer_all()
    driver.ask(0, 2, epoch=9)
    driver.answer_all()
    driver.wait(100.0)
    assert driver.key(0) in driver.state.sets
    driver.step(CacheReset())
    driver.wait(100.0)
    assert driver.key(0) not in driver.state.sets


def test_what_is_under_way_is_kept():
    driver = Driver(size=16, random=True, lookahead_batches=2, attempts=5)
    driver.open()
    driver.ask(0, 2, epoch=9)
    driver.wait(100.0)
    request = next(one for one in driver.requests if one.samples == driver.key(0))
    driver.answer(request, Outcome.SOURCE_ERROR)
    assert driver.in_state(SampleState.WAITING, 0) == request.indices.tolist()


def test_a_set_that_was_forgotten_is_made_anew_for_a_late_reader():
    driver = Driver(size=16, random=True, lookahead_batches=2)
    plan = driver.open(at=(3, 0))
    driver.answer_all()
    driver.read(0, missed=(0, 1), epoch=1)
    driver.answer_all()
    assert driver.in_state(SampleState.RESIDENT, 1) == sorted(plan.batch(1, 0, 0).indices[:2].tolist())


def test_a_tombstone_of_a_forgotten_set_expires_in_peace():
    driver = Driver(size=8, random=True, lookahead_batches=2, attempts=1, tombstone_ttl_s=60.0)
    driver.open()
    driver.answer_all(Outcome.MISSING)
    driver.step(JobClosed("job", 0))
    driver.wait(45.0)
    assert driver.state.sets == {}
    driver.wait(60.0)
    assert driver.state.sets == {}
    assert not driver.state.expiries
