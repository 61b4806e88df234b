"""What lies in the store comes from there; what no restore brings is decoded, at once and within bounds."""

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
    PacksLost,
    RecordsStored,
    SampleState,
)
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

EVENS = np.arange(0, 64, 2)
ALL = np.arange(64)


def opened(indices=EVENS, *, packs=1, ask: bool = True, **settings) -> Driver:
    """A job of eight batches of eight, by default in plan order, of which some samples lie in the store."""
    driver = Driver(store=True, **settings)
    driver.step(ExecutorResized(0))  # so that nothing is asked for before places are known
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, indices, np.broadcast_to(np.uint32(packs), indices.shape)))
    if ask:
        driver.ask(0, 8)
    driver.step(ExecutorResized(settings.get("capacity", 8)))
    return driver


def restored(driver: Driver) -> list[int]:
    return sorted(
        index for it in driver.requests if it.kind is RequestKind.RESTORE for index in it.indices.tolist()
    )


def decoded(driver: Driver) -> list[int]:
    return sorted(
        index for it in driver.requests if it.kind is not RequestKind.RESTORE for index in it.indices.tolist()
    )


def test_what_is_stored_is_restored_and_what_is_decoded_is_kept():
    driver = opened(lookahead_batches=4, capacity=20)
    assert restored(driver) == list(range(0, 32, 2))
    assert decoded(driver) == list(range(1, 32, 2))
    assert {request.kind for request in driver.requests} == {RequestKind.RESTORE, RequestKind.DECODE_TO_STORE}
    for request in list(driver.requests):
        driver.answer(request, store_bytes=5, **({} if request.kind is RequestKind.RESTORE else {"pack": 2}))
    counters = driver.core.job("job").counters
    assert (counters.samples_restored, counters.samples_produced) == (16, 16)
    driver.requests.clear()
    driver.step(CacheReset())  # all that was decoded comes from the store from now on
    assert restored(driver) == list(range(32))
    assert driver.core.state.thrash.reproduced_samples == 0


def test_random_recipes_and_a_core_without_a_store_have_nothing_to_do_with_it():
    for driver in (Driver(store=True, random=True), Driver()):
        driver.open()
        driver.step(RecordsStored(DATASET, ALL, np.ones(64, dtype=np.uint32)))
        driver.ask(0, 8)
        assert driver.requests
        assert {request.kind for request in driver.requests} == {RequestKind.DECODE}
        assert all(samples.packs is None for samples in driver.state.sets.values())


@pytest.mark.parametrize("outcome", [Outcome.NOT_STORED, Outcome.STORE_ERROR, FailureKind.CRASHED])
def test_what_no_restore_brings_is_decoded_at_once_and_costs_no_attempt(outcome):
    driver = opened(lookahead_batches=2, attempts=1)
    first = next(request for request in driver.requests if request.kind is RequestKind.RESTORE)
    lost = first.indices.tolist()
    if isinstance(outcome, FailureKind):
        driver.fail(first, outcome)
    else:
        driver.answer(first, outcome)
    assert set(lost) <= set(decoded(driver))
    assert not driver.tombstones
    # The store may still have what it did not answer for, but not what it had not, or what crashes functions.
    still = driver.state.sets[driver.key()].stored(first.indices)
    assert still.all() == (outcome is Outcome.STORE_ERROR)
    driver.answer_all()
    assert not driver.in_state(SampleState.WAITING)


def look_again(driver: Driver, *, after_s: float = 0.0) -> None:
    """The cache has lost everything, and the job looks ahead to it again."""
    driver.answer_all()
    driver.step(CacheReset(), after_s=after_s)


def test_one_request_tries_a_store_that_had_trouble_while_all_else_is_decoded():
    driver = opened(ALL, lookahead_batches=2, request_samples=4, forget_s=1e6, lease_s=1e6)
    for request in list(driver.requests):
        driver.answer(request, Outcome.STORE_ERROR, store_trouble="throttled", after_s=0.0)
    assert [warning.message for warning in driver.warnings] == [driver.core.store_trouble]
    assert "throttled" in driver.core.store_trouble
    for pause_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        look_again(driver)
        assert not restored(driver)
        look_again(driver, after_s=pause_s)
        probe = next(request for request in driver.requests if request.kind is RequestKind.RESTORE)
        assert sorted(decoded(driver) + probe.indices.tolist()) == list(range(16))
        driver.answer(probe, Outcome.STORE_ERROR, after_s=0.0)
    assert len(driver.warnings) == 1
    look_again(driver, after_s=30.0)
    driver.answer(next(request for request in driver.requests if request.kind is RequestKind.RESTORE))
    look_again(driver)
    assert driver.core.store_trouble == ""
    assert restored(driver) == list(range(16))


def test_a_full_store_is_read_and_tried_again():
    driver = opened(lookahead_batches=2, request_samples=4)
    for request in list(driver.requests):
        driver.answer(
            request,
            **({} if request.kind is RequestKind.RESTORE else {"store_trouble": "disk full"}),
            after_s=0.0,
        )
    assert "disk full" in driver.core.store_trouble
    assert len(driver.warnings) == 1
    look_again(driver)
    assert restored(driver) == list(range(0, 16, 2))
    assert not any(request.kind.writes_pack for request in driver.requests)
    look_again(driver, after_s=0.5)
    (probe,) = (request for request in driver.requests if request.kind.writes_pack)
    driver.answer(probe, pack=9)
    look_again(driver)
    assert driver.core.store_trouble == ""
    assert {request.kind for request in driver.requests} <= {RequestKind.RESTORE, RequestKind.DECODE_TO_STORE}


def test_a_store_that_holds_up_those_who_write_is_left_alone():
    driver = opened(request_samples=4)
    saving = [request for request in driver.requests if request.kind.writes_pack]
    for number, request in enumerate(saving[:3]):
        assert driver.core.store_trouble == "", f"a sample may be to blame: {number} failures"
        driver.fail(request, FailureKind.TIMED_OUT)
    assert "nothing can be written" in driver.core.store_trouble
    assert [warning.message for warning in driver.warnings].count(driver.core.store_trouble) == 1
    before = list(driver.requests)
    driver.wait(0.3)
    again = [
        request
        for request in driver.requests
        if request not in before and request.kind is not RequestKind.RESTORE
    ]
    assert again
    assert not any(request.kind.writes_pack for request in again)


def test_executors_that_do_not_see_the_store_neither_restore_nor_save():
    blind_and_seeing = (ExecutorFacts("blind", sees_store=False), ExecutorFacts("seeing"))
    driver = Driver(store=True, executors=blind_and_seeing, lookahead_batches=4)
    driver.step(ExecutorResized(0))
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, EVENS, np.ones(32, dtype=np.uint32)))
    driver.ask(0, 8)
    driver.step(ExecutorResized(20))
    assert driver.requests
    assert {(request.executor, request.kind) for request in driver.requests} == {
        (0, RequestKind.DECODE)
    }  # nobody that sees the store is there
    driver.requests.clear()
    driver.step(ExecutorResized(20, executor=1))
    driver.step(CacheReset())
    driver.read(4, missed=(0, 1, 2, 3))
    asked = {(request.executor, request.kind) for request in driver.requests}
    assert asked == {(0, RequestKind.DECODE), (1, RequestKind.RESTORE)}


def test_a_straight_job_wants_in_the_cache_only_what_is_not_stored_or_missed():
    driver = opened(ask=False, lookahead_batches=4, capacity=20, request_samples=8)
    assert restored(driver) == []  # before the first page: its readers may see the store
    driver.ask(0, 4, sees_store=True)
    assert decoded(driver) == list(range(1, 32, 2))
    driver.read(0, missed=(0, 1))  # the reader could not read number 0 there
    assert restored(driver) == [0]
    driver.step(PacksLost(np.array([1], dtype=np.uint32)))
    assert decoded(driver) == list(range(1, 32))
    driver.answer_all()
    driver.step(RecordsStored(DATASET, ALL, np.ones(64, dtype=np.uint32)))
    driver.read(0)
    assert restored(driver) == []
    driver.ask(1, 5)  # another reader of the job does not see it
    assert restored(driver) == list(range(32, 40))


def test_under_pressure_stored_records_that_only_straight_jobs_read_go_first():
    budget_bytes = 40 * (RECORD_BYTES + 500)
    driver = opened(ALL[:0], ask=False, lookahead_batches=3, budget_bytes=budget_bytes)
    driver.ask(0, 8, sees_store=True)
    driver.answer_all()
    driver.step(RecordsStored(DATASET, np.array([4, 12, 13]), np.ones(3, dtype=np.uint32)))
    for position in range(6):
        driver.read(position)
        driver.answer_all()
    dropped = [index for drop in driver.drops for index in drop.indices.tolist()]
    assert {4, 12, 13} == set(dropped[:3])


@pytest.mark.parametrize("roomy", [True, False])
def test_whole_packs_come_along_in_free_room_as_far_as_one_request_goes(roomy):
    budget_bytes = 10**9 if roomy else 64 * (RECORD_BYTES + 200)
    settings = {"lookahead_batches": 16, "request_samples": 16, "budget_bytes": budget_bytes}
    driver = Driver(size=640, store=True, whole_packs=True, capacity=0, **settings)
    driver.open(shuffle=False, batch_size=2)
    shuffled = np.random.default_rng(1).permutation(640)
    driver.step(RecordsStored(DATASET, shuffled, np.repeat(np.arange(1, 81), 8).astype(np.uint32)))
    driver.ask(0, 16)
    driver.step(ExecutorResized(1))
    made = 0
    while driver.requests:
        request = driver.requests[0]
        assert request.kind is RequestKind.RESTORE
        assert request.indices.size <= 16
        made += 1
        driver.answer(request, after_s=0.001)
    brought = len(driver.in_state(SampleState.RESIDENT))
    assert brought >= 64 if roomy else brought <= 64
    assert set(range(32)) <= set(driver.in_state(SampleState.RESIDENT))
    assert not (roomy and driver.drops)
    assert made < 20


def test_a_hanging_restore_is_raced_by_decoding_where_a_reader_waits():
    driver = opened(ALL, hedge_share=0.5, lookahead_batches=8, request_samples=4, capacity=8)
    for _ in range(8):
        driver.answer(driver.requests[0])
    hanging = driver.requests[0]
    driver.wait(10.0)
    assert all(request.kind is RequestKind.RESTORE for request in driver.requests)
    driver.ask(0, 8, yielded=8)
    batch, offset = divmod(int(hanging.indices[0]), 8)
    driver.read(batch, missed=(offset,))
    rivals = [request for request in driver.requests if request.hedge_of is not None]
    assert [(rival.hedge_of, rival.kind) for rival in rivals] == [(hanging.request_id, RequestKind.DECODE)]
    driver.answer(rivals[0])
    assert set(hanging.indices.tolist()) <= set(driver.in_state(SampleState.RESIDENT))


@given(
    st.lists(
        st.one_of(
            st.lists(
                st.tuples(st.integers(0, 63), st.integers(1, 9)), max_size=20, unique_by=lambda it: it[0]
            ),
            st.sets(st.integers(1, 9), max_size=3),
        ),
        max_size=12,
    )
)
def test_places_are_what_was_told_last_and_is_not_lost(told):
    driver = Driver(store=True, capacity=0)
    driver.open()
    places: dict[int, int] = {}
    for entries in told:
        if isinstance(entries, set):
            driver.step(PacksLost(np.array(sorted(entries), dtype=np.uint32)))
            places = {index: pack for index, pack in places.items() if pack not in entries}
        else:
            indices, packs = np.array(entries, dtype=np.int64).reshape(-1, 2).T
            driver.step(RecordsStored(DATASET, indices, packs.astype(np.uint32)))
            places |= dict(entries)
        samples = driver.state.set_of(driver.key())
        assert np.flatnonzero(samples.stored(ALL)).tolist() == sorted(places)
        for pack in range(1, 10):
            lying = {index for index, number in places.items() if number == pack}
            assert set(samples.lying_in(pack).tolist()) <= lying
