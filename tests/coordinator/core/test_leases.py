"""Ranks that show no sign of life are set aside, not forgotten, until they come back or time is up."""

from __future__ import annotations

import numpy as np

from superdl.coordinator.core.events import JobClosed
from superdl.coordinator.core.room import next_use_s
from tests.coordinator.core.driver import Driver


def two_jobs(**settings) -> Driver:
    driver = Driver(**{"size": 200, "capacity": 1, "request_samples": 8, "lease_s": 15.0, **settings})
    driver.open("gone", seed=1)
    driver.open("here", seed=2)
    return driver


def test_a_lease_that_is_not_renewed_lapses():
    driver = two_jobs()
    driver.wait(14.9)
    assert not driver.core.job("gone").lapsed
    driver.wait(0.2)
    assert driver.core.job("gone").lapsed


def test_asking_and_reading_renew_it():
    driver = two_jobs()
    for second in range(40):
        driver.wait(1.0)
        if second % 2:
            driver.ask(0, 1, job="here")
        else:
            driver.read(0, job="here")
    assert driver.core.job("gone").lapsed
    assert not driver.core.job("here").lapsed


def test_nothing_is_asked_for_a_job_that_has_lapsed():
    driver = two_jobs()
    driver.wait(20.0)
    driver.ask(0, 1, job="here")
    before = driver.core.job("gone").counters.invocations
    driver.answer_all()
    assert driver.core.job("gone").counters.invocations == before
    assert driver.core.job("here").counters.invocations > 0
    assert driver.core.job("gone").cursors[0].wanted_bytes == 0, "and it takes no share of the budget"


def test_it_goes_on_where_it_was_when_it_comes_back():
    driver = two_jobs()
    driver.answer_all()
    driver.ask(0, 8, job="gone", yielded=4)
    for position in range(4):
        driver.read(position, job="gone")
    driver.wait(600.0)
    assert driver.core.job("gone").lapsed
    cursor = driver.core.job("gone").cursors[0]
    assert cursor.watermark == 4
    driver.ask(4, 8, job="gone", yielded=4)
    driver.answer_all()
    assert not driver.core.job("gone").lapsed
    assert cursor.watermark == 4
    assert cursor.lookahead > 8


def test_it_is_forgotten_after_half_an_hour():
    driver = two_jobs(forget_s=1800.0)
    driver.wait(1790.0)
    assert driver.core.job("gone") is not None
    driver.wait(70.0)
    assert driver.core.job("gone") is None


def test_what_only_a_lapsed_job_will_read_goes_before_what_others_will_and_after_what_nobody_will():
    driver = two_jobs()
    everything = np.arange(driver.size)
    alive_s = next_use_s(driver.key(), everything, [driver.core.job("here")])
    driver.wait(14.0)
    driver.ask(0, 1, job="here")
    driver.wait(2.0)
    lapsed_s = next_use_s(driver.key(), everything, [driver.core.job("gone")])
    assert lapsed_s.min() > alive_s.max()
    assert np.isfinite(lapsed_s).all()
    assert (next_use_s(driver.key(), everything, driver.core.jobs) <= alive_s.max()).all()


def test_one_silent_rank_does_not_hold_its_job_back():
    driver = Driver(size=200, capacity=4, lease_s=15.0)
    for rank in (0, 1):
        driver.open("job", rank=rank, replicas=2, batch_size=4)
    driver.answer_all()
    driver.ask(0, 20, rank=0)
    for position in range(15):
        driver.read(position, rank=0)
        driver.wait(1.5)
    job = driver.core.job("job")
    assert not job.lapsed
    assert [cursor.lapsed for cursor in job.cursors.values()] == [False, True]
    assert job.watermark == 15


def test_closing_a_job_that_has_lapsed_leaves_nothing():
    driver = two_jobs()
    driver.wait(20.0)
    driver.step(JobClosed("gone", 0))
    driver.wait(60.0)
    assert driver.core.job("gone") is None
