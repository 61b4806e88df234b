"""Background work: save what others decoded once readers are served, and fill up within room and money."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import (
    ExecutorFacts,
    ExecutorResized,
    FailureKind,
    FillUp,
)
from superdl.coordinator.core.samples import footprint
from superdl.super_wire.request import Outcome, RequestKind
from tests.coordinator.core.driver import RECORD_BYTES, Driver

BLIND, STORE = ExecutorFacts("blind", sees_store=False), ExecutorFacts("local", decodes=False)


def blind_job(*executors, capacity=2, **settings):
    """A job of eight batches of eight whose functions do not see the store."""
    settings = {"request_samples": 16, "lookahead_batches": 8, **settings}
    driver = Driver(store=True, executors=executors or (BLIND, STORE), **settings)
    driver.step(ExecutorResized(capacity, executor=1))
    driver.open(shuffle=False)
    return driver


def saves(driver):
    return [request.indices.tolist() for request in driver.requests if request.kind is RequestKind.SAVE]


def decode_all(driver):
    """Answer every request that decodes, and no save."""
    while decoding := [request for request in driver.requests if request.kind.fills_cache]:
        driver.answer(decoding[0], after_s=0.0)


@pytest.mark.parametrize("how", ["trouble", "crashed", "refused", "no pack"])
def test_one_save_at_a_time_probes_a_failing_store(how):
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


EACH = int(footprint(np.array([RECORD_BYTES]))[0])


def filling(*, known_absent=True, size=200, fill=None, **settings):
    """A fill-up of a job with batches of eight that nobody reads."""
    driver = Driver(size=size, known_absent=known_absent, **{"request_samples": 16, **settings})
    driver.step(ExecutorResized(0))
    driver.open("fill", shuffle=False)
    driver.step(FillUp("fill", **(fill or {})))
    driver.step(ExecutorResized(2))
    return driver


def state_of(driver):
    progress = driver.core.filled(driver.core.job("fill"))
    return progress.present, progress.failed, progress.ended


@given(
    cached=st.sets(st.integers(0, 119)),
    bad=st.sets(st.integers(0, 119), max_size=3),
    room=st.sampled_from([60, 1000]),
    store=st.sampled_from(["none", "seen", "by others"]),
)
def test_filling_decodes_each_missing_sample_once_in_plan_order_while_there_is_room(cached, bad, room, store):
    to_store, cached = store != "none", cached if room == 1000 else set()
    driver = filling(
        size=120,
        known_absent=not cached,
        budget_bytes=room * EACH,
        store=to_store,
        executors=(BLIND, STORE) if store == "by others" else (ExecutorFacts(),),
        fill={"to_store": to_store},
        tombstone_ttl_s=1e6,
    )
    if store == "by others":
        driver.step(ExecutorResized(1, executor=1))
    decoded, packs = [], iter(range(1, 1000))
    for _ in range(300):
        while driver.audits:
            audit = driver.audits[0]
            driver.finish_audit(audit, [RECORD_BYTES * (index in cached) for index in audit.indices.tolist()])
        while driver.requests:
            request = driver.requests[0]
            facts = {"pack": next(packs)} if request.kind.writes_pack else {}
            if request.kind.decodes:
                decoded += request.indices.tolist()
                facts["but"] = dict.fromkeys(bad, Outcome.TOMBSTONE)
            driver.answer(request, **facts)
        if state_of(driver)[2]:
            break
        driver.wait(1.0)
        driver.step(FillUp("fill", to_store=to_store))
    missing = [index for index in range(120) if index not in cached]
    present, failed, ended = state_of(driver)
    if to_store or room == 1000:
        assert (ended, present + failed, failed) == ("all", 120, len(bad - cached))
        assert sorted(decoded) == missing
    else:
        assert ended == "full"
        assert 50 < present < 60
        missing = missing[: len(decoded)]
    assert to_store or (decoded == missing and not driver.drops)


@pytest.mark.parametrize("to_store", [False, True])
def test_filling_ends_at_its_size_limit(to_store):
    fill = {"size_bytes": 50.0 * EACH, "to_store": to_store}
    driver = filling(fill=fill, store=True)
    pack = 0
    while driver.requests:
        pack += 1
        driver.answer(driver.requests[0], **({"pack": pack} if driver.requests[0].kind.writes_pack else {}))
    there, _, ended = state_of(driver)
    assert ended == "max_bytes"
    assert 50 <= there <= (82 if to_store else 50)  # pending requests are not known to be stored


def test_readers_go_before_filling_and_use_its_samples():
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


def test_filling_stops_when_its_lease_ends():
    driver = filling(lease_s=2.0, capacity=1)
    driver.answer(driver.requests[0])
    driver.wait(3.0)
    driver.answer_all()
    assert 0 < state_of(driver)[0] < 200
    driver.step(FillUp("fill"))
    driver.answer_all()
    assert state_of(driver) == (200, 0, "all")
