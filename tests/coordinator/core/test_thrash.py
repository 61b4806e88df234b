"""Thrash is told once it is much and lasts, and no more once it has ended."""

from __future__ import annotations

import numpy as np

from coordinator.core.samples import footprint
from coordinator.core.thrash import Thrash
from tests.coordinator.core.driver import RECORD_BYTES, Driver


def test_producing_again_what_was_dropped_is_thrash_once_it_is_much():
    thrash = Thrash()
    began = [thrash.note(100, 50, second) for second in range(10)]
    assert began.count(True) == 1
    assert thrash.thrashing
    assert thrash.reproduced_samples == 500


def test_a_little_of_it_is_none():
    thrash = Thrash()
    assert not any(thrash.note(100, 10, second) for second in range(100))


def test_a_few_samples_say_nothing():
    thrash = Thrash()
    assert not any(thrash.note(4, 4, second) for second in range(10))


def test_it_ends_and_may_begin_again():
    thrash = Thrash()
    for second in range(20):
        thrash.note(100, 90, second)
    for second in range(20, 400):
        thrash.note(100, 0, second)
    assert not thrash.thrashing
    assert any(thrash.note(100, 90, second) for second in range(400, 500))


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
