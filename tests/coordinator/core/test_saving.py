"""What functions decode that do not see the store is saved from the cache: last, and again if it fails."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.coordinator.core import (
    CacheReset,
    ExecutorFacts,
    ExecutorResized,
    FailureKind,
    RecordsStored,
    SampleState,
)
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

BLIND, STORE = ExecutorFacts("blind", sees_store=False), ExecutorFacts("local", decodes=False)


def opened(*executors, capacity=2, **settings):
    """A job of eight batches of eight, whose functions do not see the store."""
    settings = {"request_samples": 16, "lookahead_batches": 8, **settings}
    driver = Driver(store=True, executors=executors or (BLIND, STORE), **settings)
    driver.step(ExecutorResized(capacity, executor=1))
    driver.open(shuffle=False)
    return driver


def saves(driver):
    return [request.indices.tolist() for request in driver.requests if request.kind is RequestKind.SAVE]


def decode_all(driver):
    """Answer all that decodes, and no save."""
    while decoding := [request for request in driver.requests if request.kind.fills_cache]:
        driver.answer(decoding[0], after_s=0.0)


def test_a_few_wait_a_moment_for_others():
    driver = opened(lookahead_batches=2, request_samples=64)
    driver.ask(0, 1)
    decode_all(driver)
    assert driver.wait(0.9) == []
    driver.wait(0.1)
    assert sum(map(len, saves(driver))) == len(driver.in_state(SampleState.RESIDENT)) > 0


@pytest.mark.parametrize("how", ["trouble", "crashed", "refused", "no pack"])
def test_where_the_store_takes_nothing_one_save_at_a_time_tries_it(how):
    driver = opened(capacity=8, lease_s=1e6, forget_s=1e6)
    driver.ask(0, 8)
    decode_all(driver)
    tried = 0
    while driver.requests:
        request = driver.requests[0]
        tried += 1
        if how == "trouble":
            driver.answer(request, store_trouble="disk full", after_s=0.0)
        elif how == "no pack":
            driver.answer(request, Outcome.CACHE_ERROR, after_s=0.0)
        else:
            driver.fail(request, FailureKind.CRASHED if how == "crashed" else FailureKind.UNAVAILABLE)
        assert tried < 20
    assert "nothing can be written to the store by the executor local" in driver.core.store_trouble
    for _ in range(3):
        driver.wait(60.0)
        (request,) = driver.requests
        driver.answer(request, store_trouble="disk full", after_s=0.0)
        assert not driver.requests
    assert len(driver.warnings) == 1
    driver.wait(60.0)
    driver.answer(driver.requests[0], pack=1)
    assert driver.core.store_trouble == ""
    for pack in range(2, 9):
        for request in list(driver.requests):
            driver.answer(request, pack=pack)
    assert driver.state.sets[driver.key()].stored(np.arange(64)).all()


def test_a_reader_that_waits_for_room_does_not_wait_for_a_save():
    """Two samples fit: what is in the cache makes way for what is missed, though it is being saved."""
    driver = opened(budget_bytes=2 * (RECORD_BYTES + 300), lookahead_batches=1, request_samples=2)
    driver.ask(0, 1)
    decode_all(driver)
    driver.wait(1.0)
    assert saves(driver)
    driver.ask(0, 8, yielded=8)
    driver.read(4, missed=(0, 1))
    decode_all(driver)
    assert {32, 33} <= set(driver.in_state(SampleState.RESIDENT))


def all_stored(**settings):
    """A job whose samples all lie in the store, and no function that decodes is there."""
    driver = Driver(store=True, executors=(BLIND, STORE), capacity=0, request_samples=16, **settings)
    driver.step(ExecutorResized(4, executor=1))
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, np.arange(64), np.ones(64, dtype=np.uint32)))
    driver.ask(0, 8)
    return driver


def test_one_for_the_store_alone_that_fails_is_left_alone_and_tried_by_one_request():
    driver = all_stored(lease_s=1e6, forget_s=1e6)
    driver.step(ExecutorResized(8))
    while restoring := [request for request in driver.requests if request.kind is RequestKind.RESTORE]:
        driver.fail(restoring[0], FailureKind.UNAVAILABLE)
    driver.answer_all()
    assert driver.in_state(SampleState.RESIDENT) == list(range(64))
    assert driver.core.job("job").counters.samples_produced > 0
    driver.step(CacheReset(), after_s=60.0)
    (probe,) = [request for request in driver.requests if request.kind is RequestKind.RESTORE]
    driver.answer(probe)
    driver.answer_all()
    driver.step(CacheReset())
    assert {request.kind for request in driver.requests} == {RequestKind.RESTORE}
