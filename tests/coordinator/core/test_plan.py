"""The plan: every sample once per epoch, the same on any division into ranks, by a keyed permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.permutation import (
    KEY_BYTES_MAX,
    PREFIX_SIZE_MAX,
    SIZE_MAX,
    Permutation,
)
from superdl.coordinator.core.plan import NEVER_SOON, Plan
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError
from tests.fixtures.plans import global_span

KEYS = st.binary(min_size=1, max_size=KEY_BYTES_MAX)


def test_every_small_size_is_a_bijection_with_its_inverse():
    for size in range(1, 301):
        everything = np.arange(size)
        permutation = Permutation(size, b"key")
        shuffled = permutation.forward(everything)
        assert shuffled.dtype == np.int64
        assert np.array_equal(np.sort(shuffled), everything)
        assert np.array_equal(permutation.inverse(shuffled), everything)


@given(data=st.data(), size=st.integers(1, SIZE_MAX), key=KEYS)
@settings(max_examples=200, deadline=None)
def test_inverse_and_forward_undo_each_other_at_huge_sizes(data, size, key):
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50)), dtype=np.int64)
    permutation = Permutation(size, key)
    shuffled = permutation.forward(values)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert np.array_equal(permutation.inverse(shuffled), values)
    assert np.array_equal(permutation.forward(permutation.inverse(values)), values)


@pytest.mark.parametrize(
    "size", [PREFIX_SIZE_MAX, PREFIX_SIZE_MAX + 1, 2**20, 2**20 + 1, 1009**2, 1009 * 1010 + 1, SIZE_MAX]
)
def test_sizes_at_the_edge_of_a_radix(size):
    ends = np.concatenate((np.arange(200), np.arange(size - 200, size)))
    permutation = Permutation(size, b"edge")
    shuffled = permutation.forward(ends)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert np.array_equal(permutation.inverse(shuffled), ends)


def test_a_part_is_a_part_of_the_whole_whatever_the_array():
    permutation = Permutation(30_011, b"part")  # more than one block of work
    whole = permutation.forward(np.arange(30_011))
    some = np.random.default_rng(7).integers(0, 30_011, size=(5, 40))
    assert np.array_equal(permutation.forward(some), whole[some])
    assert np.array_equal(permutation.forward(some.T), whole[some.T])
    assert np.array_equal(permutation.forward(some[:, ::3].astype(np.uint16)), whole[some[:, ::3]])
    assert permutation.forward(np.empty(0, dtype=np.int64)).shape == (0,)


# Written once, never to change: users resume by these orders. They hold on every platform and numpy version.
PINNED = {
    10: [4, 0, 7, 5, 8],
    256: [21, 3, 77, 210, 155],
    257: [225, 1, 134, 119, 155],
    1797: [1208, 1098, 1709, 1024, 819],
    1281167: [455631, 520808, 83035, 548332, 433124],
    1099511627776: [173473840756, 1056145520276, 1067908776653, 295354911549, 342709944311],
}


@pytest.mark.parametrize("size", sorted(PINNED))
def test_permutations_are_pinned(size):
    positions = np.linspace(0, size - 1, 5).astype(np.int64)
    assert Permutation(size, b"golden").forward(positions).tolist() == PINNED[size]


@pytest.mark.parametrize("size", [10, 1000])
def test_values_out_of_range_are_refused_by_name(size):
    permutation = Permutation(size, b"key")
    with pytest.raises(PlanError, match=rf"positions must be in range\({size}\).* to {size}$"):
        permutation.forward(np.array([0, size]))
    with pytest.raises(PlanError, match=r"indices must be in range.* from -1 to 3"):
        permutation.inverse(np.array([-1, 3]))
    with pytest.raises(PlanError, match="float64"):
        permutation.forward(np.array([0.5]))


@st.composite
def plans(draw, size_max=400):
    size = draw(st.integers(1, size_max))
    replicas = draw(st.integers(1, 9))
    batch_size = draw(st.integers(1, 60))
    drop_last = draw(st.booleans()) and batch_size * replicas <= size
    seed = draw(st.integers(-(2**63), 2**64 - 1))
    return Plan(size, batch_size, replicas, seed, shuffle=draw(st.booleans()), drop_last=drop_last)


EPOCHS = st.integers(0, 2**40)
PROPERTY = settings(max_examples=150, deadline=None)


def order(plan, epoch):
    return global_span(plan, epoch, 0, plan.batches_per_epoch)


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_ranks_share_out_each_epoch_exactly_once_in_slices_of_global_batches(plan, epoch):
    whole = order(plan, epoch)
    assert len(np.unique(whole)) == len(whole) == plan.samples_per_epoch
    assert plan.drop_last or np.array_equal(np.sort(whole), np.arange(plan.size))
    padding = 0
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
        assert not padding or position == plan.batches_per_epoch - 1
    assert padding == plan.padding_per_epoch < plan.replicas


@given(plan=plans(), epoch=EPOCHS, data=st.data())
@PROPERTY
def test_a_span_is_its_batches_end_to_end(plan, epoch, data):
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
def test_the_global_order_depends_on_the_global_batch_size_only(epoch, size, seed):
    divisions = [Plan(size, 24 // replicas, replicas, seed) for replicas in (1, 2, 3, 4, 6, 8, 12, 24)]
    for position in range(0, divisions[0].batches_per_epoch, 20):
        batches = [global_span(plan, epoch, position, position + 1) for plan in divisions]
        assert all(np.array_equal(batch, batches[0]) for batch in batches)


def test_orders_follow_seed_and_epoch():
    def epoch_order(seed, epoch):
        return order(Plan(2000, 8, seed=seed), epoch).tobytes()

    assert epoch_order(1, 0) == epoch_order(1, 0)
    different = [(1, 0), (1, 1), (0, 1), (2, 0), (-1, 0), (2**64 - 1, 0), (-(2**63), 0), (1, 2**63 - 1)]
    assert len({epoch_order(*each) for each in different}) == len(different)


def test_orders_are_pinned():
    # Written once, never to change: users resume by these orders.
    plan = Plan(1_281_167, 4, 2, seed=42)
    assert plan.batch(0, 0, 0).indices.tolist() == [291530, 999663, 1213042, 1279972]
    assert plan.batch(89, 100_000, 1).indices.tolist() == [38358, 1104003, 974255, 739473]


def test_any_place_of_a_huge_catalog_is_reached_at_once():
    plan = Plan(2**40, 256, 8, seed=1)
    position = plan.batches_per_epoch - 1
    batch = plan.batch(12, position, 7)
    assert np.array_equal(plan.next_use(batch.indices, 12, position - 1000), np.full(256, 1000))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be from 1 to 1099511627776, not 0"),
        ({"batch_size": 0}, "batch_size must be from 1 to 2147483647, not 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer, not 2.5"),
        ({"replicas": 0}, "replicas must be from 1"),
        ({"seed": 2**64}, "seed must be"),
        ({"seed": None}, "seed must be an integer, not None"),
        ({"batch_size": 26, "replicas": 4, "drop_last": True}, "26 x 4 replicas = 104 is larger than"),
    ],
)
def test_bad_plans_are_refused_by_name(arguments, message):
    good = {"size": 100, "batch_size": 10}
    with pytest.raises(PlanError, match=message):
        Plan(**{**good, **arguments})


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda plan: plan.batch(0, 0, 2), "rank must be from 0 to 1, not 2"),
        (lambda plan: plan.batch(0, 10, 0), "position must be from 0 to 9, not 10"),
        (lambda plan: plan.batch(-1, 0, 0), "epoch must be"),
        (lambda plan: plan.span(0, 0, 11, 0), "stop must be from 0 to 10, not 11"),
        (lambda plan: plan.span(0, 5, 4, 0), "start must be from 0 to 4, not 5"),
        (lambda plan: plan.next_use(np.array([0]), 0, 11), "position must be from 0 to 10, not 11"),
        (lambda plan: plan.next_use(np.array([100]), 0, 0), r"indices must be in range\(100\)"),
    ],
)
def test_places_that_do_not_exist_are_refused_by_name(ask, message):
    with pytest.raises(PlanError, match=message):
        ask(Plan(100, 5, 2))  # ten global batches


@given(st.data())
@PROPERTY
def test_an_order_of_a_users_sampler_is_followed_and_its_next_uses_are_true(data):
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
def test_orders_that_are_none_are_refused(changes, message):
    draws = Draws.in_order(np.arange(4), np.array([3, 1]))
    good = {"size": 4, "batch_size": 3, "shuffle": False, "draws": draws, "only_epoch": 0}
    assert Plan(**good).batches_per_epoch == 2
    with pytest.raises(PlanError, match=message):
        Plan(**good | changes)
