"""What the cache really holds: asked where in doubt, believed, and believed to hold nothing after a reset."""

from __future__ import annotations

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import CacheEvicted, JobClosed
from tests.coordinator.core.driver import RECORD_BYTES, Driver

S = SampleState


def found_before(**settings) -> Driver:
    """A coordinator that finds a cache with something in it."""
    driver = Driver(size=16, known_absent=False, lookahead_batches=2, capacity=64, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 2)
    return driver


def test_what_nobody_has_asked_about_is_asked_before_it_is_produced():
    driver = found_before()
    assert driver.requests == []
    first, second = driver.audits
    driver.tell(first, [1000, 0, -80, 1000, 1000, 1000, 1000, 1000])
    assert driver.requested() == [1]
    assert driver.in_state(S.FAILED) == [2]
    driver.tell(second, [1000] * 8)
    assert len(driver.in_state(S.RESIDENT)) == 14


def test_once_the_server_evicts_what_is_resident_is_asked_about_as_ranks_come_to_it():
    driver = Driver(size=64, capacity=64, request_samples=8, lookahead_batches=2)
    plan = driver.open()
    driver.ask(0, 8)
    for position in range(7):
        driver.answer_all()
        driver.read(position)
    driver.answer_all()
    assert driver.core.samples_in(S.RESIDENT) == 64
    driver.step(CacheEvicted())
    asked = [index for audit in driver.audits for index in audit.indices.tolist()]
    wanted = plan.span(0, 7, 8, 0).indices.tolist() + plan.span(1, 0, 1, 0).indices.tolist()
    assert sorted(asked) == sorted(set(wanted))
    lost = asked[:3]
    for audit in list(driver.audits):
        driver.tell(audit, [0 if index in lost else RECORD_BYTES for index in audit.indices.tolist()])
    assert driver.requested() == lost
    driver.answer_all()
    driver.read(7)
    for found in driver.audits:
        assert not set(found.indices.tolist()).intersection(lost), "what was produced since is not in doubt"


def two_lanes_at_one_audit() -> tuple[Driver, list]:
    """Two jobs on what an earlier coordinator may have left; the second has passed over what is asked."""
    driver = Driver(size=64, known_absent=False, lookahead_batches=4, capacity=64)
    driver.open("first", shuffle=False)
    driver.open("second", shuffle=False)
    cursor = driver.core.job("second").cursors[0]
    assert cursor.lookahead == 4
    return driver, list(driver.audits)


def test_what_is_found_absent_is_told_to_all_who_passed_over_it():
    driver, audits = two_lanes_at_one_audit()
    driver.step(JobClosed("first", 0))
    for audit in audits:
        driver.tell(audit, [0] * audit.indices.size)
    assert sorted(driver.requested()) == list(range(32))
    assert driver.state.audit_watchers == {}
