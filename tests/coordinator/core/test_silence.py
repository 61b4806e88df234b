"""Requests to which no answer comes: dropped since too many were made, or the end of their function.

Both look alike. What is dropped by an executor that queues must not be held against samples; a sample of
which functions die must not be asked for for ever.
"""

from __future__ import annotations

from superdl.coordinator.core import SampleState
from superdl.coordinator.core.events import ExecutorResized, FailureKind
from tests.coordinator.core.driver import Driver

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


def test_functions_that_begin_late_lower_the_concurrency_as_throttling_does():
    driver = queueing()
    driver.answer(driver.requests[0], after_s=LATE_S)
    assert limit(driver) == CAPACITY // 2
    driver.answer(driver.requests[0], after_s=1.1)
    assert limit(driver) < CAPACITY // 2


def test_an_executor_that_refuses_may_begin_late():
    driver = queueing()
    driver.step(ExecutorResized(CAPACITY))
    driver.answer(driver.requests[0], after_s=LATE_S)
    driver.fail(driver.requests[0], LOST)
    assert limit(driver) == CAPACITY


def test_silence_among_late_functions_is_excused_a_few_times_more():
    driver = queueing(attempts=1)
    for _ in range(5):
        late, *lost = list(driver.requests)
        driver.answer(late, after_s=LATE_S)
        for request in lost:
            driver.fail(request, LOST)
        assert not driver.tombstones
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


def test_an_answer_wipes_silence_out():
    driver = queueing(size=4, batches=1, attempts=1)
    driver.fail(driver.requests[0], LOST)
    driver.wait(1.5)
    driver.answer(driver.requests[0])
    assert not driver.state.set_of(driver.key()).unanswered
