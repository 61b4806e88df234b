"""The plan: every sample once per epoch, the same on any division into ranks, and next uses that are true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.plan import NEVER_SOON, Plan
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError
from tests.fixtures.plans import global_span

if TYPE_CHECKING:
    from numpy.typing import NDArray


@st.composite
def plans(draw: st.DrawFn, size_max: int = 400) -> Plan:
    size = draw(st.integers(1, size_max))
    replicas = draw(st.integers(1, 9))
    batch_size = draw(st.integers(1, 60))
    drop_last = draw(st.booleans()) and batch_size * replicas <= size
    seed = draw(st.integers(-(2**63), 2**64 - 1))
    return Plan(size, batch_size, replicas, seed, shuffle=draw(st.booleans()), drop_last=drop_last)


EPOCHS = st.integers(0, 2**40)
PROPERTY = settings(max_examples=150, deadline=None)


def order(plan: Plan, epoch: int) -> NDArray[np.int64]:
    return global_span(plan, epoch, 0, plan.batches_per_epoch)


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_ranks_share_out_each_epoch_exactly_once(plan: Plan, epoch: int) -> None:
    spans = [plan.span(epoch, 0, plan.batches_per_epoch, rank) for rank in range(plan.replicas)]
    real = np.concatenate([span.indices[~span.padding] for span in spans])
    assert len(real) == plan.samples_per_epoch
    assert len(np.unique(real)) == len(real)
    assert real.min() >= 0
    assert real.max() < plan.size
    if not plan.drop_last:
        assert plan.samples_per_epoch == plan.size
    for span in spans:
        assert np.array_equal(span.offsets, spans[0].offsets)
    assert sum(int(span.padding.sum()) for span in spans) == plan.padding_per_epoch < plan.replicas


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_ranks_take_contiguous_slices_of_the_global_batch(plan: Plan, epoch: int) -> None:
    whole = order(plan, epoch)
    for position in range(plan.batches_per_epoch):
        begin = position * plan.global_batch_size
        expected = whole[begin : begin + plan.global_batch_size]
        assert np.array_equal(global_span(plan, epoch, position, position + 1), expected)
        parts = [plan.batch(epoch, position, rank) for rank in range(plan.replicas)]
        joined = np.concatenate([part.indices for part in parts])
        flags = np.concatenate([part.padding for part in parts])
        assert np.array_equal(joined[~flags], expected)
        # Padding ends the batch, and repeats the samples that open the epoch.
        padding = int(flags.sum())
        assert not flags[: len(flags) - padding].any()
        assert np.array_equal(joined[flags], np.resize(whole, padding))
        if padding:
            assert position == plan.batches_per_epoch - 1


@given(plan=plans(), epoch=EPOCHS, data=st.data())
@PROPERTY
def test_a_span_is_its_batches_end_to_end(plan: Plan, epoch: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.batches_per_epoch))
    stop = data.draw(st.integers(start, plan.batches_per_epoch))
    rank = data.draw(st.integers(0, plan.replicas - 1))
    span = plan.span(epoch, start, stop, rank)
    assert len(span) == stop - start
    assert span.offsets[0] == 0
    assert span.offsets[-1] == len(span.indices) == len(span.padding)
    for number in range(stop - start):
        single, part = plan.batch(epoch, start + number, rank), slice(*span.offsets[number : number + 2])
        assert np.array_equal(span.indices[part], single.indices)
        assert np.array_equal(span.padding[part], single.padding)


@given(epoch=EPOCHS, size=st.integers(24, 5000), seed=st.integers(-(2**63), 2**64 - 1))
@PROPERTY
def test_the_global_order_depends_on_the_global_batch_size_only(epoch: int, size: int, seed: int) -> None:
    divisions = [Plan(size, 24 // replicas, replicas, seed) for replicas in (1, 2, 3, 4, 6, 8, 12, 24)]
    for position in range(0, divisions[0].batches_per_epoch, 20):
        batches = [global_span(plan, epoch, position, position + 1) for plan in divisions]
        assert all(np.array_equal(batch, batches[0]) for batch in batches)


def test_orders_follow_seed_and_epoch() -> None:
    def epoch_order(seed: int, epoch: int) -> bytes:
        return order(Plan(2000, 8, seed=seed), epoch).tobytes()

    assert epoch_order(1, 0) == epoch_order(1, 0)
    different = [(1, 0), (1, 1), (0, 1), (2, 0), (-1, 0), (2**64 - 1, 0), (-(2**63), 0), (1, 2**63 - 1)]
    assert len({epoch_order(*each) for each in different}) == len(different)


def test_orders_are_pinned() -> None:
    # Written once, never to change: users resume by these orders.
    plan = Plan(1_281_167, 4, 2, seed=42)
    assert plan.batch(0, 0, 0).indices.tolist() == [291530, 999663, 1213042, 1279972]
    assert plan.batch(89, 100_000, 1).indices.tolist() == [38358, 1104003, 974255, 739473]


def test_any_place_of_a_huge_catalog_is_reached_at_once() -> None:
    plan = Plan(2**40, 256, 8, seed=1)
    position = plan.batches_per_epoch - 1
    batch = plan.batch(12, position, 7)
    assert np.array_equal(plan.next_use(batch.indices, 12, position - 1000), np.full(256, 1000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be from 1 to 1099511627776, not 0"),
        ({"size": 2**40 + 1}, "size must be"),
        ({"batch_size": 0}, "batch_size must be from 1 to 2147483647, not 0"),
        ({"batch_size": -3}, "batch_size must be"),
        ({"batch_size": 2.5}, "batch_size must be an integer, not 2.5"),
        ({"replicas": 0}, "replicas must be from 1"),
        ({"seed": 2**64}, "seed must be"),
        ({"seed": -(2**63) - 1}, "seed must be"),
        ({"seed": None}, "seed must be an integer, not None"),
        ({"batch_size": 26, "replicas": 4, "drop_last": True}, "26 x 4 replicas = 104 is larger than"),
    ],
)
def test_bad_plans_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"size": 100, "batch_size": 10}
    with pytest.raises(PlanError, match=message):
        Plan(**{**good, **arguments})


def test_places_that_do_not_exist_are_refused_by_name() -> None:
    plan = Plan(100, 5, 2)  # ten global batches
    with pytest.raises(PlanError, match="rank must be from 0 to 1, not 2"):
        plan.batch(0, 0, 2)
    with pytest.raises(PlanError, match="rank must be"):
        plan.span(0, 0, 1, -1)
    with pytest.raises(PlanError, match="position must be from 0 to 9, not 10"):
        plan.batch(0, 10, 0)
    with pytest.raises(PlanError, match="position must be"):
        plan.batch(0, -1, 0)
    with pytest.raises(PlanError, match="epoch must be"):
        plan.batch(-1, 0, 0)
    with pytest.raises(PlanError, match="stop must be from 0 to 10, not 11"):
        plan.span(0, 0, 11, 0)
    with pytest.raises(PlanError, match="start must be from 0 to 4, not 5"):
        global_span(plan, 0, 5, 4)
    with pytest.raises(PlanError, match="position must be from 0 to 10, not 11"):
        plan.next_use(np.array([0]), 0, 11)
    with pytest.raises(PlanError, match=r"indices must be in range\(100\)"):
        plan.next_use(np.array([100]), 0, 0)


@given(st.data())
@PROPERTY
def test_an_order_of_a_users_sampler_is_followed_and_its_next_uses_are_true(data: st.DataObject) -> None:
    size, epoch = data.draw(st.integers(1, 40)), data.draw(EPOCHS)
    batches = data.draw(st.lists(st.lists(st.integers(0, size - 1), max_size=5), min_size=1, max_size=12))
    batches[0] = batches[0] or [0]
    lengths = np.array([len(batch) for batch in batches])
    order = np.concatenate([np.array(batch, dtype=np.int64) for batch in batches])
    draws = Draws.in_order(order, lengths)
    plan = Plan(size, int(lengths.max()), shuffle=False, draws=draws, only_epoch=epoch)
    assert (plan.batches_per_epoch, plan.samples_per_epoch) == (len(batches), order.size)
    assert [plan.batch(epoch, place, 0).indices.tolist() for place in range(len(batches))] == batches
    assert not len(plan.batch(epoch + 1, 0, 0).indices), "nothing is known of another epoch"
    position = data.draw(st.integers(0, len(batches)))
    uses = [
        next((place - position for place in range(position, len(batches)) if sample in batches[place]), None)
        for sample in range(size)
    ]
    expected = [NEVER_SOON if use is None else use for use in uses]
    assert plan.next_use(np.arange(size), epoch, position).tolist() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only_epoch": None}, "one epoch"),
        ({"replicas": 2}, "one rank"),
        ({"batch_size": 1}, "0 to 1 samples each"),
        ({"draws": Draws.in_order(np.arange(4), np.array([3, 2]))}, "4 in all; not 2 to 3, and 5"),
    ],
)
def test_orders_that_are_none_are_refused(changes: dict[str, Any], message: str) -> None:
    draws = Draws.in_order(np.arange(4), np.array([3, 1]))
    good = {"size": 4, "batch_size": 3, "shuffle": False, "draws": draws, "only_epoch": 0}
    assert Plan(**good).batches_per_epoch == 2
    with pytest.raises(PlanError, match=message):
        Plan(**good | changes)
