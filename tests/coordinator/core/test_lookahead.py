"""How far a rank looks ahead, in which order, and that nobody is asked for twice."""

from __future__ import annotations

import numpy as np

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.samples import footprint
from tests.coordinator.core.driver import RECORD_BYTES, Driver

TAKEN = int(footprint(np.array([RECORD_BYTES]))[0])


def test_looking_ahead_crosses_epochs():
    driver = Driver(size=16, lookahead_batches=4, request_samples=8, capacity=64, random=True)
    plan = driver.open()
    expected = plan.span(0, 0, 2, 0).indices.tolist() + plan.span(1, 0, 2, 0).indices.tolist()
    assert driver.requested() == expected
    epochs = [request.samples.epoch for request in driver.requests for _ in request.indices]
    assert epochs == [0] * 16 + [1] * 16


def test_the_window_is_bounded_by_the_rank_s_share_of_the_budget():
    driver = Driver(
        size=800, budget_bytes=TAKEN * 8 * 12, lookahead_batches=64, request_samples=8, capacity=64
    )
    driver.open()
    assert len(driver.requested()) == 6 * 8
    driver.open("other", seed=7)
    driver.answer_all()
    # Half the budget for two ranks: three batches each; what the first had asked for before stays.
    assert len(driver.in_state(SampleState.RESIDENT)) <= 9 * 8


def test_the_earliest_deadline_comes_first_over_jobs():
    driver = Driver(size=400, lookahead_batches=32, request_samples=8, capacity=1)
    driver.open("fast", seed=1)
    driver.open("slow", seed=2)
    for name in ("fast", "slow"):
        driver.ask(0, 40, job=name)
    for position in range(20):  # fast reads a batch every 0.1 s, slow one every second; functions do nothing
        driver.read(position, job="fast", after_s=0.1)
        if position % 10 == 9:
            driver.read(position // 10, job="slow")
    asked = {"fast": 0, "slow": 0}
    for _ in range(10):
        driver.answer(driver.requests[0], after_s=0.0)
        asked[driver.requests[-1].job] += 1
    # Within a second fast wants ten batches of 8 samples, slow one or two.
    assert asked["fast"] >= 7
    assert asked["slow"] >= 1


def steady(*, step_s: float, latency_s: float, batches: int = 120, **settings) -> Driver:
    """A job that reads a batch each ``step_s`` for a while, with functions that answer in time."""
    driver = Driver(**{"size": 8000, "capacity": 64, "request_samples": 8, **settings})
    driver.open()
    for position in range(batches):
        driver.ask(position, position + 1, yielded=position)
        driver.now_s += latency_s
        for request in list(driver.requests):
            driver.answer(request, after_s=0.0)
        driver.read(position, after_s=max(step_s - latency_s, 0.0))
    return driver


def ahead(driver: Driver) -> int:
    return driver.core.lookahead_batches(driver.core.job("job"))


def test_the_window_follows_latency_and_pace():
    slow, fast = steady(step_s=1.0, latency_s=0.2), steady(step_s=0.25, latency_s=0.2)
    assert ahead(slow) < ahead(fast) < 64
    far = steady(step_s=0.25, latency_s=0.24, lookahead_batches=9)
    assert ahead(far) <= 9, "and what is configured bounds it"


def test_stalls_make_it_cautious_and_calm_lets_it_forget():
    driver = steady(step_s=0.5, latency_s=0.1)
    before = ahead(driver)
    cursor = driver.core.job("job").cursors[0]
    for position in range(120, 124):
        driver.ask(position, position + 1, yielded=position)
        driver.read(position, missed=(0,))
        driver.read(position, hits=7, after_s=0.5)
        driver.answer_all()
    assert cursor.caution > 4
    assert ahead(driver) > before
    for position in range(124, 500):
        driver.ask(position, position + 1, yielded=position)
        driver.read(position, after_s=0.5)
        driver.answer_all()
    assert cursor.caution < 1.2
