"""Thrash is told once it is much and lasts, and no more once it has ended."""

from __future__ import annotations

from coordinator.core.thrash import Thrash


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
