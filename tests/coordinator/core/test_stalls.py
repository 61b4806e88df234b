"""Each batch that a reader waited for has one cause, by what was known and what functions did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from superdl.coordinator.core.events import (
    OUTCOME_ORDER,
    BatchRead,
    CacheReset,
    ExecutorResized,
    FailureKind,
    RequestDone,
)
from superdl.coordinator.core.journal import RECENT_STALLS, Cause
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import RECORD_BYTES, Driver

if TYPE_CHECKING:
    from superdl.coordinator.core.events import Prefetch

ALL = tuple(range(8))


def stalled(driver: Driver, position: int, *, wait_us: int = 1000) -> None:
    """A reader got a batch of which it had missed all at its first look."""
    nothing = np.empty(0, dtype=np.int64)
    driver.step(BatchRead("job", 0, 0, position, 8, 0, nothing, nothing, True, 10, wait_us))


def answer(
    driver: Driver, request: Prefetch, *, fetch_us: int, decode_us: int, cold_start: bool = False
) -> None:
    driver.requests.remove(request)
    count = request.indices.size
    outcomes = np.full(count, OUTCOME_ORDER.index(Outcome.CACHED), dtype=np.uint8)
    lengths = np.full(count, RECORD_BYTES)
    driver.step(
        RequestDone(
            request_id=request.request_id,
            outcomes=outcomes,
            record_bytes=lengths,
            source_bytes=10,
            fetch_us=fetch_us,
            decode_us=decode_us,
            push_us=1,
            duration_us=6000,
            cold_start=cold_start,
        ),
        after_s=0.01,
    )


def causes(driver: Driver) -> list[Cause]:
    job = driver.core.job("job")
    assert job is not None
    return [stall.cause for stall in job.stalls.recent]


def driver_under_way(**settings: int) -> Driver:
    """A job whose first batch was read; functions have a place for each of the next requests."""
    driver = Driver(**{"lookahead_batches": 2, "request_samples": 8, "capacity": 64, **settings})
    driver.open()
    driver.ask(0, 8)
    driver.answer_all()
    driver.read(0)
    driver.answer_all()
    return driver


@pytest.mark.parametrize(
    ("fetch_us", "decode_us", "cause"),
    [
        (100, 5000, Cause.DECODE),
        (5000, 100, Cause.SOURCE),
        (40_000, 4000, Cause.DECODE),  # many at once, and decoding all the time
    ],
)
def test_functions_that_were_busy_are_the_cause_by_what_they_did(fetch_us, decode_us, cause):
    driver = driver_under_way(capacity=1)
    driver.read(1)
    driver.read(2)
    driver.read(3, missed=ALL)
    while driver.requests:
        answer(driver, driver.requests[0], fetch_us=fetch_us, decode_us=decode_us)
    stalled(driver, 3, wait_us=2500)
    job = driver.core.job("job")
    assert job is not None
    assert job.stalls.batches == {cause: 1}
    assert job.stalls.wait_us == {cause: 2500}
    assert job.stalls.recent[0][:3] == (0, 0, 3)
    assert job.counters.stalls == 1


def test_the_first_batches_of_a_job_can_have_nothing_ahead_of_them():
    driver = Driver(lookahead_batches=2, capacity=64)
    driver.open()
    driver.ask(0, 8)
    driver.read(5, missed=ALL)  # not looked ahead to so far
    driver.answer_all()
    stalled(driver, 5)
    assert causes(driver) == [Cause.COLD_START]


def test_functions_that_were_starting_are_the_cause():
    driver = Driver(lookahead_batches=2, request_samples=8, capacity=64)
    driver.open()
    driver.ask(0, 8)
    driver.read(0, missed=ALL)
    for request in list(driver.requests):
        answer(driver, request, fetch_us=1, decode_us=9, cold_start=True)
    stalled(driver, 0)
    assert causes(driver) == [Cause.COLD_START]


def test_what_was_not_asked_for_though_functions_had_nothing_to_do_was_planned_late():
    driver = driver_under_way()
    driver.read(6, missed=ALL)
    driver.answer_all()
    stalled(driver, 6)
    assert causes(driver) == [Cause.LATE_PLANNING]


def test_an_executor_that_refuses_is_the_cause():
    driver = driver_under_way(capacity=2)
    driver.read(1)
    driver.read(2)
    driver.read(3, missed=ALL)
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    driver.wait(5.0)
    driver.answer_all()
    stalled(driver, 3)
    assert causes(driver) == [Cause.THROTTLE]


def test_samples_that_wait_for_another_attempt_are_the_cause():
    driver = driver_under_way(capacity=2)
    driver.read(1)
    driver.read(2)
    for request in list(driver.requests):
        driver.fail(request, FailureKind.CRASHED)
    driver.read(3, missed=ALL)
    driver.wait(60.0)
    driver.answer_all()
    stalled(driver, 3)
    assert causes(driver) == [Cause.RETRY]


def test_a_record_that_the_cache_has_lost_is_the_cause():
    driver = driver_under_way()
    driver.read(1, missed=ALL)
    (audit,) = driver.audits
    driver.tell(audit, [0] * 8)
    driver.answer_all()
    stalled(driver, 1)
    assert causes(driver) == [Cause.CACHE_MEMORY]


def test_a_record_that_came_since_the_reader_looked_is_no_loss():
    driver = driver_under_way()
    driver.read(1, missed=ALL)
    (audit,) = driver.audits
    driver.tell(audit, [RECORD_BYTES] * 8)
    stalled(driver, 1)
    assert causes(driver) == [Cause.DECODE]


def test_a_stall_whose_first_report_was_lost_is_counted_all_the_same():
    driver = driver_under_way()
    stalled(driver, 1)
    assert causes(driver) == [Cause.UNKNOWN]


def test_repeated_misses_do_not_change_what_the_first_has_told():
    driver = driver_under_way()
    driver.read(6, missed=ALL)
    driver.read(6, missed=ALL)  # in flight by now
    driver.answer_all()
    stalled(driver, 6)
    assert causes(driver) == [Cause.LATE_PLANNING]


def test_each_stall_is_in_the_totals_and_the_newest_are_told():
    driver = driver_under_way()
    for _ in range(RECENT_STALLS + 5):
        stalled(driver, 1)
    job = driver.core.job("job")
    assert job is not None
    assert sum(job.stalls.batches.values()) == job.counters.stalls == RECENT_STALLS + 5
    assert len(job.stalls.recent) == RECENT_STALLS


def test_a_batch_that_hit_is_no_stall():
    driver = driver_under_way()
    driver.read(1)
    assert causes(driver) == []


def test_readers_that_never_tell_the_end_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr("superdl.coordinator.core.journal._WAITS_MAX", 2)
    driver = driver_under_way()
    for position in (4, 5, 6):
        driver.read(position, missed=(0,))
    driver.answer_all()
    for position in (4, 5, 6):
        stalled(driver, position)
    assert causes(driver) == [Cause.UNKNOWN, Cause.LATE_PLANNING, Cause.LATE_PLANNING]


def test_no_function_at_all_is_a_start_that_has_not_happened():
    driver = Driver(lookahead_batches=2, capacity=64)
    driver.step(ExecutorResized(0))
    driver.open()
    driver.ask(0, 8)
    driver.read(0, missed=ALL)
    driver.step(ExecutorResized(64))
    driver.step(CacheReset())
    driver.answer_all()
    stalled(driver, 0)
    assert causes(driver) == [Cause.COLD_START]
