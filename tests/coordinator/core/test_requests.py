"""Requests and samples: outcomes, bounded retries, audits, reading back, footprints."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import ExecutorResized, FailureKind, RecordReadBack
from superdl.coordinator.core.samples import footprint
from superdl.coordinator.core.settings import ExecutorFacts
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver

S = SampleState


def one_batch(**settings):
    """A driver with one request in flight for one batch of four."""
    driver = Driver(size=4, capacity=1, request_samples=4, **settings)
    driver.open(batch_size=4, shuffle=False)
    driver.ask(0, 1)
    assert driver.requested() == [0, 1, 2, 3]
    return driver


@pytest.mark.parametrize("reason", [Outcome.CACHE_ERROR, FailureKind.THROTTLED, FailureKind.UNAVAILABLE])
def test_failures_that_are_no_samples_fault_are_retried_with_growing_pauses(reason):
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
            driver.ask(0, 1)  # keep the job alive
            driver.wait(driver.core.wake_at_s - driver.now_s)
    assert driver.tombstones == []
    waits_s = [after_s - before_s for before_s, after_s in itertools.pairwise(sorted(set(times_s)))]
    assert waits_s[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(waits_s) == pytest.approx(5.0)
    driver.answer(driver.requests[0])
    assert driver.state.outage.failures == 0


def test_a_slow_sample_is_retried_alone_and_others_are_not_blamed():
    driver = one_batch(attempts=3, tombstone_ttl_s=30.0)
    driver.answer(driver.requests[0], Outcome.EXPIRED, but={0: Outcome.CACHED, 2: Outcome.TIMED_OUT})
    requested = []
    for _ in range(20):
        driver.wait(1.0)
        for request in list(driver.requests):
            requested.append(request.indices.tolist())
            driver.answer(request, Outcome.TIMED_OUT if 2 in request.indices else Outcome.CACHED)
    assert sorted(index for indices in requested for index in indices) == [1, 2, 2, 3]
    assert [2] in requested
    assert all(len(indices) == 1 for indices in requested if 2 in indices)
    (tombstones,) = driver.tombstones
    assert (tombstones.indices.tolist(), tombstones.expires_in_s) == ([2], 30.0)
    assert driver.in_state(S.FAILED) == [2]
    driver.wait(31.0)
    assert driver.in_state(S.ABSENT) == [2]
    assert driver.core.state.failures.get((driver.key(), 2), "") == ""
    driver.read(0, missed=(2,))
    assert driver.requested() == [2]


def test_samples_that_expire_at_once_fail_and_the_message_names_the_time_limit():
    driver = one_batch(attempts=3, backoff_max_s=1.0)
    for _ in range(3):
        (request,) = driver.requests
        driver.answer(request, Outcome.EXPIRED)
        driver.wait(1.5)
    assert not driver.requests
    message = driver.tombstones[0].messages[0]
    assert "why 0; the function returned after" in message
    assert "time limit is too short" in message


def finish_read_back(driver, fault):
    """Report the requested read-back. An empty ``fault`` means that the record is intact."""
    chosen = driver.read_backs.pop()
    driver.step(RecordReadBack(chosen.samples, chosen.index, chosen.executor, fault))


def producing(**settings):
    driver = Driver(size=640, request_samples=8, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 80)
    return driver


def test_each_executor_has_a_record_read_back_every_few_seconds():
    driver = producing(lookahead_batches=64)
    driver.answer_all()
    assert len(driver.read_backs) == 1
    finish_read_back(driver, "")
    assert driver.warnings == []
    for position in range(20):
        driver.read(position, after_s=0.5)
        driver.answer_all()
    assert len(driver.read_backs) in {1, 2}, "one or two read-backs in 10 s"


def test_an_executor_with_corrupt_records_is_set_aside_until_one_is_intact():
    facts = (ExecutorFacts("first"), ExecutorFacts("second"))
    driver = producing(lookahead_batches=4, executors=facts)
    driver.step(ExecutorResized(8, executor=1))
    driver.answer(next(request for request in driver.requests if request.executor == 0))
    first = driver.state.fleet.executors[0]
    finish_read_back(driver, "its hash is another")
    assert first.breaker.tripped
    driver.answer_all()
    assert first.breaker.tripped, "answers alone do not reset the breaker"
    position = 0
    while not any(chosen.executor == 0 for chosen in driver.read_backs):
        driver.read_backs.clear()
        driver.read(position, after_s=1.0)
        driver.answer_all()
        position += 1
    finish_read_back(driver, "")
    assert not first.breaker.tripped


ANSWER_S = 1.5  # time that a function with a throttled source takes to answer


def reading(size):
    driver = Driver(size=size, capacity=64, lookahead_batches=1000)
    driver.open(batch_size=64, shuffle=False)
    driver.ask(0, -(-size // 64))
    return driver


def answer_in_flight(driver, outcome):
    """Answer all requests in flight after a while. Return the number of samples."""
    requests = list(driver.requests)
    driver.wait(ANSWER_S)
    driver.ask(0, 1)  # keep the job alive
    for request in requests:
        driver.answer(request, outcome, after_s=0.0)
    return sum(request.indices.size for request in requests)


@pytest.mark.parametrize(
    ("size", "outage_s"),
    [
        *itertools.product([2, 30], [5, 20, 60]),
        (5000, 5),
        *(pytest.param(5000, outage_s, marks=pytest.mark.slow) for outage_s in (20, 60)),
    ],
)
def test_an_outage_is_probed_by_few_requests_and_costs_no_sample(size, outage_s):
    driver = reading(size)
    requested = 0
    while driver.now_s < outage_s:
        requested += answer_in_flight(driver, Outcome.UNAVAILABLE)
    assert requested <= size + 64 * 2 * (3 + outage_s / 2), "each once, then one request per growing wait"
    back_s = driver.now_s
    while len(driver.in_state(SampleState.RESIDENT)) < size:
        answer_in_flight(driver, Outcome.CACHED)
        assert driver.now_s < back_s + 20
    assert driver.tombstones == []
    assert driver.core.unavailable_for_s(driver.key()) == 0


# jemalloc's size classes from 16 bytes to 1 MiB (jemalloc(3), "Size classes", 16-byte quantum)
CLASSES = sorted(
    {16, 32, 48, 64, 80, 96, 112, 128}
    | {base + part * base // 4 for base in (2**power for power in range(7, 20)) for part in (1, 2, 3, 4)}
)


@given(st.integers(1, 2**20 - 16))
def test_a_footprint_is_a_size_class_plus_the_key(record_bytes):
    taken = int(footprint(np.array([record_bytes]))[0])
    key_bytes = int(footprint(np.array([0]))[0]) - 16
    assert taken - key_bytes == next(size for size in CLASSES if size >= record_bytes + 16)


def test_a_real_server_uses_no_more_memory_than_the_footprint(valkey):
    with valkey.client() as client:
        for size in (64, 200, 1000, 50_000, 150_592, 602_176):
            client.set(b"super:r1:" + b"0" * 32, bytes(size))
            taken = int(footprint(np.array([size]))[0])
            assert client.memory_usage(b"super:r1:" + b"0" * 32) <= taken <= 1.25 * size + 200
