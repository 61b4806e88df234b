"""What functions answer: cached, failed for good, or tried again within bounds, alone if need be."""

from __future__ import annotations

import itertools

import pytest

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import DatasetAdded, FailureKind, JobClosed, JobOpened
from superdl.coordinator.core.state import FAILURES_MAX
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import DATASET, Driver

S = SampleState
GUILTY = [
    Outcome.MISSING,
    Outcome.CHANGED,
    Outcome.REFUSED,
    Outcome.SOURCE_ERROR,
    Outcome.STEP_ERROR,
    Outcome.TIMED_OUT,
]


def one_batch(**settings) -> Driver:
    """A driver with one request for one batch of four in flight."""
    driver = Driver(size=4, capacity=1, request_samples=4, **settings)
    driver.open(batch_size=4, shuffle=False)
    driver.ask(0, 1)
    assert driver.requested() == [0, 1, 2, 3]
    return driver


def attempts_until_quiet(driver: Driver, outcome: Outcome | FailureKind, index: int = 0) -> int:
    """Answer everything in one way; how often a sample was tried until nothing comes for a second."""
    tried = 0
    for _ in range(1000):
        if not driver.requests:
            driver.wait(1.5)
        if not driver.requests:
            return tried
        request = driver.requests[0]
        tried += index in request.indices
        if isinstance(outcome, FailureKind):
            driver.fail(request, outcome)
        else:
            driver.answer(request, outcome)
    return tried


def test_what_was_cached_is_resident_and_counted():
    driver = one_batch()
    driver.answer(driver.requests[0])
    assert driver.in_state(S.RESIDENT) == [0, 1, 2, 3]
    counters = driver.core.job("job").counters
    assert (counters.samples_produced, counters.record_bytes, counters.source_bytes) == (4, 4000, 10)
    assert (counters.fetch_us, counters.decode_us, counters.push_us) == (1, 2, 3)
    assert (counters.invocations, counters.requests_in_flight) == (1, 0)


def test_a_permanent_tombstone_is_not_tried_again_and_says_why():
    driver = one_batch()
    driver.answer(driver.requests[0], but={2: Outcome.TOMBSTONE})
    driver.wait(200.0)
    assert driver.in_state(S.FAILED) == [2]
    assert driver.requests == []
    assert driver.core.failure(driver.key(), 2) == "why 2"
    assert driver.tombstones == []


@pytest.mark.parametrize("outcome", GUILTY)
@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_are_bounded_and_end_in_a_tombstone(outcome, attempts):
    driver = one_batch(attempts=attempts, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, outcome) == attempts
    assert sorted(index for one in driver.tombstones for index in one.indices.tolist()) == [0, 1, 2, 3]
    assert driver.tombstones[0].expires_in_s == 60.0
    assert driver.tombstones[0].messages[0] == "why 0"
    assert driver.core.job("job").counters.samples_failed == 4


@pytest.mark.parametrize("kind", [FailureKind.CRASHED, FailureKind.TIMED_OUT, FailureKind.RAISED])
def test_attempts_of_requests_that_fail_whole_are_bounded(kind):
    driver = one_batch(attempts=3, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, kind) == 3
    assert driver.core.failure(driver.key(), 1) == f"{kind.value}: because"


@pytest.mark.parametrize("reason", [Outcome.CACHE_ERROR, FailureKind.THROTTLED, FailureKind.UNAVAILABLE])
def test_what_is_no_sample_s_fault_is_tried_again_less_and_less_often(reason):
    driver = one_batch(attempts=2, backoff_s=0.2, backoff_max_s=5.0)
    times_s = []
    while driver.now_s < 60.0:
        times_s.append(driver.now_s)
        for request in list(driver.requests):
            if isinstance(reason, FailureKind):
                driver.fail(request, reason)
            else:
                driver.answer(request, reason, after_s=0.0)
        while not driver.requests:
            driver.wait(driver.core.wake_at_s - driver.now_s)
    assert driver.tombstones == []
    waits_s = [after_s - before_s for before_s, after_s in itertools.pairwise(sorted(set(times_s)))]
    assert waits_s[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(waits_s) == pytest.approx(5.0)
    driver.answer(driver.requests[0])
    assert driver.state.outages == 0


def test_a_success_between_ends_the_count():
    driver = one_batch(attempts=2)
    driver.answer(driver.requests[0], Outcome.SOURCE_ERROR)
    driver.wait(1.0)
    driver.answer(driver.requests[0])
    driver.read(0, missed=(0, 1, 2, 3), corrupt=(0, 1, 2, 3))
    (audit,) = driver.audits
    driver.tell(audit, [0] * audit.indices.size)
    assert attempts_until_quiet(driver, Outcome.SOURCE_ERROR) == 2


def test_a_sample_that_may_have_crashed_its_function_goes_alone():
    driver = one_batch(attempts=3)
    driver.fail(driver.requests[0], FailureKind.CRASHED)
    driver.wait(0.5)
    alone = []
    while driver.requests:
        alone.append(driver.requests[0].indices.tolist())
        driver.answer(driver.requests[0])
    assert alone == [[0], [1], [2], [3]]


def test_a_sample_that_was_decoded_for_too_long_goes_alone_and_what_waited_behind_it_is_not_blamed():
    driver = one_batch(attempts=3, tombstone_ttl_s=30.0)
    driver.answer(driver.requests[0], Outcome.EXPIRED, but={0: Outcome.CACHED, 2: Outcome.TIMED_OUT})
    asked = []
    for _ in range(20):
        driver.wait(1.0)
        for request in list(driver.requests):
            asked.append(request.indices.tolist())
            driver.answer(request, Outcome.TIMED_OUT if 2 in request.indices else Outcome.CACHED)
    assert sorted(index for one in asked for index in one) == [1, 2, 2, 3]
    assert [2] in asked
    assert all(len(one) == 1 for one in asked if 2 in one)
    (tombstones,) = driver.tombstones
    assert (tombstones.indices.tolist(), tombstones.expires_in_s) == ([2], 30.0)
    driver.wait(31.0)
    assert driver.in_state(S.ABSENT) == [2]


def test_a_suspect_that_a_reader_waits_for_harms_no_other():
    driver = one_batch(attempts=3)
    driver.fail(driver.requests[0], FailureKind.CRASHED)
    driver.read(0, missed=(0, 1, 2, 3))
    assert driver.requests == []
    driver.wait(0.25)
    driver.read(0, missed=(0, 1, 2, 3))
    assert all(request.indices.size == 1 for request in driver.requests)


def test_a_tombstone_that_expires_is_tried_again():
    driver = one_batch(attempts=1, tombstone_ttl_s=30.0)
    driver.answer(driver.requests[0], but={1: Outcome.MISSING})
    driver.wait(29.0)
    assert driver.in_state(S.FAILED) == [1]
    driver.wait(2.0)
    assert driver.in_state(S.ABSENT) == [1]
    assert driver.core.failure(driver.key(), 1) == ""
    driver.read(0, missed=(1,))
    assert driver.requested() == [1]


def test_a_second_answer_changes_nothing():
    driver = one_batch()
    request = driver.requests[0]
    driver.answer(request)
    assert driver.answer(request, Outcome.TOMBSTONE) == []
    assert driver.in_state(S.RESIDENT) == [0, 1, 2, 3]
    assert driver.core.job("job").counters.samples_produced == 4


def test_answers_for_a_job_that_is_gone_are_kept_for_others():
    driver = one_batch()
    driver.step(JobClosed("job", 0))
    driver.answer(driver.requests[0])
    assert driver.open("next", batch_size=2) is not None
    assert driver.requests == []
    assert driver.in_state(S.RESIDENT) == [0, 1, 2, 3]


def test_a_retry_goes_on_for_another_job_of_the_dataset():
    driver = one_batch()
    driver.open("other", batch_size=4)
    driver.answer(driver.requests[0], Outcome.SOURCE_ERROR)
    driver.step(JobClosed("job", 0))
    driver.wait(1.0)
    driver.answer_all()
    assert driver.in_state(S.RESIDENT) == [0, 1, 2, 3]


def test_a_reader_that_waits_for_a_retry_gets_it_though_there_is_no_room():
    """Found by the simulator: the retry waited for room, the reader for the retry."""
    driver = Driver(size=40, capacity=1, request_samples=8, budget_bytes=8 * 1184, attempts=3)
    driver.open(batch_size=8, shuffle=False)
    driver.ask(0, 5)
    driver.answer(driver.requests[0], but={0: Outcome.SOURCE_ERROR})
    for _ in range(20):
        driver.read(0, missed=(0,), after_s=0.3)
        for request in list(driver.requests):
            driver.answer(request)
        if 0 in driver.in_state(S.RESIDENT):
            break
    assert 0 in driver.in_state(S.RESIDENT)


def test_remembered_reasons_are_bounded():
    driver = Driver(size=1)
    size = FAILURES_MAX + 100
    driver.step(DatasetAdded(b"large", size, False, 100, True))
    plan = driver.open().__class__(size, 4096)
    driver.step(JobOpened("large", b"large", plan, 0))
    driver.answer_all(Outcome.TOMBSTONE)
    assert len(driver.state.failures) == FAILURES_MAX
    assert DATASET in driver.state.datasets


def test_what_expired_in_a_queue_is_tried_again_without_counting():
    driver = one_batch(attempts=2, backoff_max_s=1.0)
    for _ in range(4):
        for request in list(driver.requests):
            driver.answer(request, Outcome.EXPIRED, after_s=61.0)
        driver.wait(1.5)
    assert driver.tombstones == []
    driver.answer_all()
    assert driver.in_state(S.RESIDENT) == [0, 1, 2, 3]


def test_what_expires_as_soon_as_it_is_asked_for_is_bounded_and_names_the_clocks():
    driver = one_batch(attempts=3, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, Outcome.EXPIRED) == 3
    assert "why 0; it answered so after 1.1 s of the 60 s" in driver.tombstones[0].messages[0]
    assert "clocks of the function and of the coordinator differ" in driver.tombstones[0].messages[0]


def test_a_function_whose_time_was_short_for_a_part_of_the_samples_is_asked_for_the_rest():
    driver = one_batch(attempts=1, backoff_max_s=1.0)
    driver.answer(driver.requests[0], but={2: Outcome.EXPIRED, 3: Outcome.EXPIRED})
    driver.wait(1.5)
    assert driver.tombstones == []
    assert driver.requested() == [2, 3]


def test_people_are_told_when_nothing_succeeds_and_why():
    driver = one_batch(backoff_s=0.2, backoff_max_s=1.0)
    for _ in range(60):
        for request in list(driver.requests):
            driver.answer(request, Outcome.CACHE_ERROR, after_s=0.0)
        while not driver.requests:
            driver.wait(driver.core.wake_at_s - driver.now_s)
    assert len(driver.warnings) >= 2
    assert driver.warnings[0].message.startswith("8 times in a row")
    assert "why 0" in driver.warnings[0].message


def test_answers_while_the_cache_is_away_teach_nothing_of_latency():
    driver = Driver(size=4000, capacity=4, request_samples=8)
    driver.open()
    for _ in range(30):
        driver.answer(driver.requests[0], after_s=0.5)
    slow_s = driver.state.fleet.executors[0].latency.quantile_s(8, 0.99)
    for _ in range(60):
        driver.wait(1.0)
        for request in list(driver.requests):
            driver.answer(request, Outcome.CACHE_ERROR, after_s=0.001)
    assert driver.state.fleet.executors[0].latency.quantile_s(8, 0.99) == slow_s


def test_what_was_refused_is_no_invocation():
    driver = one_batch()
    before = driver.core.job("job").counters.invocations
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    assert driver.core.job("job").counters.invocations == before - 1
