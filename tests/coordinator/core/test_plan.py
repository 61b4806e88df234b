"""Plans: samples occur as often as drawn, batches do not depend on ranks, next uses and orders are exact."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.orders import PLACES_MAX, SLOTS_MAX, Mixing
from superdl.coordinator.core.plan import NEVER_SOON, Plan
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError
from tests.fixtures.plans import global_span

EPOCHS = st.integers(0, 2**40)
PROPERTY = settings(max_examples=150, deadline=None)
SIZES = st.integers(1, 300)  # both below and above the size up to which a permutation is a table


@st.composite
def plans(draw):
    """Draw plans of each sample once, or of repeated, selected or weighted samples."""
    size, shuffle, seed = draw(SIZES), draw(st.booleans()), draw(st.integers(-(2**63), 2**64 - 1))
    indices = draw(st.none() | st.lists(st.integers(0, size - 1), min_size=1, max_size=size))
    weights = count = None
    if shuffle and draw(st.booleans()):
        number = size if indices is None else len(indices)
        weights = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5, 7.0]), min_size=number, max_size=number))
        weights[draw(st.integers(0, number - 1))] = 1.0
        count = draw(st.none() | st.integers(1, 2 * size))
    draws = Draws.of(indices, weights, count=count, repeats=draw(st.integers(1, 4)), shuffle=shuffle)
    draws = draws if draw(st.booleans()) else None
    replicas, batch_size = draw(st.integers(1, 9)), draw(st.integers(1, 40))
    drop_last = draw(st.booleans()) and batch_size * replicas <= (draws.length(size) if draws else size)
    return Plan(size, batch_size, replicas, seed, shuffle=shuffle, drop_last=drop_last, draws=draws)


def whole(plan, epoch):
    """Return the full order of an epoch, including what drop_last would drop."""
    plan = replace(plan, drop_last=False)
    return global_span(plan, epoch, 0, plan.batches_per_epoch)


@given(plan=plans(), epoch=EPOCHS)
@PROPERTY
def test_each_sample_occurs_as_often_as_it_is_drawn(plan, epoch):
    draws, counts = plan.draws or Draws(), np.bincount(whole(plan, epoch), minlength=plan.size)
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
def test_ranks_partition_each_global_batch(plan, epoch):
    """The global batch does not depend on the ranks, and repetitions of a sample are numbered."""
    order, G = whole(plan, epoch), plan.global_batch_size  # noqa: N806 # as in the plan
    alone = replace(plan, batch_size=G, replicas=1)
    seen = Counter()
    padding = 0
    for position in range(plan.batches_per_epoch):
        spans = [plan.batch(epoch, position, rank) for rank in range(plan.replicas)]
        joined = np.concatenate([span.indices for span in spans])
        flags = np.concatenate([span.padding for span in spans])
        expected = order[position * G : (position + 1) * G]
        assert np.array_equal(np.sort(joined[~flags]), np.sort(expected))
        assert np.array_equal(alone.batch(epoch, position, 0).indices, expected)
        assert len({len(span.indices) for span in spans}) == 1
        padding += int(flags.sum())
        assert not padding or position == plan.batches_per_epoch - 1
        if plan.draws is None:  # contiguous slices; padding repeats the epoch's first samples
            assert np.array_equal(joined, np.concatenate((expected, np.resize(order, padding))))
        for span in spans:
            numbers = np.zeros(span.indices.size) if span.repetitions is None else span.repetitions
            seen.update(
                zip(span.indices[~span.padding].tolist(), numbers[~span.padding].tolist(), strict=True)
            )
    assert padding == plan.padding_per_epoch < plan.replicas
    assert sum(seen.values()) == plan.samples_per_epoch
    assert set(seen.values()) == {1}
    if not plan.drop_last:
        assert {
            (sample, number) for sample, times in Counter(order.tolist()).items() for number in range(times)
        } == (set(seen))


@given(plan=plans(), epoch=EPOCHS, data=st.data())
@PROPERTY
def test_a_span_is_the_concatenation_of_its_batches(plan, epoch, data):
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


RANKS = (1, 2, 3)  # rank counts with the same global batch
COUNTS = st.lists(st.integers(1, 120) | st.just(1), min_size=1, max_size=4).map(tuple)


@st.composite
def mixes(draw):
    """Draw one job's plans for the datasets of a mix, for each number of ranks."""
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
        for members, ranks in zip(by_ranks, RANKS, strict=True):
            members.append(Plan(size, batch // ranks, ranks, draws=drawn, mix=counts, member=member, **how))
    return by_ranks


MEMBERS = mixes().flatmap(st.sampled_from).flatmap(st.sampled_from)


@given(plan=plans() | MEMBERS, epoch=EPOCHS, data=st.data())
@PROPERTY
def test_next_uses_match_the_following_batches(plan, epoch, data):
    position = data.draw(st.integers(0, plan.batches_per_epoch))
    expected = np.full(plan.size, NEVER_SOON)
    places = [(epoch, at) for at in range(position, plan.batches_per_epoch)]
    places += [(epoch + 1, at) for at in range(plan.batches_per_epoch)]
    for distance, (when, at) in reversed(list(enumerate(places))):
        for rank in range(plan.replicas):
            expected[plan.batch(when, at, rank).indices] = distance
    distances = plan.next_use(np.arange(plan.size), epoch, position)
    often = np.bincount(whole(plan, epoch), minlength=plan.size) > PLACES_MAX
    often |= np.bincount(whole(plan, epoch + 1), minlength=plan.size) > PLACES_MAX
    assert np.array_equal(distances[~often], expected[~often])
    assert (distances[often] >= expected[often]).all()


@given(by_ranks=mixes(), epoch=st.integers(0, 2**40))
@PROPERTY
def test_a_global_batch_of_a_mix_with_runs_has_one_dataset(by_ranks, epoch):
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
    """Return the samples of one batch of a span, without padding."""
    part = slice(*span.offsets[position : position + 2])
    return span.indices[part][~span.padding[part]].tolist()


@given(by_ranks=mixes(), epoch=st.integers(0, 2**40))
@PROPERTY
def test_the_batches_of_a_mix_do_not_depend_on_the_number_of_ranks(by_ranks, epoch):
    seen = []
    for plans, ranks in zip(by_ranks, RANKS, strict=True):
        steps = plans[0].batches_per_epoch
        assert {plan.batches_per_epoch for plan in plans} == {steps}
        spans = [[plan.span(epoch, 0, steps, rank) for rank in range(ranks)] for plan in plans]
        lengths = sum(np.diff(span.offsets) for of_dataset in spans for span in of_dataset[:1])
        for rank in range(ranks):  # all ranks read equally much
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
            last = plan.batch(epoch, steps - 1, ranks - 1)
            assert plan.is_empty(steps - 1, ranks - 1) is (last.indices.size == 0)
            assert last.indices.tolist() == of_dataset[-1].indices[of_dataset[-1].offsets[-2] :].tolist()
            assert global_span(plan, epoch, 0, steps).tolist() == [
                index for step in seen[-1] for index in step[plan.member]
            ]
    assert seen[0] == seen[1] == seen[2]


@given(epoch=EPOCHS, replicas=st.integers(2, 6), repeats=st.integers(2, 6), seed=st.integers(0, 99))
@PROPERTY
def test_repetitions_go_to_different_ranks(epoch, replicas, repeats, seed):
    draws = Draws(repeats=repeats)
    plan = Plan(60, repeats * 2, replicas, seed, draws=draws)  # every global batch contains whole draws
    for position in range(plan.length // plan.global_batch_size):
        ranks = [set(plan.batch(epoch, position, rank).indices.tolist()) for rank in range(replicas)]
        for sample in set.union(*ranks):
            assert sum(sample in of_rank for of_rank in ranks) == min(repeats, replicas)


def test_weighted_draws_match_their_weights_on_average_and_differ_by_epoch():
    weights = np.random.default_rng(1).exponential(size=500)
    plan = Plan(500, 50, seed=7, draws=Draws.of(None, weights, count=400, repeats=1, shuffle=True))
    epochs = np.array([np.bincount(whole(plan, epoch), minlength=500) for epoch in range(400)])
    expected = weights / weights.sum() * 400
    fraction = expected % 1
    deviation = np.sqrt(fraction * (1 - fraction) / len(epochs))  # of a count that is rounded up or down
    assert (np.abs(epochs.mean(axis=0) - expected) <= 5 * deviation + 1e-9).all()
    assert len({counts.tobytes() for counts in epochs}) == len(epochs)


def test_the_next_use_of_a_sample_drawn_a_billion_times_is_cheap():
    plan = Plan(3, 1000, draws=Draws.of(None, [0, 1, 0], count=2**30, repeats=1, shuffle=True))
    batches = plan.batches_per_epoch
    never, soon, also_never = plan.next_use(np.arange(3), 5, batches // 2).tolist()
    assert never == also_never == NEVER_SOON
    assert 0 <= soon < batches // 4


@given(counts=COUNTS)
@PROPERTY
def test_any_sequence_of_slots_has_its_share_of_each_dataset(counts):
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


def test_orders_follow_seed_and_epoch():
    def epoch_order(seed, epoch):
        return whole(Plan(2000, 8, seed=seed), epoch).tobytes()

    assert epoch_order(1, 0) == epoch_order(1, 0)
    different = [(1, 0), (1, 1), (0, 1), (2, 0), (-1, 0), (2**64 - 1, 0), (-(2**63), 0), (1, 2**63 - 1)]
    assert len({epoch_order(*each) for each in different}) == len(different)


def test_orders_are_pinned():
    # Never change these. Users resume by these orders.
    plan = Plan(1_281_167, 4, 2, seed=42)
    assert plan.batch(0, 0, 0).indices.tolist() == [291530, 999663, 1213042, 1279972]
    assert plan.batch(89, 100_000, 1).indices.tolist() == [38358, 1104003, 974255, 739473]
    weights = 1.0 + np.arange(1_281_167) % 7
    plan = replace(plan, draws=Draws.of(None, weights, count=1_000_000, repeats=3, shuffle=True))
    assert plan.batch(0, 0, 0).indices.tolist() == [669827, 669827, 257801, 1018662]
    assert plan.batch(89, 100_000, 1).indices.tolist() == [648808, 648808, 459686, 140056]


def test_any_position_of_a_huge_plan_is_cheap():
    plan = Plan(2**40, 256, 8, seed=1)
    position = plan.batches_per_epoch - 1
    batch = plan.batch(12, position, 7)
    assert np.array_equal(plan.next_use(batch.indices, 12, position - 1000), np.full(256, 1000))


NO_WEIGHTS = "weights must be finite"


def drawing(indices=None, weights=None, count=None, repeats=1, **how):
    """Return arguments of a plan over ten samples."""
    draws = Draws.of(indices, weights, count=count, repeats=repeats, shuffle=how.get("shuffle", True))
    return {"size": 10, "batch_size": 4, "draws": draws, **how}


def in_order(lengths=(3, 1), **changes):
    """Return arguments of a plan with a user's sampler."""
    draws = Draws.in_order(np.arange(4), np.array(lengths))
    return {"size": 4, "batch_size": 3, "shuffle": False, "draws": draws, "only_epoch": 0} | changes


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
        (drawing(indices=[0, 10]), r"indices must be in range\(10\), but range from 0 to 10"),
        (drawing(indices=[-1, 3]), r"indices must be in range\(10\), but range from -1 to 3"),
        (drawing(weights=[1.0] * 9), "one weight per sample, 10 in all, not 9"),
        (drawing(weights=[0.0] * 10), NO_WEIGHTS),
        (drawing(weights=[1.0] * 9 + [-1.0]), NO_WEIGHTS),
        (drawing(weights=[1.0] * 9 + [float("nan")]), NO_WEIGHTS),
        (drawing(weights=[1e308] * 10), NO_WEIGHTS),
        (drawing(weights=[1] * 10, shuffle=False), "shuffle=True"),
        (drawing(weights=[1] * 10, count=2**40, repeats=2), "an epoch must have 1 to 1099511627776 samples"),
        (drawing(indices=[1, 2, 3], drop_last=True), "4 x 1 replicas = 4 is larger than"),
        ({"size": 5, "mix": (5, 0)}, "at least 1 sample"),
        ({"size": 5, "mix": (5, SLOTS_MAX)}, "at most"),
        ({"size": 5, "mix": (5, 5), "member": 2}, "no dataset 2"),
        ({"size": 5, "mix": (4, 5)}, "has 5 samples of dataset 0 .* has 4"),
        (in_order(only_epoch=None), "one epoch"),
        (in_order(replicas=2), "one rank"),
        (in_order(batch_size=1), "batch lengths must be 0 to 1 and"),
        (in_order(lengths=(3, 2)), "add up to 4, but they are 2 to 3 and add up to 5"),
    ],
)
def test_bad_plans_are_refused_by_name(arguments, message):
    with np.errstate(over="ignore"), pytest.raises(PlanError, match=message):
        Plan(**{"size": 100, "batch_size": 10} | arguments)


@given(st.data())
@PROPERTY
def test_a_users_order_is_followed_and_its_next_uses_are_exact(data):
    size, epoch = data.draw(st.integers(1, 40)), data.draw(EPOCHS)
    batches = data.draw(st.lists(st.lists(st.integers(0, size - 1), max_size=5), min_size=1, max_size=12))
    batches[0] = batches[0] or [0]
    lengths = np.array([len(batch) for batch in batches])
    order = np.concatenate([np.array(batch, dtype=np.int64) for batch in batches])
    draws = Draws.in_order(order, lengths)
    plan = Plan(size, int(lengths.max()), shuffle=False, draws=draws, only_epoch=epoch)
    assert (plan.batches_per_epoch, plan.samples_per_epoch) == (len(batches), order.size)
    assert [plan.batch(epoch, place, 0).indices.tolist() for place in range(len(batches))] == batches
    assert not len(plan.batch(epoch + 1, 0, 0).indices), "only this epoch's order is known"
    position = data.draw(st.integers(0, len(batches)))
    uses = [
        next((place - position for place in range(position, len(batches)) if sample in batches[place]), None)
        for sample in range(size)
    ]
    expected = [NEVER_SOON if use is None else use for use in uses]
    assert plan.next_use(np.arange(size), epoch, position).tolist() == expected
