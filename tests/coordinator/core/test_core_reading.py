"""What jobs tell the core: pages, read reports, misses, seeks, silence."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.coordinator.core import Plan, SampleState
from superdl.coordinator.core.events import BatchRead, CacheReset, JobClosed
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import DATASET, Driver

S = SampleState


def cursor(driver: Driver, rank: int = 0):
    return driver.core.job("job").cursors[rank]


def test_a_miss_of_what_is_absent_is_requested_at_once():
    driver = Driver(lookahead_batches=2, request_samples=4, capacity=64)
    plan = driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    driver.read(5, missed=(1, 3))
    assert driver.requested() == plan.batch(0, 5, 0).indices[[1, 3]].tolist()


def test_a_miss_of_what_is_in_flight_changes_nothing():
    driver = Driver(lookahead_batches=2, capacity=64)
    driver.open()
    driver.ask(0, 8)
    assert driver.read(0, missed=tuple(range(8))) == []


def test_a_miss_of_what_is_believed_resident_has_the_cache_asked():
    driver = Driver(lookahead_batches=2)
    plan = driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    driver.read(0, missed=(2, 4))
    (audit,) = driver.audits
    assert audit.indices.tolist() == plan.batch(0, 0, 0).indices[[2, 4]].tolist()
    assert driver.read(0, missed=(2, 4)) == []
    driver.tell(audit, [1000, 0])
    assert driver.requested() == audit.indices[1:].tolist()


def after_a_report_of_a_spoilt_record():
    driver = Driver(lookahead_batches=2)
    plan = driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    before = len(driver.audits)
    driver.read(0, missed=(1, 2), corrupt=(2,))
    spoilt, lost = driver.audits[before:]
    assert (spoilt.whole, lost.whole) == (True, False)
    assert spoilt.indices.tolist() == [int(plan.batch(0, 0, 0).indices[2])]
    assert driver.drops == []
    return driver, spoilt


def test_what_failed_its_check_is_dropped_and_produced_again_once_the_cache_says_so():
    driver, spoilt = after_a_report_of_a_spoilt_record()
    driver.tell(spoilt, [0])
    assert [drop.indices.tolist() for drop in driver.drops] == [spoilt.indices.tolist()]
    assert driver.requested() == spoilt.indices.tolist()


def test_a_forged_report_of_a_spoilt_record_is_one_look_and_no_more():
    driver, spoilt = after_a_report_of_a_spoilt_record()
    looks = len(driver.audits)
    for _ in range(100):  # while it is looked at
        driver.read(0, missed=(2,), corrupt=(2,))
    assert len(driver.audits) == looks
    driver.tell(spoilt, [1000])
    assert driver.drops == []
    assert driver.requests == []
    assert driver.core.states(driver.key(), spoilt.indices).tolist() == [SampleState.RESIDENT]


def test_repeated_misses_do_not_fill_memory():
    driver = Driver(capacity=1, request_samples=1, lookahead_batches=2)
    driver.open()
    driver.ask(0, 8)
    for _ in range(500):
        driver.read(5, missed=(0, 1, 2, 3))
    assert len(driver.state.retry_queue) == 1
    assert len(driver.state.misses) == 1


def test_misses_come_before_looking_ahead():
    driver = Driver(size=400, capacity=1, request_samples=8)
    plan = driver.open()
    driver.ask(0, 50)
    driver.read(30, missed=tuple(range(8)))
    driver.answer(driver.requests[0])
    assert driver.requests[-1].indices.tolist() == plan.batch(0, 30, 0).indices.tolist()


def test_a_miss_of_a_batch_of_before_a_restart_is_served():
    driver = Driver(lookahead_batches=2, known_absent=False)
    plan = driver.open()
    driver.read(6, missed=(0,), epoch=2)
    audit = next(one for one in driver.audits if one.indices.size == 1)
    driver.tell(audit, [0])
    assert int(plan.batch(2, 6, 0).indices[0]) in driver.requested()


@pytest.mark.parametrize(
    "what",
    [
        {"position": 8},
        {"position": -1},
        {"epoch": -1},
        {"epoch": 2**62},
        {"job": "unknown"},
        {"rank": 3},
        {"missed": np.array([8, 4000])},
        {"missed": np.array([-1])},
    ],
    ids=str,
)
def test_a_report_that_speaks_of_no_batch_changes_nothing(what):
    driver = Driver(lookahead_batches=2)
    driver.open()
    driver.answer_all()
    fields = {
        "job": "job", "rank": 0, "epoch": 0, "position": 5, "samples": 8, "hits": 0,
        "missed": np.array([1]), "corrupt": np.array([4000]), "done": False, "read_us": 0, "wait_us": 0,
    }  # fmt: skip
    assert driver.step(BatchRead(**{**fields, **what})) == []
    assert driver.core.failure(driver.key(), 0) == ""


def test_reading_moves_the_lane_and_counts():
    driver = Driver()
    driver.open()
    driver.ask(0, 8)
    for position in (0, 2, 1):
        driver.read(position, after_s=0.5)
    assert cursor(driver).watermark == 3
    counters = driver.core.job("job").counters
    assert (counters.batches_read, counters.cache_hits, counters.cache_misses) == (3, 24, 0)


def test_a_lost_report_holds_nobody_up_for_ever():
    driver = Driver(size=8 * 200)
    driver.open()
    driver.ask(0, 200)
    for position in range(1, 100):
        driver.read(position, after_s=0.01)
    assert cursor(driver).watermark == 100


def test_reports_that_never_come_hold_nobody_up_for_ever():
    driver = Driver(size=8 * 1000)
    driver.open()
    driver.ask(0, 600)
    driver.ask(600, 700, yielded=600)
    assert cursor(driver).watermark == 600 - 256


def test_a_job_that_begins_in_the_middle_of_an_epoch_is_looked_ahead_for_there():
    driver = Driver(lookahead_batches=2, capacity=64)
    plan = driver.open()
    before = len(driver.requests)
    driver.ask(5, 8, epoch=3, yielded=5)
    asked = [index for request in driver.requests[before:] for index in request.indices.tolist()]
    already = set(plan.span(0, 0, 2, 0).indices.tolist())
    assert asked == [index for index in plan.span(3, 5, 7, 0).indices.tolist() if index not in already]


def test_going_back_to_an_earlier_epoch_starts_there():
    driver = Driver(lookahead_batches=2)
    driver.open()
    driver.ask(0, 8, epoch=4)
    driver.read(0, epoch=4)
    driver.ask(0, 8, epoch=1)
    assert cursor(driver).watermark == 8
    driver.read(0, epoch=4)
    assert cursor(driver).watermark == 8


def test_a_call_that_a_report_has_overtaken_does_not_move_the_lane():
    driver = Driver(lookahead_batches=2)
    driver.open()
    driver.ask(0, 8, yielded=3)
    for position in range(4):
        driver.read(position)
    driver.ask(3, 4, yielded=3)
    assert cursor(driver).watermark == 4


def test_asking_again_is_no_news():
    driver = Driver(lookahead_batches=2)
    driver.open()
    driver.ask(0, 4)
    driver.read(0)
    driver.ask(0, 4, yielded=2)
    assert (cursor(driver).watermark, cursor(driver).asked) == (1, 4)


def test_a_new_epoch_ends_the_one_that_was_abandoned():
    driver = Driver()
    driver.open()
    driver.ask(0, 8, yielded=2)
    driver.read(0)
    driver.ask(0, 8, epoch=1)
    assert cursor(driver).watermark == 1
    driver.ask(4, 8, epoch=1, yielded=3)
    assert cursor(driver).watermark == 8


def test_two_iterators_of_one_sampler_both_get_their_batches():
    driver = Driver(size=80, lookahead_batches=2, random=True)
    plan = driver.open()
    for step in range(10):
        for epoch in (0, 1):
            driver.ask(step, step + 1, epoch=epoch, yielded=step)
            driver.answer_all()
            wanted = plan.batch(epoch, step, 0).indices
            states = driver.core.states(driver.key(epoch), wanted)
            if not (states == S.RESIDENT).all():
                driver.read(step, missed=tuple(np.flatnonzero(states != S.RESIDENT).tolist()), epoch=epoch)
                driver.answer_all()
            assert (driver.core.states(driver.key(epoch), wanted) == S.RESIDENT).all()
            driver.read(step, epoch=epoch, after_s=0.01)


def test_a_silent_rank_is_forgotten_after_a_long_time_and_its_job_with_the_last():
    driver = Driver(forget_s=100.0)
    driver.open(replicas=2, batch_size=4)
    driver.open(rank=1, replicas=2, batch_size=4)
    driver.answer_all()
    driver.wait(90.0)
    driver.ask(0, 1, rank=1)
    driver.wait(60.0)
    assert list(driver.core.job("job").cursors) == [1]
    driver.wait(100.0)
    assert driver.core.jobs == []


def test_closing_what_is_not_open_changes_nothing():
    driver = Driver()
    driver.open()
    driver.step(JobClosed("job", 5))
    driver.step(JobClosed("unknown", 0))
    assert [job.name for job in driver.core.jobs] == ["job"]


def test_after_the_last_job_nothing_is_requested_whatever_is_due():
    driver = Driver(capacity=2, request_samples=4, attempts=3)
    driver.open()
    driver.ask(0, 8)
    driver.read(6, missed=(0, 1))
    for request in list(driver.requests):
        driver.answer(request, Outcome.SOURCE_ERROR)
    driver.step(JobClosed("job", 0))
    for request in list(driver.requests):
        driver.answer(request, Outcome.SOURCE_ERROR)
    assert driver.requests == []
    assert driver.wait(20.0) == []
    assert driver.in_state(S.WAITING) == []
    assert driver.wait(100.0) == []
    assert not driver.core.knows(DATASET), "of which nobody has anything any more"


def test_a_job_that_closes_and_opens_again_keeps_its_accounts_apart():
    driver = Driver(capacity=1, request_samples=8)
    driver.open()
    driver.step(JobClosed("job", 0))
    driver.open()
    driver.answer_all()
    assert driver.core.job("job").counters.requests_in_flight == 0


def test_a_dataset_that_is_added_again_stays():
    driver = Driver()
    driver.open()
    driver.answer_all()
    driver.step(type(driver.state.datasets[b"data"])(b"data", 64, False, 5, False))
    assert len(driver.in_state(S.RESIDENT)) == 64


def test_plans_with_padding_report_offsets_of_the_padded_batch():
    driver = Driver(size=5, lookahead_batches=2)
    plan: Plan = driver.open(batch_size=2, replicas=4, rank=3, shuffle=False)
    driver.answer_all()
    padded = plan.batch(0, 0, 3)
    assert padded.padding.any()
    driver.read(0, missed=(0, 1), corrupt=(0, 1), rank=3)
    driver.tell(driver.audits[0], [0] * driver.audits[0].indices.size)
    assert sorted(driver.requested()) == sorted(set(padded.indices.tolist()))


@pytest.mark.parametrize("reopens", [True, False])
def test_a_sampler_that_begins_anew_a_little_earlier_is_followed(reopens):
    driver = Driver(size=800, capacity=64, request_samples=8, lookahead_batches=8)
    plan = driver.open()
    for position in range(50):
        driver.ask(position, position + 8, yielded=position)
        driver.answer_all()
        driver.read(position)
    driver.step(CacheReset())
    driver.requests.clear()
    if reopens:
        driver.open()
    driver.ask(0, 8)
    cursor = driver.core.job("job").cursors[0]
    assert cursor.watermark == 0
    driver.answer_all()
    wanted = plan.span(0, 0, 2, 0).indices
    assert set(wanted.tolist()) <= set(driver.in_state(S.RESIDENT)) | set(driver.in_state(S.IN_FLIGHT))


def test_a_call_that_a_report_overtook_is_no_new_beginning():
    driver = Driver(size=800, capacity=64, request_samples=8)
    driver.open()
    driver.ask(0, 20, yielded=4)
    for position in range(8):
        driver.read(position)
    driver.ask(0, 20, yielded=6)
    assert driver.core.job("job").cursors[0].watermark == 8
