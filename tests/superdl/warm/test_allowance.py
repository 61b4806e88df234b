"""How far a job is let look ahead: never beyond room and money, and as near to them as it can be told."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.warm.allowance import Allowance, Means, batch_size_for


@pytest.mark.parametrize(
    ("samples", "means", "sure", "size"),
    [
        (1_000_000, Means(1e12, 1000.0), True, 256),  # what fits and is sure comes in ordinary batches
        (160, Means(1e12, 1000.0), True, 10),
        (3, Means(1e12, 1000.0), True, 1),
        (1_000_000, Means(65_536_000, 1000.0), True, 128),  # else a first look ahead takes an eighth
        (1000, Means(1e12, 1.0, left_usd=10.0, sample_usd=0.1), False, 1),
        (60, Means(72_000, 1000.0), True, 3),
        (60, Means(60_000, 1000.0), False, 1),
        (1000, Means(65_000, 1000.0), True, 0),  # no room or no money for a look ahead
        (1000, Means(-1, 1000.0), True, 0),
        (1000, Means(1e9, 1000.0, left_usd=0.01, sample_usd=0.001), False, 0),
    ],
)
def test_batches_are_as_large_as_a_look_ahead_may_be(samples, means, sure, size):
    assert batch_size_for(samples, means, lookahead=64, sure=sure) == size


def test_money_that_is_not_bounded_or_not_needed_is_no_bound():
    assert Means(1000, 10.0).samples == 100
    assert Means(1000, 10.0, left_usd=0.0, sample_usd=0.0).samples == 100
    assert Means(1000, 10.0, left_usd=0.5, sample_usd=0.01).samples == 50
    assert Means(1000, 10.0, left_usd=-1.0, sample_usd=0.01).samples == 0
    assert Means(1000, 10.0).by_money == math.inf


def test_all_is_reported_once_the_end_is_in_view():
    allowance = Allowance(batches=50, batch_size=10, lookahead=64, seen=7)
    assert allowance.may_take()
    assert allowance.releasable(Means(0, 1.0)) == 7


@given(
    fits=st.integers(0, 3000),
    batches=st.integers(1, 400),
    size=st.integers(1, 8),
    behind=st.integers(0, 70),
    lookahead=st.integers(4, 80),
)
def test_a_coordinator_that_fills_its_view_at_once_never_drops(fits, batches, size, behind, lookahead):
    """A coordinator that produces at once all that comes into view, and looks that happen now and then."""
    allowance = Allowance(batches, size, lookahead)
    if fits < min(batches, lookahead + 2) * size:
        return  # nobody would have begun
    produced = looked = 0
    free = fits
    while allowance.seen < batches:
        produced = max(produced, allowance.view, min(batches, allowance.seen + 2))
        assert produced * size <= fits or allowance.view == batches == produced
        if allowance.seen - looked >= behind or not allowance.may_take():
            looked, free = allowance.seen, fits - produced * size
            allowance.accounted = allowance.seen
            allowance.released += allowance.releasable(Means(free, 1.0))
            produced = max(produced, allowance.view)
        if not allowance.may_take():
            break
        allowance.seen += 1
        allowance.released += allowance.releasable(Means(free, 1.0))
    if (batches + 4) * size <= fits:
        assert allowance.seen == batches
    else:
        assert produced * size <= fits or produced == batches
        assert produced * size > fits - 4 * size or produced == batches, "it stops only where it is full"
        assert allowance.seen >= produced - 2


@pytest.mark.parametrize("lookahead", [64, 100])
def test_a_batch_is_asked_for_only_within_the_view(lookahead):
    allowance = Allowance(batches=1000, batch_size=1, lookahead=lookahead)
    while allowance.may_take():
        allowance.seen += 1
    assert allowance.seen + 2 == lookahead
