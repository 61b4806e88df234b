"""Executors are set aside when they refuse or go on failing, longer each time, and forgiven by success."""

from __future__ import annotations

import pytest

from superdl.coordinator.core.health import LONGEST_S, Health


def until_s(health: Health) -> float:
    return health.aside_until_s()


def test_at_first_all_is_well():
    health = Health()
    assert not health.doubtful
    assert until_s(health) < 0


def test_a_refusal_sets_aside_at_once():
    health = Health()
    health.refused("throttled", 10.0, 10.0)
    assert health.doubtful
    assert health.reason == "throttled"
    assert until_s(health) > 10.0


def test_failures_set_aside_once_there_are_several_in_a_row():
    health = Health()
    for now in (1.0, 2.0):
        health.failed("raised", now, now)
    health.worked()
    for now in (3.0, 4.0):
        health.failed("raised", now, now)
    assert not health.doubtful
    health.failed("raised", 5.0, 5.0)
    assert health.doubtful


def test_each_pause_is_longer_up_to_a_bound():
    health, now, pauses = Health(), 0.0, []
    for _ in range(12):
        health.refused("gone", now, now)
        pauses.append(until_s(health) - now)
        now = until_s(health)
    assert pauses == sorted(pauses)
    assert pauses[1] == pytest.approx(2 * pauses[0])
    assert pauses[-1] == pytest.approx(LONGEST_S)


def test_many_that_fail_together_make_one_pause():
    health = Health()
    health.refused("gone", 0.5, 1.0)
    first_s = until_s(health)
    for _ in range(20):
        health.refused("gone", 0.9, 1.01)
    assert until_s(health) == first_s
    health.refused("gone", 1.02, 1.03)
    assert until_s(health) > first_s, "that one was made to see whether it works again"


def test_a_pause_can_be_cut_short():
    health = Health()
    for now in (0.0, 100.0, 200.0, 300.0, 400.0, 500.0):
        health.refused("gone", now, now)
    assert health.aside_until_s(longest_s=1.0) == 501.0


def test_success_forgives_all():
    health = Health()
    health.refused("gone", 1.0, 1.0)
    health.refused("gone", 60.0, 60.0)
    health.worked()
    assert not health.doubtful
    assert health.reason == ""
    health.refused("gone", 100.0, 100.0)
    assert until_s(health) == pytest.approx(100.5)
