"""Work that no reader waits for: saving what others decoded, last; filling as far as room and money go."""

import numpy as np
import pytest

from superdl.coordinator.core import (
    CacheReset,
    ExecutorFacts,
    ExecutorResized,
    FailureKind,
    FillUp,
    PacksLost,
    Prices,
    RecordsStored,
    SampleState,
)
from superdl.coordinator.core.samples import footprint
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import DATASET, RECORD_BYTES, Driver

BLIND, STORE = ExecutorFacts("blind", sees_store=False), ExecutorFacts("local", decodes=False)


def blind_job(*executors, capacity=2, **settings):
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
    driver = blind_job(lookahead_batches=2, request_samples=64)
    driver.ask(0, 1)
    decode_all(driver)
    assert driver.wait(0.9) == []
    driver.wait(0.1)
    assert sum(map(len, saves(driver))) == len(driver.in_state(SampleState.RESIDENT)) > 0


@pytest.mark.parametrize("how", ["trouble", "crashed", "refused", "no pack"])
def test_where_the_store_takes_nothing_one_save_at_a_time_tries_it(how):
    driver = blind_job(capacity=8, lease_s=1e6, forget_s=1e6)
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
    assert "the executor local cannot write to the store" in driver.core.store_trouble
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
    driver = blind_job(budget_bytes=2 * (RECORD_BYTES + 300), lookahead_batches=1, request_samples=2)
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


EACH = int(footprint(np.array([RECORD_BYTES]))[0])


def filling(*, known_absent=True, size=200, fill=None, **settings):
    """A job of batches of eight that nobody reads."""
    driver = Driver(size=size, known_absent=known_absent, **{"request_samples": 16, **settings})
    driver.step(ExecutorResized(0))
    driver.open("fill", shuffle=False)
    driver.step(FillUp("fill", **(fill or {})))
    driver.step(ExecutorResized(2))
    return driver


def state_of(driver):
    told = driver.core.filled(driver.core.job("fill"))
    return told.present, told.failed, told.ended


def test_all_is_brought_in_the_order_of_the_plan_though_nobody_reads():
    driver = filling(lookahead_batches=2)
    order = []
    while driver.requests:
        assert state_of(driver)[2] == ""
        order += driver.requests[0].indices.tolist()
        driver.answer(driver.requests[0], but={77: Outcome.TOMBSTONE})
    assert order == list(range(200))
    assert state_of(driver) == (199, 1, "all")
    driver.step(FillUp("fill"))
    assert not driver.requests


def test_nothing_is_dropped_for_it_and_it_says_that_it_is_full():
    driver = filling(budget_bytes=100 * EACH)
    driver.answer_all()
    there, _, ended = state_of(driver)
    assert (there, ended) == (99, "full")
    assert driver.in_state(SampleState.RESIDENT) == list(range(99))
    assert not driver.drops


@pytest.mark.parametrize("to_store", [False, True])
def test_it_ends_at_so_many_bytes(to_store):
    fill = {"size_bytes": 50.0 * EACH, "to_store": to_store}
    driver = filling(fill=fill, store=True)
    pack = 0
    while driver.requests:
        pack += 1
        driver.answer(driver.requests[0], **({"pack": pack} if driver.requests[0].kind.writes_pack else {}))
    there, _, ended = state_of(driver)
    assert ended == "max_bytes"
    assert 50 <= there <= (82 if to_store else 50)  # what was under way is not known to be stored


def test_it_ends_at_so_much_money():
    executors = (ExecutorFacts(prices=Prices(invocation=0.01)),)
    driver = filling(fill={"usd": 0.1}, executors=executors)
    driver.answer_all()
    assert state_of(driver)[2] == "max_usd"
    assert driver.core.job("fill").counters.invocations == 9  # one more would pass 0.95 of it
    broke = filling(fill={"usd": 0.001}, executors=executors)
    assert (broke.requests, state_of(broke)) == ([], (0, 0, "max_usd"))


def test_what_the_cache_has_is_found_and_the_rest_is_brought():
    driver = filling(known_absent=False, size=1000)
    asked = []
    while driver.audits or driver.requests:
        assert len(driver.audits) <= 8
        while driver.audits:
            audit = driver.audits[0]
            asked += audit.indices.tolist()
            driver.tell(audit, [RECORD_BYTES if index % 2 else 0 for index in audit.indices.tolist()])
        while driver.requests:
            assert not (driver.requests[0].indices % 2).any()
            driver.answer(driver.requests[0])
    assert sorted(asked) == list(range(1000))
    assert state_of(driver) == (1000, 0, "all")
    assert driver.core.job("fill").counters.samples_produced == 500


def test_readers_go_first_and_may_have_what_it_brought():
    driver = filling(budget_bytes=300 * EACH, size=250)
    driver.answer(driver.requests[0])
    driver.open("reader", shuffle=False, batch_size=8)
    driver.ask(0, 31, job="reader")
    driver.answer(driver.requests[0])
    driver.read(20, missed=(0, 1), job="reader")
    driver.answer(driver.requests[0])
    assert (driver.requests[-1].job, driver.requests[-1].indices.tolist()) == ("reader", [160, 161])
    driver.answer(driver.requests[0])
    assert driver.requests[-1].job == "reader"
    driver.answer_all()
    assert state_of(driver)[0] == 250


def test_the_store_is_filled_through_a_cache_that_is_smaller():
    driver = filling(store=True, budget_bytes=60 * EACH, fill={"to_store": True})
    driver.step(RecordsStored(DATASET, np.arange(0, 40), np.ones(40, dtype=np.uint32)))
    pack, decoded = 1, []
    while driver.requests:
        request = driver.requests[0]
        assert request.kind is RequestKind.DECODE_TO_STORE
        pack += 1
        decoded += request.indices.tolist()
        driver.answer(request, pack=pack)
    assert sorted(set(decoded)) == sorted(decoded)
    assert set(decoded) >= set(range(40, 200))
    assert state_of(driver) == (200, 0, "all")
    driver.step(PacksLost(np.array([pack], dtype=np.uint32)))
    assert state_of(driver)[0] < 200


def test_what_was_cached_before_is_saved_for_the_store():
    driver = filling(known_absent=False, size=40, store=True, fill={"to_store": True})
    while driver.audits:
        driver.tell(driver.audits[0], [RECORD_BYTES] * driver.audits[0].indices.size)
    assert state_of(driver)[2] == ""
    driver.wait(1.0)
    pack = 0
    while driver.requests:
        assert driver.requests[0].kind is RequestKind.SAVE
        pack += 1
        driver.answer(driver.requests[0], pack=pack)
        driver.wait(1.0)
    assert state_of(driver) == (40, 0, "all")
    assert driver.core.job("fill").counters.samples_produced == 0


def test_functions_that_do_not_see_the_store_decode_and_others_save():
    executors = (ExecutorFacts("blind", sees_store=False), ExecutorFacts(decodes=False))
    driver = filling(store=True, budget_bytes=60 * EACH, executors=executors, fill={"to_store": True})
    driver.step(ExecutorResized(1, executor=1))
    pack = 0
    for _ in range(200):
        while driver.requests:
            request = driver.requests[0]
            pack += request.kind is RequestKind.SAVE
            driver.answer(request, **({"pack": pack} if request.kind is RequestKind.SAVE else {}))
        driver.wait(1.0)
        if state_of(driver)[2]:
            break
    assert state_of(driver) == (200, 0, "all")
    assert driver.core.job("fill").counters.samples_produced == 200


def test_one_who_does_not_say_so_again_is_not_filled_for():
    driver = filling(lease_s=2.0, capacity=1)
    driver.answer(driver.requests[0])
    driver.wait(3.0)
    driver.answer_all()
    assert 0 < state_of(driver)[0] < 200
    driver.step(FillUp("fill"))
    driver.answer_all()
    assert state_of(driver) == (200, 0, "all")
