"""Where all readers see the store the cache gets pointers; one that does not see it finds none."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.coordinator.core import ExecutorResized, PacksLost, RecordsStored, SampleState, footprint
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

POINTER_BYTES = 126
TAKEN = int(footprint(np.array([POINTER_BYTES]))[0])


def started(*, sees_store: bool = True, **settings) -> Driver:
    """A job in plan order of which nothing is stored, once its sampler has told whether it sees the store."""
    driver = Driver(**{"store": True, "lookahead_batches": 2, "request_samples": 8, "capacity": 0} | settings)
    driver.open(shuffle=False)
    driver.ask(0, 8, sees_store=sees_store)
    driver.step(ExecutorResized(8))
    return driver


def point(driver: Driver, request, pack: int = 1) -> None:
    """A function has written a pack, and pointers into it."""
    assert request.kind is RequestKind.DECODE_TO_POINTERS
    pointers = np.ones(request.indices.size, dtype=np.bool_)
    driver.answer(request, record_bytes=POINTER_BYTES, pack=pack, pointers=pointers)


def pointed(**settings) -> Driver:
    """The first two batches are in the cache as pointers, each into a pack of its own."""
    driver = started(**settings)
    for pack, request in enumerate(list(driver.requests), 1):
        point(driver, request, pack)
    assert driver.in_state(SampleState.RESIDENT) == list(range(16))
    return driver


def second_job(driver: Driver, *, sees_store: bool = False) -> None:
    driver.open("other", shuffle=False)
    driver.ask(0, 8, job="other", sees_store=sees_store)


def restored(driver: Driver) -> list[int]:
    return sorted(
        index for it in driver.requests if it.kind is RequestKind.RESTORE for index in it.indices.tolist()
    )


def test_pointers_take_what_they_take_and_say_nothing_of_records():
    driver = pointed()
    assert driver.state.resident_bytes == 16 * TAKEN
    assert driver.state.sets[driver.key()].sample_bytes == footprint(np.array([RECORD_BYTES]))[0]
    assert driver.core.job("job").counters.samples_produced == 16
    assert driver.state.sets[driver.key()].stored(np.arange(16)).all()


@pytest.mark.parametrize("why", ["blind", "bucket", "random", "another job", "trouble"])
def test_who_gets_records(why):
    settings = {"bucket": {"whole_packs": True}, "random": {"random": True}}.get(why, {})
    driver = started(sees_store=why != "blind", **settings)
    if why == "another job":
        driver = started(capacity=0)
        driver.step(ExecutorResized(0))
        driver.requests.clear()
        second_job(driver)
        driver.step(ExecutorResized(8))
        driver.read(0)
    if why == "trouble":
        for request in list(driver.requests):
            driver.answer(request, store_trouble="disk full")
        driver.wait(60.0)
        driver.read(0, after_s=1.0)
        assert any(request.kind.writes_pack for request in driver.requests)  # it is tried
    assert driver.requests
    assert not any(request.kind is RequestKind.DECODE_TO_POINTERS for request in driver.requests)


def test_a_job_that_does_not_see_the_store_gets_records_in_their_stead():
    driver = pointed()
    second_job(driver, sees_store=True)
    assert not driver.drops
    driver.ask(0, 8, job="other")
    (drop,) = driver.drops
    assert drop.indices.tolist() == list(range(16))
    assert restored(driver) == list(range(16))
    driver.answer_all()
    assert driver.state.resident_bytes == 16 * int(footprint(np.array([RECORD_BYTES]))[0])


def test_pointers_that_come_after_such_a_job_are_dropped_and_restored():
    driver = started()
    requests = list(driver.requests)
    second_job(driver)
    assert not driver.drops
    for request in requests:
        point(driver, request)
    assert sorted(index for drop in driver.drops for index in drop.indices.tolist()) == list(range(16))
    assert restored(driver) == list(range(16))


def test_pointers_into_packs_that_are_lost_go_with_them():
    driver = pointed()
    lying = driver.state.sets[driver.key()].lying_in(1).tolist()
    driver.step(PacksLost(np.array([1], dtype=np.uint32)))
    (drop,) = driver.drops
    assert drop.indices.tolist() == lying
    (again,) = driver.requests
    assert (again.indices.tolist(), again.kind) == (lying, RequestKind.DECODE_TO_POINTERS)


def test_a_pointer_that_a_reader_cannot_follow_is_restored_and_for_a_while_none_is_made():
    driver = pointed()
    driver.read(0, missed=(3,), corrupt=(3,))
    whole = next(audit for audit in driver.audits if audit.whole)
    driver.tell(whole, [POINTER_BYTES], pointers=True)
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


@pytest.mark.parametrize("sees_store", [True, False])
def test_an_audit_takes_a_pointer_for_a_record_where_all_can_follow_it(sees_store):
    driver = started(known_absent=False, sees_store=sees_store)
    driver.step(RecordsStored(DATASET, np.array([2]), np.ones(1, dtype=np.uint32)))
    for audit in list(driver.audits):
        driver.tell(audit, [POINTER_BYTES] * audit.indices.size, pointers=True)
    there = driver.in_state(SampleState.RESIDENT)
    assert bool(there) == sees_store
    assert driver.state.resident_bytes == len(there) * TAKEN
    if not sees_store:
        dropped = [index for drop in driver.drops for index in drop.indices.tolist()]
        assert sorted(dropped) == list(range(16))
        assert restored(driver) == [2]
    else:  # a stale report of a miss is no loss
        driver.read(0, missed=(1,))
        driver.tell(driver.audits[-1], [POINTER_BYTES], pointers=True)
        assert not driver.requests
        assert not driver.drops


@pytest.mark.parametrize("first", ["pointers", "records"])
def test_what_was_written_last_is_accounted_for(first):
    driver = Driver(size=400, capacity=2, request_samples=4, lookahead_batches=4, store=True)
    driver.open(batch_size=4, shuffle=False)
    for position in range(50):  # so that it is known how long a request takes
        driver.ask(position, position + 4, yielded=position, sees_store=True)
        driver.answer_all()
        driver.read(position)
    hanging = driver.requests[0]
    for request in driver.requests[1:]:
        driver.answer(request)
    driver.wait(1.0)
    rival = next(request for request in driver.requests if request.hedge_of == hanging.request_id)
    assert (hanging.kind, rival.kind) == (RequestKind.DECODE_TO_POINTERS, RequestKind.DECODE)
    if first == "pointers":
        point(driver, hanging)
        assert driver.state.reserved_bytes >= 4 * RECORD_BYTES
        driver.answer(rival)
    else:
        driver.answer(rival)
        point(driver, hanging)
    samples = driver.state.sets[driver.key()]
    assert set(samples.pointers_among(hanging.indices)) == set(hanging.indices if first == "records" else ())
    taken = RECORD_BYTES if first == "pointers" else POINTER_BYTES
    assert set(samples.stored_bytes[hanging.indices]) == {int(footprint(np.array([taken]))[0])}


def test_what_is_stored_though_its_pointer_did_not_come_is_restored_if_a_reader_misses_it():
    driver = started()
    first = driver.requests[0]
    stored, wanted = np.ones(first.indices.size, dtype=np.bool_), first.indices.tolist()
    driver.answer(first, Outcome.CACHE_ERROR, pack=4, stored=stored, pointers=~stored)
    driver.wait(5.0)
    assert restored(driver) == []
    driver.read(0, missed=tuple(wanted))
    assert restored(driver) == wanted
