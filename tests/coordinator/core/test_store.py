"""Restore stored samples, or point to them if all readers see the store. Decode them if it fails."""

import numpy as np

from superdl.coordinator.core import CacheReset, ExecutorResized, FailureKind, RecordsStored, SampleState
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

EVENS = np.arange(0, 64, 2)
ALL = np.arange(64)


def opened(indices=EVENS, *, packs=1, ask=True, **settings):
    """A job of eight batches of eight, by default in plan order, with some samples already stored."""
    driver = Driver(store=True, **settings)
    driver.step(ExecutorResized(0))  # no requests before the stored locations are known
    driver.open(shuffle=False)
    driver.step(RecordsStored(DATASET, indices, np.broadcast_to(np.uint32(packs), indices.shape)))
    if ask:
        driver.ask(0, 8)
    driver.step(ExecutorResized(settings.get("capacity", 8)))
    return driver


def restored(driver):
    return sorted(
        index for it in driver.requests if it.kind is RequestKind.RESTORE for index in it.indices.tolist()
    )


def decoded(driver):
    return sorted(
        index for it in driver.requests if it.kind is not RequestKind.RESTORE for index in it.indices.tolist()
    )


def test_samples_are_restored_if_one_rank_cannot_access_the_store():
    driver = Driver(store=True, lookahead_batches=2, capacity=0)
    for rank in (0, 1):
        driver.open(shuffle=False, batch_size=4, replicas=2, rank=rank)
    driver.step(RecordsStored(DATASET, ALL, np.ones(64, dtype=np.uint32)))
    for rank in (0, 1):
        driver.ask(0, 8, rank=rank, sees_store=True)
    driver.step(ExecutorResized(8))
    assert not driver.requests
    driver.ask(0, 8, rank=1)
    assert restored(driver) == list(range(16))


def restart_lookahead(driver, *, after_s=0.0):
    """Empty the cache and have the job look ahead to its samples again."""
    driver.answer_all()
    driver.step(CacheReset(), after_s=after_s)


def test_one_request_probes_a_failing_store_while_the_rest_is_decoded():
    driver = opened(ALL, lookahead_batches=2, request_samples=4, forget_s=1e6, lease_s=1e6)
    for request in list(driver.requests):
        driver.answer(request, Outcome.STORE_ERROR, store_trouble="throttled", after_s=0.0)
    assert [warning.message for warning in driver.warnings] == [driver.core.store_trouble]
    assert "throttled" in driver.core.store_trouble
    for pause_s in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        restart_lookahead(driver)
        assert not restored(driver)
        restart_lookahead(driver, after_s=pause_s)
        probe = next(request for request in driver.requests if request.kind is RequestKind.RESTORE)
        assert sorted(decoded(driver) + probe.indices.tolist()) == list(range(16))
        driver.answer(probe, Outcome.STORE_ERROR, after_s=0.0)
    assert len(driver.warnings) == 1
    restart_lookahead(driver, after_s=30.0)
    driver.answer(next(request for request in driver.requests if request.kind is RequestKind.RESTORE))
    restart_lookahead(driver)
    assert driver.core.store_trouble == ""
    assert restored(driver) == list(range(16))


def test_a_store_that_delays_writers_is_set_aside():
    driver = opened(request_samples=4)
    saving = [request for request in driver.requests if request.kind.writes_pack]
    for number, request in enumerate(saving[:3]):
        assert driver.core.store_trouble == "", f"{number} failures may be due to a sample"
        driver.fail(request, FailureKind.TIMED_OUT)
    assert "cannot write to the store" in driver.core.store_trouble
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


def test_stored_records_that_only_straight_jobs_read_are_dropped_first():
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


def test_whole_packs_are_restored_as_far_as_they_fit_into_a_request():
    settings = {"lookahead_batches": 16, "request_samples": 16}
    driver = Driver(size=640, store=True, whole_packs=True, capacity=0, **settings)
    driver.open(shuffle=False, batch_size=2)
    shuffled = np.random.default_rng(1).permutation(640)
    driver.step(RecordsStored(DATASET, shuffled, np.repeat(np.arange(1, 81), 8).astype(np.uint32)))
    driver.ask(0, 16)
    driver.step(ExecutorResized(1))
    requests = 0
    while driver.requests:
        request = driver.requests[0]
        assert request.kind is RequestKind.RESTORE
        assert request.indices.size <= 16
        requests += 1
        driver.answer(request, after_s=0.001)
    resident = driver.in_state(SampleState.RESIDENT)
    assert len(resident) >= 64
    assert set(range(32)) <= set(resident)
    assert not driver.drops
    assert requests < 20


def test_a_hanging_restore_is_raced_by_decoding_if_a_reader_waits():
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


POINTER_BYTES = 126


def test_a_broken_pointer_is_restored_and_no_pointers_are_made_for_a_minute():
    driver = Driver(store=True, lookahead_batches=2, request_samples=8, capacity=0)
    driver.open(shuffle=False)
    driver.ask(0, 8, sees_store=True)
    driver.step(ExecutorResized(8))
    for pack, request in enumerate(list(driver.requests), 1):
        assert request.kind is RequestKind.DECODE_TO_POINTERS
        pointers = np.ones(request.indices.size, dtype=np.bool_)
        driver.answer(request, record_bytes=POINTER_BYTES, pack=pack, pointers=pointers)
    driver.read(0, missed=(3,), corrupt=(3,))
    whole = next(audit for audit in driver.audits if audit.whole)
    driver.finish_audit(whole, [POINTER_BYTES], pointers=True)
    assert [drop.indices.tolist() for drop in driver.drops] == [[3]]
    (restore,) = driver.requests
    assert (restore.kind, restore.indices.tolist()) == (RequestKind.RESTORE, [3])
    driver.answer(restore, Outcome.NOT_STORED)
    (decode,) = (request for request in driver.requests if 3 in request.indices)
    assert decode.kind is RequestKind.DECODE_TO_STORE
    driver.answer(decode, pack=9)
    driver.read(0)
    assert driver.requests
    assert not any(request.kind is RequestKind.DECODE_TO_POINTERS for request in driver.requests)
    driver.answer_all()
    driver.read(1, after_s=61.0)
    assert all(request.kind is RequestKind.DECODE_TO_POINTERS for request in driver.requests)
