"""The budget: kept by dropping what is needed later, given to readers first, and never waited for in vain."""

from __future__ import annotations

import pytest

from superdl.coordinator.core import EVERY_EPOCH, SampleState, SetKey
from superdl.coordinator.core.events import (
    CacheGrew,
    CacheReset,
    CacheResized,
    DatasetAdded,
    JobClosed,
    JobOpened,
    Tick,
)
from superdl.coordinator.core.samples import footprint
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import DATASET, Driver

S = SampleState
TAKEN = int(footprint(1000))


def crowded(samples: int, **settings) -> Driver:
    """A cache with room for so many samples, and a job that reads 64 in order, 8 at a time."""
    driver = Driver(budget_bytes=samples * TAKEN, capacity=2, request_samples=8, **settings)
    driver.open(shuffle=False)
    driver.ask(0, 8)
    return driver


def read_epoch(driver: Driver, epoch: int, *, reports_misses: bool = True) -> int:
    """Read an epoch as a reader does, keeping what it has got; how often it had to ask."""
    asked = 0
    plan = driver.core.job("job").plan
    for position in range(plan.batches_per_epoch):
        driver.ask(position, position + 1, epoch=epoch, yielded=position)
        indices = plan.batch(epoch, position, 0).indices
        missing = list(range(indices.size))
        for _ in range(100):
            states = driver.core.states(driver.key(), indices)
            missing = [offset for offset in missing if states[offset] != S.RESIDENT]
            if not missing:
                break
            asked += 1
            if reports_misses:
                driver.read(position, missed=tuple(missing), epoch=epoch, after_s=0.05)
            for request in list(driver.requests):
                driver.answer(request)
            assert driver.core.resident_bytes + driver.state.reserved_bytes <= driver.core.budget_bytes
        assert missing == []
        driver.read(position, epoch=epoch, after_s=0.05)
    return asked


@pytest.mark.parametrize("samples", [1, 3, 8, 12, 20, 40])
def test_epochs_end_within_any_budget(samples):
    driver = crowded(samples)
    for epoch in range(3):
        read_epoch(driver, epoch)
    assert driver.core.dropped_samples > 0


def test_what_fits_is_never_dropped():
    driver = crowded(64)
    for epoch in range(3):
        read_epoch(driver, epoch)
    assert driver.drops == []
    assert driver.core.job("job").counters.samples_produced == 64


def test_under_pressure_what_was_read_goes_first():
    driver = crowded(32, lookahead_batches=2)
    for position in range(4):
        driver.answer_all()
        driver.read(position, after_s=0.05)
    driver.answer_all()
    dropped = {index for drop in driver.drops for index in drop.indices.tolist()}
    # 32 of 48 have room; of what was read, that with the farthest next use.
    assert dropped <= set(range(32))
    assert set(driver.in_state(S.RESIDENT)) >= set(range(32, 48))


def test_looking_ahead_drops_nothing_that_is_needed_sooner():
    driver = crowded(16, lookahead_batches=64)
    driver.answer_all()
    assert driver.in_state(S.RESIDENT) == list(range(16))
    assert driver.drops == []


def test_a_lane_without_room_goes_on_when_it_has_read():
    driver = crowded(16)
    driver.answer_all()
    driver.read(0, after_s=0.1)
    driver.answer_all()
    driver.wait(1.0)
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= set(range(8, 24))


def test_a_lane_without_room_goes_on_when_another_job_closes():
    driver = crowded(16)
    driver.open("second", shuffle=False, at=(0, 4))
    driver.answer_all()
    driver.step(JobClosed("job", 0))
    driver.wait(1.0)
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= set(range(32, 48))


def test_a_lane_without_room_goes_on_after_a_reset():
    driver = crowded(16)
    driver.answer_all()
    driver.step(CacheReset())
    driver.answer_all()
    assert driver.in_state(S.RESIDENT) == list(range(16))


def test_waiting_for_room_costs_nothing_while_nothing_happens():
    driver = crowded(16)
    driver.answer_all()
    driver.wait(0.2)
    searches = driver.state.evictions
    assert driver.wait(20.0) == []
    driver.step(Tick())
    assert driver.state.evictions <= searches + 1


def test_searches_in_vain_are_few_however_many_events_come():
    driver = crowded(16)
    driver.answer_all()
    driver.wait(1.0)
    before = driver.state.evictions
    for _ in range(1000):
        driver.ask(0, 8)
    assert driver.state.evictions - before <= 2


def test_a_reader_gets_room_before_all_others():
    driver = crowded(16)
    driver.answer_all()
    driver.read(6, missed=tuple(range(8)))
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= set(range(48, 56))


def test_what_a_reader_waits_for_is_not_dropped_for_another():
    """Found by the simulator: two readers had each other's samples dropped before they could fetch them."""
    driver = crowded(4)
    driver.read(5, missed=(0, 1))
    driver.answer_all()
    driver.read(6, missed=(0, 1, 2, 3, 4, 5, 6, 7))
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= {40, 41}
    driver.read(5, after_s=0.1)
    driver.read(6, missed=(2, 3, 4, 5, 6, 7))
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) & set(range(50, 56))


def test_a_reader_that_died_blocks_others_for_seconds_only():
    driver = crowded(2)
    driver.read(5, missed=(0, 1))
    driver.answer_all()
    driver.read(6, missed=(0, 1))
    assert driver.requests == []
    driver.wait(5.0)
    assert driver.requested() == [48, 49]


def test_records_larger_than_expected_are_made_room_for_at_once():
    driver = crowded(16, lookahead_batches=2)
    driver.read(0)
    driver.answer_all(record_bytes=3000)
    driver.step(Tick())
    now = [index for index in driver.in_state(S.RESIDENT) if index >= 8]
    assert driver.core.resident_bytes <= max(driver.core.budget_bytes, len(now) * int(footprint(3000)))


def test_memory_that_others_take_is_made_room_for():
    driver = crowded(64, lookahead_batches=2)
    for position in range(6):
        driver.answer_all()
        driver.read(position)
    driver.step(CacheGrew(40 * TAKEN))
    assert driver.state.free_bytes >= 0
    assert len(driver.in_state(S.RESIDENT)) >= 16


def test_a_cache_that_shrinks_is_made_room_for_at_once_and_one_that_grows_is_used():
    driver = crowded(64)
    read_epoch(driver, 0)
    driver.step(CacheResized(16 * TAKEN))
    assert driver.core.budget_bytes == 16 * TAKEN
    assert len(driver.in_state(S.RESIDENT)) <= 16
    read_epoch(driver, 1)
    driver.step(CacheResized(64 * TAKEN))
    read_epoch(driver, 2)
    dropped = driver.core.dropped_samples
    read_epoch(driver, 3)
    assert (len(driver.in_state(S.RESIDENT)), driver.core.dropped_samples) == (64, dropped)


def test_a_write_refused_for_memory_makes_room_and_blames_no_sample_and_no_executor():
    driver = crowded(64, lookahead_batches=4)
    for position in range(4):
        driver.answer_all()
        driver.read(position, after_s=0.05)
    held = len(driver.in_state(S.RESIDENT))
    (request, *_) = driver.requests
    driver.answer(request, Outcome.CACHE_FULL)
    assert len(driver.in_state(S.RESIDENT)) <= held - request.indices.size
    assert not driver.state.fleet.executors[0].breaker.tripped
    assert not driver.state.set_of(driver.key()).attempts.any()
    driver.step(CacheResized(64 * TAKEN))  # the look at the server
    driver.wait(1.0)
    driver.answer_all()
    assert set(driver.in_state(S.RESIDENT)) >= set(request.indices.tolist())


def test_what_was_held_back_after_refusals_comes_back_with_the_looks():
    driver = crowded(64)
    driver.answer(driver.requests[0], Outcome.CACHE_FULL)
    assert driver.state.free_bytes < 0
    for _ in range(40):
        driver.step(CacheResized(64 * TAKEN), after_s=1.0)
    assert driver.state.withheld_bytes == 0


def test_readers_are_served_though_others_have_all_the_memory():
    driver = crowded(16)
    driver.step(CacheGrew(10**9))
    assert read_epoch(driver, 0) > 0


def test_a_sample_larger_than_the_budget_is_produced_for_its_reader_alone():
    driver = Driver(size=4, budget_bytes=100, capacity=4)
    driver.open(batch_size=2, shuffle=False)
    driver.ask(0, 2)
    assert driver.requests == []
    driver.read(0, missed=(0, 1))
    assert driver.requested() == [0]


def test_what_no_job_reads_goes_first():
    driver = crowded(64)
    plan = driver.core.job("job").plan
    read_epoch(driver, 0)
    driver.step(JobClosed("job", 0))
    driver.step(DatasetAdded(b"new", 64, False, 1000, True))
    driver.step(JobOpened("new", b"new", plan, 0))
    driver.answer_all()
    assert driver.drops
    assert {drop.samples.dataset for drop in driver.drops} == {DATASET}
    assert driver.state.sets[SetKey(b"new", EVERY_EPOCH)].resident_count == 32
