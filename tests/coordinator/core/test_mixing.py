"""A mix: exact counts, even shares, the same batches for any number of ranks, and next uses that are true."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.mixing import SLOTS_MAX, Mixing
from superdl.coordinator.core.plan import NEVER_SOON, Plan
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError
from tests.fixtures.plans import global_span

if TYPE_CHECKING:
    from superdl.coordinator.core.plan import Span

PROPERTY = settings(max_examples=100, deadline=None)
RANKS = (1, 2, 3)  # of runs with the same global batch
COUNTS = st.lists(st.integers(1, 120) | st.just(1), min_size=1, max_size=4).map(tuple)


@st.composite
def mixes(draw: st.DrawFn) -> list[list[Plan]]:
    """The plans of the datasets of a mix, of one job each, for each number of ranks."""
    counts, batch = draw(COUNTS), 6 * draw(st.integers(1, 12))
    run = batch if draw(st.booleans()) else 1
    counts = tuple(count % 4 * run + run for count in counts) if run > 1 else counts
    how: dict[str, Any] = {"mix_run": run, "seed": draw(st.integers(0, 9)), "shuffle": draw(st.booleans())}
    how["drop_last"] = draw(st.booleans()) and batch <= sum(counts)
    by_ranks: list[list[Plan]] = [[] for _ in RANKS]
    for member, count in enumerate(counts):
        drawn = None
        size = draw(st.integers(1, 150)) if how["shuffle"] else count
        if size != count:
            drawn = Draws.of(None, np.ones(size), count=count, repeats=1, shuffle=True)
        for plans, ranks in zip(by_ranks, RANKS, strict=True):
            plans.append(Plan(size, batch // ranks, ranks, draws=drawn, mix=counts, member=member, **how))
    return by_ranks


@given(by_ranks=mixes(), epoch=st.integers(0, 2**40))
@PROPERTY
def test_where_datasets_come_in_runs_a_global_batch_is_of_one(by_ranks: list[list[Plan]], epoch: int) -> None:
    for plans in by_ranks:
        if plans[0].mix_run == 1:
            continue
        for position in range(plans[0].batches_per_epoch):
            sizes = [
                sum(len(plan.batch(epoch, position, rank).indices) for rank in range(plan.replicas))
                for plan in plans
            ]
            assert sorted(sizes)[:-1] == [0] * (len(plans) - 1)
            assert sum(sizes) == plans[0].global_batch_size


def parts(span: Span, position: int) -> list[int]:
    """The samples of one batch of a span that are no padding."""
    part = slice(*span.offsets[position : position + 2])
    indices: list[int] = span.indices[part][~span.padding[part]].tolist()
    return indices


@given(by_ranks=mixes(), epoch=st.integers(0, 2**40))
@PROPERTY
def test_ranks_of_any_number_share_out_the_same_batches_of_exact_counts(
    by_ranks: list[list[Plan]], epoch: int
) -> None:
    seen = []
    for plans, ranks in zip(by_ranks, RANKS, strict=True):
        steps = plans[0].batches_per_epoch
        assert {plan.batches_per_epoch for plan in plans} == {steps}
        spans = [[plan.span(epoch, 0, steps, rank) for rank in range(ranks)] for plan in plans]
        lengths = sum(np.diff(span.offsets) for of_dataset in spans for span in of_dataset[:1])
        for rank in range(ranks):  # all ranks read as much
            assert np.array_equal(sum(np.diff(of[rank].offsets) for of in spans), lengths)
        assert (lengths[:-1] == plans[0].batch_size).all()
        seen.append(
            [
                [[index for span in of_dataset for index in parts(span, step)] for of_dataset in spans]
                for step in range(steps)
            ]
        )
        for plan, of_dataset in zip(plans, spans, strict=True):
            padding = sum(int(span.padding.sum()) for span in of_dataset)
            total = sum(span.indices.size for span in of_dataset)
            assert (padding, total - padding) == (plan.padding_per_epoch, plan.samples_per_epoch)
            if not plan.drop_last:
                assert plan.samples_per_epoch == plan.mix[plan.member]
            one = plan.batch(epoch, steps - 1, ranks - 1)
            assert plan.is_empty(steps - 1, ranks - 1) is (one.indices.size == 0)
            assert one.indices.tolist() == of_dataset[-1].indices[of_dataset[-1].offsets[-2] :].tolist()
            assert global_span(plan, epoch, 0, steps).tolist() == [
                index for step in seen[-1] for index in step[plan.member]
            ]
    assert seen[0] == seen[1] == seen[2]


@given(by_ranks=mixes(), epoch=st.integers(0, 5), data=st.data())
@PROPERTY
def test_next_uses_are_those_of_the_batches(
    by_ranks: list[list[Plan]], epoch: int, data: st.DataObject
) -> None:
    plan = data.draw(st.sampled_from(data.draw(st.sampled_from(by_ranks))))
    steps = plan.batches_per_epoch
    position = data.draw(st.integers(0, steps))
    expected = np.full(plan.size, NEVER_SOON)
    for at in reversed(range(position, 2 * steps)):
        for rank in range(plan.replicas):
            expected[plan.batch(epoch + at // steps, at % steps, rank).indices] = at - position
    told = plan.next_use(np.arange(plan.size), epoch, position)
    assert told.tolist() == expected.tolist()


@given(counts=COUNTS)
@PROPERTY
def test_any_run_of_slots_has_its_share_of_each_dataset(counts: tuple[int, ...]) -> None:
    total = sum(counts)
    slots = np.arange(2 * total + 1)
    owners = np.zeros(2 * total, dtype=int)
    for member, count in enumerate(counts):
        mixing = Mixing(counts, member)
        before = mixing.before(slots)
        assert mixing.slots_of(np.arange(2 * count)).tolist() == np.flatnonzero(np.diff(before)).tolist()
        owners += np.diff(before)
        assert np.abs(before - slots * count / total).max() <= member + 1
    assert (owners == 1).all()


def test_the_largest_mix_is_counted_without_overflow() -> None:
    counts = (SLOTS_MAX - 12, 5, 7)
    ends = np.array([SLOTS_MAX, SLOTS_MAX + 2**20])
    for member, count in enumerate(counts):
        mixing = Mixing(counts, member)
        early = sum(1 for slot in mixing.slots_of(np.arange(min(count, 9))).tolist() if slot < 2**20)
        assert mixing.before(ends).tolist()[0] == count
        assert mixing.before(ends[1:] - SLOTS_MAX)[0] >= early
        assert math.isclose(mixing.before(ends)[1], count * (1 + 2**20 / SLOTS_MAX), abs_tol=3)


@pytest.mark.parametrize(
    ("mix", "member", "message"),
    [
        ((5, 0), 0, "1 sample or more"),
        ((5, SLOTS_MAX), 0, "at most"),
        ((5, 5), 2, "no dataset 2"),
        ((4, 5), 0, "has 5 samples of dataset 0 of the mix, each once, and not 4"),
    ],
)
def test_what_is_no_mix_is_refused(mix: tuple[int, ...], member: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan(5, 2, mix=mix, member=member)
