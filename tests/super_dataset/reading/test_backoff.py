"""The waits between attempts: growing, jittered, bounded twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.reading.reader import Backoff


@given(total_s=st.floats(0.001, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_time_runs_out_before_attempts_do(total_s, jitter):
    backoff = Backoff(total_s)
    waited_s = sum(backoff.delay_s(attempt, jitter) for attempt in range(1, backoff.attempts))
    assert waited_s >= total_s


@given(attempt=st.integers(1, 10**6), jitter=st.floats(0, 1, exclude_max=True))
def test_delays_are_bounded(attempt, jitter):
    assert 0.0025 <= Backoff(1.0).delay_s(attempt, jitter) <= 1.0


def test_delays_double_up_to_a_second():
    delays_s = [Backoff(1.0).delay_s(attempt, 1.0) for attempt in range(1, 10)]
    assert delays_s == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0])
