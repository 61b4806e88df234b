"""Requests and samples: outcomes, bounded retries, audits, reading back, footprints."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import CacheEvicted, ExecutorResized, FailureKind, RecordReadBack
from superdl.coordinator.core.samples import footprint
from superdl.coordinator.core.settings import ExecutorFacts
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import RECORD_BYTES, Driver

S = SampleState


def one_batch(**settings):
    """A driver with one request in flight for one batch of four."""
    driver = Driver(size=4, capacity=1, request_samples=4, **settings)
    driver.open(batch_size=4, shuffle=False)
    driver.ask(0, 1)
    assert driver.requested() == [0, 1, 2, 3]
    return driver


def attempts_until_quiet(driver, outcome, index=0):
    """Give every answer this outcome. Return how often a sample was tried before a second went by idle."""
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
            driver.ask(0, 1)  # keep the job alive
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


def test_what_expires_as_soon_as_it_is_asked_for_is_bounded_and_names_the_time_limit():
    driver = one_batch(attempts=3, backoff_max_s=1.0)
    assert attempts_until_quiet(driver, Outcome.EXPIRED) == 3
    assert "why 0; it answered after 1.1 s of the 60 s" in driver.tombstones[0].messages[0]
    assert "the function's time limit is too short" in driver.tombstones[0].messages[0]


def told(driver, fault):
    """Report the result of the requested read-back; no ``fault`` means that the record is intact."""
    chosen = driver.read_backs.pop()
    driver.step(RecordReadBack(chosen.samples, chosen.index, chosen.executor, fault))


def producing(**settings):
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
    assert len(driver.read_backs) in {1, 2}, "one or two read-backs in 10 s"


def test_one_of_several_is_set_aside_until_a_record_of_it_reads_back():
    facts = (ExecutorFacts("first"), ExecutorFacts("second"))
    driver = producing(lookahead_batches=4, executors=facts)
    driver.step(ExecutorResized(8, executor=1))
    driver.answer(next(one for one in driver.requests if one.executor == 0))
    first = driver.state.fleet.executors[0]
    told(driver, "its hash is another")
    assert first.breaker.tripped
    driver.answer_all()
    assert first.breaker.tripped, "answers alone do not reset the breaker"
    position = 0
    while not any(one.executor == 0 for one in driver.read_backs):
        driver.read_backs.clear()
        driver.read(position, after_s=1.0)
        driver.answer_all()
        position += 1
    told(driver, "")
    assert not first.breaker.tripped


def test_what_the_server_may_have_evicted_is_looked_for_once():
    driver = Driver(size=8)
    driver.open(shuffle=False)
    driver.ask(0, 1)
    driver.answer_all()
    driver.step(CacheEvicted())
    (audit,) = driver.audits
    driver.tell(audit, [*[RECORD_BYTES] * 7, 0])
    assert driver.requested() == [7]
    driver.answer_all()
    for epoch in range(40):  # the look-ahead reaches them again and again
        driver.ask(0, 1, epoch=epoch, yielded=1)
        driver.read(0, epoch=epoch, after_s=0.1)
    assert driver.audits == []


ANSWER_S = 1.5  # time that a function with a throttled source takes to answer


def reading(size):
    driver = Driver(size=size, capacity=64, lookahead_batches=1000)
    driver.open(batch_size=64, shuffle=False)
    driver.ask(0, -(-size // 64))
    return driver


def answer_those_in_flight(driver, outcome):
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
    asked = 0
    while driver.now_s < outage_s:
        asked += answer_those_in_flight(driver, Outcome.UNAVAILABLE)
    assert asked <= size + 64 * 2 * (3 + outage_s / 2), "each once, then one request per growing wait"
    back_s = driver.now_s
    while len(driver.in_state(SampleState.RESIDENT)) < size:
        answer_those_in_flight(driver, Outcome.CACHED)
        assert driver.now_s < back_s + 20
    assert driver.tombstones == []
    assert driver.core.unavailable_for_s(driver.key()) == 0


# jemalloc's size classes from 16 bytes to 1 MiB (jemalloc(3), "Size classes", 16-byte quantum)
CLASSES = sorted(
    {16, 32, 48, 64, 80, 96, 112, 128}
    | {base + part * base // 4 for base in (2**power for power in range(7, 20)) for part in (1, 2, 3, 4)}
)


@given(st.integers(1, 2**20 - 16))
def test_a_footprint_is_a_size_class_and_the_key(record_bytes):
    taken = int(footprint(np.array([record_bytes]))[0])
    key_bytes = int(footprint(np.array([0]))[0]) - 16
    assert taken - key_bytes == next(size for size in CLASSES if size >= record_bytes + 16)


def test_no_record_is_larger_than_its_footprint_in_a_real_server(valkey):
    with valkey.client() as client:
        for size in (64, 200, 1000, 50_000, 150_592, 602_176):
            client.set(b"super:r1:" + b"0" * 32, bytes(size))
            taken = int(footprint(np.array([size]))[0])
            assert client.memory_usage(b"super:r1:" + b"0" * 32) <= taken <= 1.25 * size + 200
