"""Epochs of a random recipe: each has a sample set of its own, and there are never many at once."""

from __future__ import annotations

import pytest

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import JobClosed
from superdl.coordinator.core.state import EPOCH_SETS_MAX
from tests.coordinator.core.driver import Driver

FAR = [(7919 * number) % 100_003 for number in range(1, 301)]


@pytest.mark.parametrize("answered", [True, False])
def test_calls_for_far_off_epochs_cost_no_memory_and_the_last_one_is_served(answered):
    driver = Driver(size=64, random=True, lookahead_batches=2)
    plan = driver.open()
    for epoch in FAR:
        driver.ask(0, 8, epoch=epoch)
        if answered:
            driver.answer_all()
        assert len(driver.state.sets) <= EPOCH_SETS_MAX
    driver.read(3, missed=tuple(range(8)), epoch=FAR[-1])
    driver.answer_all()
    driver.read(3, missed=tuple(range(8)), epoch=FAR[-1], after_s=0.1)
    driver.answer_all()
    for audit in list(driver.audits):
        driver.tell(audit, [1000] * audit.indices.size)
    indices = plan.batch(FAR[-1], 3, 0).indices
    assert set(driver.core.states(driver.key(epoch=FAR[-1]), indices)) == {SampleState.RESIDENT}
    assert len(driver.state.sets) <= EPOCH_SETS_MAX
    driver.step(JobClosed("job", 0))
    assert all(samples.resident_count for samples in driver.state.sets.values())


def test_forged_reports_of_far_off_epochs_make_nothing():
    driver = Driver(size=64, random=True, lookahead_batches=2)
    driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    before = driver.core.job("job").counters.batches_read
    for epoch in FAR:
        assert driver.read(0, missed=(1,), corrupt=(1,), epoch=epoch + 100) == []
        assert driver.read(0, epoch=epoch + 100) == []
    assert len(driver.state.sets) == 1
    assert driver.core.job("job").counters.batches_read == before
