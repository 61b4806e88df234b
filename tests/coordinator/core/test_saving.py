"""What functions decode that do not see the store is saved from the cache: last, and again if it fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import (
    CacheReset,
    ExecutorFacts,
    ExecutorResized,
    FailureKind,
    RecordsStored,
    SampleState,
)
from superdl.coordinator.core.queues import UnsavedQueue
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

BLIND, STORE = ExecutorFacts("blind", sees_store=False), ExecutorFacts("local", decodes=False)


def opened(*executors: ExecutorFacts, capacity: int = 2, **settings) -> Driver:
    """A job of eight batches of eight, whose functions do not see the store."""
    settings = {"request_samples": 16, "lookahead_batches": 8, **settings}
    driver = Driver(store=True, executors=executors or (BLIND, STORE), **settings)
    driver.step(ExecutorResized(capacity, executor=1))
    driver.open(shuffle=False)
    return driver


def saves(driver: Driver) -> list[list[int]]:
    return [request.indices.tolist() for request in driver.requests if request.kind is RequestKind.SAVE]


def decode_all(driver: Driver) -> None:
    """Answer all that decodes, and no save."""
    while decoding := [request for request in driver.requests if request.kind.fills_cache]:
        driver.answer(decoding[0], after_s=0.0)


def test_what_was_decoded_is_saved_in_the_order_of_its_coming_and_then_restored():
    driver = opened()
    driver.ask(0, 8)
    assert {(request.executor, request.kind) for request in driver.requests} == {(0, RequestKind.DECODE)}
    decode_all(driver)
    assert saves(driver) == [list(range(16))]  # one at a time, of two functions
    for pack in range(1, 5):
        (request,) = driver.requests
        assert (request.executor, request.kind) == (1, RequestKind.SAVE)
        driver.answer(request, pack=pack)
    assert not driver.requests
    assert driver.state.sets[driver.key()].stored(np.arange(64)).all()
    counters = driver.core.job("job").counters
    assert (counters.samples_produced, counters.samples_restored, counters.requests_in_flight) == (64, 0, 0)
    assert counters.record_bytes == 64 * RECORD_BYTES
    driver.step(CacheReset())
    assert {(request.executor, request.kind) for request in driver.requests} == {(1, RequestKind.RESTORE)}


def test_a_few_wait_a_moment_for_others():
    driver = opened(lookahead_batches=2, request_samples=64)
    driver.ask(0, 1)
    decode_all(driver)
    assert driver.wait(0.9) == []
    driver.wait(0.1)
    assert sum(map(len, saves(driver))) == len(driver.in_state(SampleState.RESIDENT)) > 0


def test_what_has_gone_or_is_stored_by_now_is_not_saved():
    driver = opened(capacity=0)
    driver.ask(0, 8)
    decode_all(driver)
    driver.step(RecordsStored(DATASET, np.arange(10), np.ones(10, dtype=np.uint32)))
    driver.step(ExecutorResized(1, executor=1))
    (request,) = driver.requests
    assert request.indices.tolist() == list(range(10, 16))
    driver.answer(request, pack=2, but={12: Outcome.NOT_CACHED})
    for _ in range(3):
        driver.answer(driver.requests[0], pack=3)
    assert not driver.requests  # number 12 is forgotten
    assert driver.state.sets[driver.key()].stored(np.arange(64)).tolist() == [n != 12 for n in range(64)]


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


def test_those_that_see_the_store_save_for_those_that_do_not_and_all_others_never():
    seeing = ExecutorFacts("seeing")
    mixed = opened(BLIND, seeing, capacity=4)
    mixed.ask(0, 8)
    while any(request.kind.fills_cache for request in mixed.requests):
        request = next(request for request in mixed.requests if request.kind.fills_cache)
        mixed.answer(request, **({"pack": 1} if request.kind.writes_pack else {}), after_s=0.0)
    mixed.wait(1.0)
    saved = {index for indices in saves(mixed) for index in indices}
    stored = mixed.state.sets[mixed.key()].stored(np.arange(64))
    assert saved
    assert not stored[sorted(saved)].any()
    for executors, settings in (
        ((seeing, ExecutorFacts("other")), {}),
        ((BLIND, ExecutorFacts("other", sees_store=False)), {}),
        ((BLIND, STORE), {"store_read_only": True}),
        ((BLIND, STORE), {"random": True}),
    ):
        driver = opened(*executors, **settings)
        driver.ask(0, 8)
        decode_all(driver)
        driver.wait(5.0)
        assert saves(driver) == []


def test_who_sees_the_store_saves_of_a_source_too_that_it_may_not_read():
    """Else it would be at the head of the queue for ever, before all that could be saved."""
    driver = Driver(store=True, executors=(BLIND, ExecutorFacts("seeing")), request_samples=64)
    driver.step(ExecutorResized(2, executor=1))
    driver.open(shuffle=False, ineligible=frozenset({1}))
    driver.ask(0, 8)
    decode_all(driver)
    driver.wait(1.0)
    assert [(request.executor, request.kind) for request in driver.requests] == [(1, RequestKind.SAVE)]


def all_stored(**settings) -> Driver:
    """A job whose samples all lie in the store, and no function that decodes is there."""
    driver = Driver(store=True, executors=(BLIND, STORE), capacity=0, request_samples=16, **settings)
    driver.step(ExecutorResized(4, executor=1))
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, np.arange(64), np.ones(64, dtype=np.uint32)))
    driver.ask(0, 8)
    return driver


def test_an_executor_for_the_store_alone_restores_though_no_other_is_there():
    driver = all_stored()
    driver.read(7, missed=(0, 1))
    assert {(request.executor, request.kind) for request in driver.requests} == {(1, RequestKind.RESTORE)}
    driver.answer_all()
    assert driver.in_state(SampleState.RESIDENT) == list(range(64))
    assert driver.core.job("job").counters.samples_restored == 64


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


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 1), st.sets(st.integers(0, 19), min_size=1)),
            st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 8)),
        ),
        max_size=30,
    )
)
def test_the_queue_keeps_order_and_each_sample_once(steps):
    queue, expected = UnsavedQueue(), {b"a": [], b"b": []}
    for now, (what, which, given_) in enumerate(steps):
        key, waiting = (b"a", b"b")[which], expected[(b"a", b"b")[which]]
        if what == "add":
            queue.add(key, 20, np.array(sorted(given_)), now)
            waiting += [index for index in sorted(given_) if index not in waiting]
        elif waiting:
            assert queue.holds(key, len(waiting))
            assert not queue.holds(key, len(waiting) + 1)
            assert queue.take(key, given_).tolist() == waiting[:given_]
            del waiting[:given_]
        assert (queue.first() is None) == (not any(expected.values()))
