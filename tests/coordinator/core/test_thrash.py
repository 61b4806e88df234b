"""Thrash is told once it is much and lasts, and no more once it has ended."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.coordinator.core.diagnosis import headroom_bytes, maxmemory_for
from superdl.coordinator.core.events import CacheResized, JobClosed
from superdl.coordinator.core.journal import Thrash
from superdl.coordinator.core.samples import footprint
from tests.coordinator.core.driver import RECORD_BYTES, Driver

DATA = b"data"


def note(thrash: Thrash, needed: int, again: int, now: float) -> bool:
    thrash.needed(DATA, needed, now)
    return thrash.produced_again(DATA, again, now)


def test_producing_again_what_was_dropped_is_thrash_once_it_is_much():
    thrash = Thrash()
    began = [note(thrash, 100, 50, second) for second in range(10)]
    assert began.count(True) == 1
    assert thrash.thrashing


def test_a_little_of_it_is_none():
    thrash = Thrash()
    assert not any(note(thrash, 100, 1, second) for second in range(100))


def test_a_few_samples_say_nothing():
    thrash = Thrash()
    assert not any(note(thrash, 4, 4, second) for second in range(10))


def test_what_another_dataset_needs_hides_nothing():
    thrash = Thrash()
    for second in range(10):
        thrash.needed(b"other", 100_000, second)
    assert any(note(thrash, 100, 50, second) for second in range(10))


def test_it_ends_and_may_begin_again():
    thrash = Thrash()
    for second in range(20):
        note(thrash, 100, 90, second)
    for second in range(20, 800):
        note(thrash, 100, 0, second)
    assert not thrash.thrashing
    assert any(note(thrash, 100, 90, second) for second in range(800, 900))


@pytest.mark.parametrize("megabytes", [1, 100, 192, 193, 300, 576, 577, 10_000])
def test_a_server_with_the_memory_named_leaves_as_much_for_records(megabytes):
    budget_bytes = megabytes * 2**20
    limit = maxmemory_for(budget_bytes)
    assert budget_bytes <= limit - headroom_bytes(limit) <= budget_bytes + 2


def test_what_is_told_of_thrash_ends_with_the_jobs_and_with_the_memory_that_was_named():
    taken = int(footprint(np.array([RECORD_BYTES]))[0])
    driver = Driver(size=800, capacity=4, request_samples=8, budget_bytes=400 * taken)
    driver.open()
    for epoch in range(3):
        read_epoch(driver, epoch)
    assert driver.core.thrashing
    driver.step(CacheResized(driver.core.needed_bytes))
    assert not driver.core.thrashing
    driver.step(CacheResized(400 * taken))
    driver.step(JobClosed("job", 0))
    assert not driver.core.thrashing


def test_a_cache_that_is_too_small_is_told_with_the_budget_that_would_do():
    taken = int(footprint(np.array([RECORD_BYTES]))[0])
    driver = Driver(size=800, capacity=4, request_samples=8, budget_bytes=400 * taken)
    driver.open()
    for epoch in range(3):
        read_epoch(driver, epoch)
    (warning,) = driver.warnings
    assert "thrash" in warning.message
    assert driver.core.thrashing
    enough_bytes = driver.core.needed_bytes
    assert 800 * taken <= enough_bytes < 1100 * taken
    calm = Driver(size=800, capacity=4, request_samples=8, budget_bytes=enough_bytes)
    calm.open()
    for epoch in range(3):
        read_epoch(calm, epoch)
    assert calm.warnings == []
    assert calm.core.dropped_samples == calm.core.reproduced_samples == 0


def read_epoch(driver: Driver, epoch: int) -> None:
    for position in range(100):
        driver.ask(position, position + 1, epoch=epoch, yielded=position)
        driver.answer_all()
        driver.read(position, epoch=epoch, after_s=0.05)
