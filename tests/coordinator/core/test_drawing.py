"""Plans over draws and mixes: exact counts, even shares, the same batches on any ranks, true next uses."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.drawing import PLACES_MAX, SLOTS_MAX, Mixing
from superdl.coordinator.core.plan import NEVER_SOON, Plan
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError
from tests.fixtures.plans import global_span

EPOCHS = st.integers(0, 2**40)
PROPERTY = settings(max_examples=150, deadline=None)
SIZE_MAX = 300  # on both sides of the size up to which a permutation is a table


@st.composite
def plans(draw):
    """Plans of any draws: some samples or all, by weights or not, once or repeatedly."""
    size = draw(st.integers(1, SIZE_MAX))
    shuffle = draw(st.booleans())
    indices = draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=size))
    weights = count = None
    if shuffle and draw(st.booleans()):
        number = size if indices is None else len(indices)
        weights = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0]), min_size=number, max_size=number))
        weights[draw(st.integers(0, number - 1))] = 1.0
        count = draw(st.none() | st.integers(1, 2 * size))
    draws = Draws.of(indices, weights, count=count, repeats=draw(st.integers(1, 4)), shuffle=shuffle)
    replicas, batch_size = draw(st.integers(1, 6)), draw(st.integers(1, 40))
    drop_last = draw(st.booleans()) and batch_size * replicas <= draws.length(size)
    seed = draw(st.integers(-(2**63), 2**64 - 1))
    return Plan(size, batch_size, replicas, seed, shuffle=shuffle, drop_last=drop_last, draws=draws)


def drawn(plan):
    """The plan's draws, which it has."""
    assert plan.draws is not None
    return plan.draws


def whole(plan, epoch):
    """The order of an epoch, also of what drop_last leaves out."""
    plan = replace(plan, drop_last=False)
    return global_span(plan, epoch, 0, plan.batches_per_epoch)


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_each_sample_comes_as_often_as_its_draws_say(plan, epoch):
    draws, counts = drawn(plan), np.bincount(whole(plan, epoch), minlength=plan.size)
    indices = np.arange(plan.size) if draws.index_array is None else draws.index_array
    if draws.weight_array is None:
        assert np.array_equal(counts, np.bincount(indices, minlength=plan.size) * draws.repeats)
        if not plan.shuffle:
            assert np.array_equal(whole(plan, epoch), np.repeat(indices, draws.repeats))
        return
    weights = np.bincount(indices, draws.weight_array, minlength=plan.size)
    expected = weights / weights.sum() * draws.count
    assert counts.sum() == draws.count * draws.repeats == plan.length
    assert (counts % draws.repeats == 0).all()
    once = counts // draws.repeats
    assert (once[weights == 0] == 0).all()
    assert (once >= np.floor(expected - 1e-9)).all()
    assert (once <= np.ceil(expected + 1e-9)).all()


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_ranks_share_out_the_draws_of_each_global_batch(plan, epoch):
    """Whatever the ranks, the global batch is the same, and each repetition has a number of its own."""
    order, G = whole(plan, epoch), plan.global_batch_size  # noqa: N806 # as the plan calls it
    alone = replace(plan, batch_size=G, replicas=1)
    seen = Counter()
    padding = 0
    for position in range(plan.batches_per_epoch):
        spans = [plan.batch(epoch, position, rank) for rank in range(plan.replicas)]
        real = np.concatenate([span.indices[~span.padding] for span in spans])
        expected = order[position * G : (position + 1) * G]
        assert np.array_equal(np.sort(real), np.sort(expected))
        assert np.array_equal(alone.batch(epoch, position, 0).indices, expected)
        assert len({len(span.indices) for span in spans}) == 1
        padding += sum(int(span.padding.sum()) for span in spans)
        for span in spans:
            assert span.repetitions is not None
            pairs = zip(span.indices.tolist(), span.repetitions.tolist(), strict=True)
            seen.update(pair for pair, pads in zip(pairs, span.padding, strict=True) if not pads)
    assert padding == plan.padding_per_epoch < plan.replicas
    assert sum(seen.values()) == plan.samples_per_epoch
    assert set(seen.values()) == {1}
    if not plan.drop_last:
        assert {
            (sample, number) for sample, times in Counter(order.tolist()).items() for number in range(times)
        } == (set(seen))


@given(plan=plans(), epoch=EPOCHS, data=st.data())
@PROPERTY
def test_next_uses_are_what_the_batches_to_come_say(plan, epoch, data):
    position = data.draw(st.integers(0, plan.batches_per_epoch))
    expected = np.full(plan.size, NEVER_SOON)
    places = [(epoch, at) for at in range(position, plan.batches_per_epoch)]
    places += [(epoch + 1, at) for at in range(plan.batches_per_epoch)]
    for distance, (when, at) in reversed(list(enumerate(places))):
        for rank in range(plan.replicas):
            expected[plan.batch(when, at, rank).indices] = distance
    told = plan.next_use(np.arange(plan.size), epoch, position)
    often = np.bincount(whole(plan, epoch), minlength=plan.size) > PLACES_MAX
    often |= np.bincount(whole(plan, epoch + 1), minlength=plan.size) > PLACES_MAX
    assert np.array_equal(told[~often], expected[~often])
    assert (told[often] >= expected[often]).all()


@given(epoch=EPOCHS, replicas=st.integers(2, 6), repeats=st.integers(2, 6), seed=st.integers(0, 99))
@PROPERTY
def test_repetitions_go_to_different_ranks(epoch, replicas, repeats, seed):
    draws = Draws(repeats=repeats)
    plan = Plan(60, repeats * 2, replicas, seed, draws=draws)  # whole draws in each global batch
    for position in range(plan.length // plan.global_batch_size):
        ranks = [set(plan.batch(epoch, position, rank).indices.tolist()) for rank in range(replicas)]
        for sample in set.union(*ranks):
            assert sum(sample in of_rank for of_rank in ranks) == min(repeats, replicas)


def test_weights_are_kept_on_average_and_their_draws_differ_by_epoch():
    weights = np.random.default_rng(1).exponential(size=500)
    plan = Plan(500, 50, seed=7, draws=Draws.of(None, weights, count=400, repeats=1, shuffle=True))
    epochs = np.array([np.bincount(whole(plan, epoch), minlength=500) for epoch in range(400)])
    expected = weights / weights.sum() * 400
    fraction = expected % 1
    deviation = np.sqrt(fraction * (1 - fraction) / len(epochs))  # of a count rounded up or down
    assert (np.abs(epochs.mean(axis=0) - expected) <= 5 * deviation + 1e-9).all()
    assert len({counts.tobytes() for counts in epochs}) == len(epochs)


def test_next_uses_of_a_sample_that_is_drawn_a_billion_times_take_no_time():
    plan = Plan(3, 1000, draws=Draws.of(None, [0, 1, 0], count=2**30, repeats=1, shuffle=True))
    batches = plan.batches_per_epoch
    never, soon, also_never = plan.next_use(np.arange(3), 5, batches // 2).tolist()
    assert never == also_never == NEVER_SOON
    assert 0 <= soon < batches // 4


def test_orders_of_draws_are_pinned():
    # Written once, never to change: users resume by these orders.
    weights = 1.0 + np.arange(1_281_167) % 7
    draws = Draws.of(None, weights, count=1_000_000, repeats=3, shuffle=True)
    plan = Plan(1_281_167, 4, 2, seed=42, draws=draws)
    assert plan.batch(0, 0, 0).indices.tolist() == [669827, 669827, 257801, 1018662]
    assert plan.batch(89, 100_000, 1).indices.tolist() == [648808, 648808, 459686, 140056]


NO_WEIGHTS = "weights are finite, none is negative, and one at least is above 0"


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        ({"indices": [0, 10]}, r"indices must be in range\(10\), but go from 0 to 10"),
        ({"indices": [-1, 3]}, r"indices must be in range\(10\), but go from -1 to 3"),
        ({"weights": [1.0] * 9}, "weights are one for each sample: 10; not 9"),
        ({"weights": [0.0] * 10}, NO_WEIGHTS),
        ({"weights": [1.0] * 9 + [-1.0]}, NO_WEIGHTS),
        ({"weights": [1.0] * 9 + [float("nan")]}, NO_WEIGHTS),
        ({"weights": [1e308] * 10}, NO_WEIGHTS),
        ({"weights": [1] * 10, "shuffle": False}, "with shuffle=True"),
        ({"weights": [1] * 10, "count": 2**40, "repeats": 2}, "an epoch has 1 to 1099511627776 samples"),
        ({"indices": [1, 2, 3], "drop_last": True}, "4 x 1 replicas = 4 is larger than"),
    ],
)
def test_draws_that_do_not_fit_the_catalog_are_refused(draws, message):
    how = {"shuffle": draws.pop("shuffle", True), "drop_last": draws.pop("drop_last", False)}
    given_draws = {"indices": None, "weights": None, "count": None, "repeats": 1} | draws
    with np.errstate(over="ignore"), pytest.raises(PlanError, match=message):
        Plan(10, 4, draws=Draws.of(**given_draws, shuffle=how["shuffle"]), **how)


RANKS = (1, 2, 3)  # of runs with the same global batch
COUNTS = st.lists(st.integers(1, 120) | st.just(1), min_size=1, max_size=4).map(tuple)


@st.composite
def mixes(draw):
    """The plans of the datasets of a mix, of one job each, for each number of ranks."""
    counts, batch = draw(COUNTS), 6 * draw(st.integers(1, 12))
    run = batch if draw(st.booleans()) else 1
    counts = tuple(count % 4 * run + run for count in counts) if run > 1 else counts
    how = {"mix_run": run, "seed": draw(st.integers(0, 9)), "shuffle": draw(st.booleans())}
    how["drop_last"] = draw(st.booleans()) and batch <= sum(counts)
    by_ranks = [[] for _ in RANKS]
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
def test_where_datasets_come_in_runs_a_global_batch_is_of_one(by_ranks, epoch):
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


def parts(span, position):
    """The samples of one batch of a span that are no padding."""
    part = slice(*span.offsets[position : position + 2])
    return span.indices[part][~span.padding[part]].tolist()


@given(by_ranks=mixes(), epoch=st.integers(0, 2**40))
@PROPERTY
def test_ranks_of_any_number_share_out_the_same_batches_of_exact_counts(by_ranks, epoch):
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
def test_next_uses_are_those_of_the_batches(by_ranks, epoch, data):
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
def test_any_run_of_slots_has_its_share_of_each_dataset(counts):
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


def test_the_largest_mix_is_counted_without_overflow():
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
def test_what_is_no_mix_is_refused(mix, member, message):
    with pytest.raises(PlanError, match=message):
        Plan(5, 2, mix=mix, member=member)
