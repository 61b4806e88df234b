"""What becomes of samples: cached, failed for good, tried again within bounds, read back, raced."""

from __future__ import annotations

import itertools

import pytest

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import (
    ExecutorResized,
    FailureKind,
    RecordReadBack,
)
from superdl.coordinator.core.settings import ExecutorFacts
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

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


@pytest.mark.parametrize("outcome", GUILTY)
@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_are_bounded_and_end_in_a_tombstone(outcome, attempts):
    driver = one_batch(attempts=attempts, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, outcome) == attempts
    assert sorted(index for one in driver.tombstones for index in one.indices.tolist()) == [0, 1, 2, 3]
    assert driver.tombstones[0].expires_in_s == 60.0
    assert driver.tombstones[0].messages[0] == "why 0"
    assert driver.core.job("job").counters.samples_failed == 4


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
            driver.ask(0, 1)  # a sign of life
            driver.wait(driver.core.wake_at_s - driver.now_s)
    assert driver.tombstones == []
    waits_s = [after_s - before_s for before_s, after_s in itertools.pairwise(sorted(set(times_s)))]
    assert waits_s[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(waits_s) == pytest.approx(5.0)
    driver.answer(driver.requests[0])
    assert driver.state.outage.failures == 0


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
    assert driver.in_state(S.FAILED) == [2]
    driver.wait(31.0)
    assert driver.in_state(S.ABSENT) == [2]
    assert driver.core.state.failures.get((driver.key(), 2), "") == ""
    driver.read(0, missed=(2,))
    assert driver.requested() == [2]


def test_what_expires_as_soon_as_it_is_asked_for_is_bounded_and_names_the_clocks():
    driver = one_batch(attempts=3, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, Outcome.EXPIRED) == 3
    assert "why 0; it answered so after 1.1 s of the 60 s" in driver.tombstones[0].messages[0]
    assert "clocks of the function and of the coordinator differ" in driver.tombstones[0].messages[0]


LOST = FailureKind.LOST
LATE_S = 2.5
CAPACITY = 16


def queueing(*, size: int = 64, batches: int = 16, **settings) -> Driver:
    """A driver over an executor that queues, with requests of four samples in flight."""
    driver = Driver(size=size, capacity=CAPACITY, request_samples=4, backoff_max_s=1.0, **settings)
    driver.step(ExecutorResized(CAPACITY, queues=True))
    driver.open(batch_size=4, shuffle=False)
    driver.ask(0, batches)
    return driver


def limit(driver: Driver) -> int:
    return driver.state.fleet.executors[0].concurrency.limit(driver.now_s)


def attempts(driver: Driver) -> list[int]:
    return driver.state.set_of(driver.key()).attempts.tolist()


def test_the_first_silence_is_no_samples_fault_and_lowers_the_concurrency():
    driver = queueing()
    lost = driver.requests[0]
    driver.fail(lost, LOST)
    assert limit(driver) == CAPACITY // 2
    assert not any(attempts(driver))
    while driver.requests:
        driver.answer(driver.requests[0])
        driver.wait(0.2)
    assert driver.in_state(SampleState.RESIDENT) == list(range(64))
    counters = driver.core.job("job").counters
    assert counters.invocations == CAPACITY + 1  # asked for again together, not one by one


def test_silence_among_late_functions_is_excused_a_few_times_more():
    driver = queueing(attempts=1)
    for _ in range(5):
        late, *lost = list(driver.requests)
        driver.answer(late, after_s=LATE_S)
        for request in lost:
            driver.fail(request, LOST)
        assert not driver.tombstones
        driver.ask(0, 16)  # a sign of life
        driver.wait(10.0)
        if len(driver.requests) < 2:
            break
    assert limit(driver) <= 2


def test_a_sample_of_which_every_function_dies_ends_alone_with_a_tombstone():
    driver = queueing(attempts=3)
    tried: list[int] = []
    for _ in range(200):
        if not driver.requests:
            driver.wait(1.5)
        if not driver.requests:
            break
        request = driver.requests[0]
        if 7 in request.indices:
            tried.append(request.indices.size)
            driver.fail(request, LOST)
        else:
            driver.answer(request)
    assert len(tried) == 1 + 3  # excused once
    assert tried[2:] == [1, 1]
    assert [one.indices.tolist() for one in driver.tombstones] == [[7]]
    assert "no answer came back" in driver.tombstones[0].messages[0]
    assert driver.in_state(SampleState.FAILED) == [7]


def told(driver: Driver, fault: str) -> None:
    """The record that was asked for is as it should be, or not."""
    chosen = driver.read_backs.pop()
    driver.step(RecordReadBack(chosen.samples, chosen.index, chosen.executor, fault))


def producing(**settings) -> Driver:
    driver = Driver(size=640, request_samples=8, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 80)
    return driver


def test_one_record_of_an_executor_is_read_back_every_few_seconds_however_many_it_writes():
    driver = producing(lookahead_batches=64)
    driver.answer_all()
    assert len(driver.read_backs) == 1
    told(driver, "")
    assert driver.warnings == []
    for position in range(20):
        driver.read(position, after_s=0.5)
        driver.answer_all()
    assert len(driver.read_backs) in {1, 2}, "10 s"


def test_what_does_not_read_back_is_dropped_and_produced_again_and_told_once():
    driver = producing(lookahead_batches=2)
    driver.answer(driver.requests[0])
    (chosen,) = driver.read_backs
    told(driver, "its hash is another")
    assert [drop.indices.tolist() for drop in driver.drops] == [[chosen.index]]
    assert [request.indices.tolist() for request in driver.requests].count([chosen.index]) == 1
    for _ in range(3):
        driver.wait(1.0)
        driver.answer(driver.requests[0])
        told(driver, "its hash is another")
    (warning,) = driver.warnings
    assert "does not read back: its hash is another" in warning.message
    driver.answer_all()
    assert chosen.index in driver.in_state(SampleState.RESIDENT)


def test_one_of_several_is_set_aside_until_a_record_of_it_reads_back():
    facts = (ExecutorFacts("first"), ExecutorFacts("second"))
    driver = producing(lookahead_batches=4, executors=facts)
    driver.step(ExecutorResized(8, executor=1))
    driver.answer(next(one for one in driver.requests if one.executor == 0))
    first = driver.state.fleet.executors[0]
    told(driver, "its hash is another")
    assert first.breaker.tripped
    driver.answer_all()
    assert first.breaker.tripped, "answers alone prove nothing"
    position = 0
    while not any(one.executor == 0 for one in driver.read_backs):
        driver.read_backs.clear()
        driver.read(position, after_s=1.0)
        driver.answer_all()
        position += 1
    told(driver, "")
    assert not first.breaker.tripped


def slow_one() -> tuple[Driver, object, object]:
    """A driver of which one request takes long and has a rival now; both are in flight."""
    driver = Driver(size=400, capacity=2, request_samples=4, lookahead_batches=4)
    driver.open(batch_size=4)
    for position in range(50):
        driver.ask(position, position + 4, yielded=position)
        driver.answer_all()
        driver.read(position)
    straggler = driver.requests[0]
    for request in driver.requests[1:]:
        driver.answer(request)
    driver.wait(1.0)
    (rival,) = [request for request in driver.requests if request.hedge_of == straggler.request_id]
    return driver, straggler, rival


@pytest.mark.parametrize("first", ["straggler", "rival"])
def test_the_first_answer_wins_and_the_second_changes_nothing(first):
    driver, straggler, rival = slow_one()
    assert (rival.samples, rival.indices.tolist()) == (straggler.samples, straggler.indices.tolist())
    assert driver.core.job("job").counters.hedges == 1
    one, two = (straggler, rival) if first == "straggler" else (rival, straggler)
    before = driver.core.job("job").counters.samples_produced
    driver.answer(one)
    resident_bytes = driver.core.state.resident_bytes
    assert (driver.core.state.states(one.samples, one.indices) == S.RESIDENT).all()
    driver.answer(two)
    assert driver.core.state.resident_bytes == resident_bytes
    assert driver.core.job("job").counters.samples_produced == before + one.indices.size
    assert driver.core.job("job").counters.requests_in_flight == len(driver.core.state.requests)
    assert driver.state.reserved_bytes == sum(
        one.claim.reserved_bytes for one in driver.state.requests.values()
    )
