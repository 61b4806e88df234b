"""How fast a rank consumes, told from reports that come in clumps, between stalls and pauses."""

from __future__ import annotations

import pytest

from superdl.coordinator.core.timing import Pace


def after(reads: list[tuple[float, bool]]) -> float:
    pace = Pace(0.0)
    for at_s, stalled in reads:
        pace.read(1, at_s, stalled=stalled)
    return pace.interval_s


@pytest.mark.parametrize("interval_s", [0.002, 0.1, 2.0])
def test_a_steady_pace_is_found(interval_s):
    count = int(30 * max(1.0, 1.0 / interval_s))
    assert after([(interval_s * n, False) for n in range(1, count)]) == pytest.approx(interval_s, rel=0.02)


def test_clumps_do_not_make_it_fast():
    reads = [(0.1 * (n - n % 20 + 20), False) for n in range(400)]
    assert after(reads) == pytest.approx(0.1, rel=0.1)


def test_waiting_is_no_slow_pace():
    steady = [(0.1 * n, False) for n in range(1, 200)]
    waiting = [(20.0 + 2.0 * n, True) for n in range(1, 50)]
    assert after(steady + waiting) < 0.25


def test_a_pause_is_no_change_of_pace():
    steady = [(0.1 * n, False) for n in range(1, 200)]
    going_on = [(320.0 + 0.1 * n, False) for n in range(40)]
    assert after([*steady, *going_on]) < 0.25


def test_a_faster_pace_is_believed_though_readers_wait():
    slow = [(1.0 * n, False) for n in range(1, 30)]
    fast = [(30.0 + 0.1 * n, True) for n in range(1, 300)]
    assert after(slow + fast) == pytest.approx(0.1, rel=0.02)


def test_a_new_beginning_does_not_count_the_time_before():
    pace = Pace(0.0)
    for number in range(1, 200):
        pace.read(1, 0.1 * number, stalled=False)
    pace.restart(1000.0)
    for number in range(1, 20):
        pace.read(1, 1000.0 + 0.1 * number, stalled=False)
    assert pace.interval_s == pytest.approx(0.1, rel=0.05)
