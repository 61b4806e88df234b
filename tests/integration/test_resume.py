"""A run that was stopped anywhere goes on exactly: the same batches, in the same order, none twice."""

from __future__ import annotations

import gc
import math
import random
from contextlib import ExitStack
from itertools import islice

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import ID_BYTES
from tests.fixtures.images import SIDE, expected_pixels
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import BATCH_SIZE, BATCHES, run_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

Delivered = list[tuple[bytes, int]]

LEGS = 4
EPOCHS = 2 * LEGS + 1

# Four workers ask for eight batches ahead. What the state of a sampler says after any batch is tested in
# tests/sampler/test_iterating.py.
LOADERS = [
    pytest.param("plain", 0, {}, id="plain"),
    pytest.param("plain", 2, {}, id="plain, workers"),
    pytest.param("stateful", 0, {}, id="stateful"),
    pytest.param("stateful", 4, {}, id="stateful, workers"),
    pytest.param("stateful", 2, {"snapshot_every_n_steps": 3}, id="stateful, few snapshots"),
    pytest.param("stateful", 2, {"persistent_workers": True}, id="stateful, lasting workers"),
    pytest.param("threads", 0, {"prefetch": 4}, id="threads"),
]


@pytest.fixture(scope="module")
def epochs(shared_stack, images):
    """The epochs of a run that nobody stopped."""
    with run_of(shared_stack, images) as run:
        whole = [collect(run.loader) for _ in range(EPOCHS)]
    for delivered in whole:
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    return whole


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize(("kind", "workers", "options"), LOADERS)
def test_a_run_goes_on_wherever_the_one_before_was_stopped(
    shared_stack, images, epochs, kind, workers, options, seed
):
    """Runs stop after any batch, at the last one of an epoch, or after the epoch; some abandon an epoch for
    the next. Each is made of the state of the one before, which some take up twice.
    """
    chance = random.Random(f"{kind} {workers} {seed}")
    state = None
    epoch = batch = 0
    for _ in range(LEGS):
        for _ in range(chance.choice([1, 1, 2])):
            with run_of(shared_stack, images, state, kind=kind, workers=workers, options=options) as run:
                at = epoch, batch
                for iteration in range(chance.choice([1, 1, 2])):
                    if iteration and at[1]:  # the epoch is abandoned
                        at = (at[0] + 1, 0)
                    if kind == "plain":
                        run.sampler.set_epoch(at[0])  # as a loop over epochs does
                    taken = max(1, chance.choice([1, 3, 5, BATCHES - at[1], BATCHES + 1]))
                    expected = epochs[at[0]][at[1] * BATCH_SIZE : (at[1] + taken) * BATCH_SIZE]
                    assert collect(islice(iter(run.loader), taken)) == expected, (at, taken)
                    ended = at[1] + taken > BATCHES
                    at = (at[0] + 1, 0) if ended else (at[0], at[1] + taken)
                    saved = run.state_dict(None if ended else taken)
        state, (epoch, batch) = saved, at


def refused_by_the_loader(stack, images, state, now):
    with (
        pytest.raises(ConfigError),
        run_of(stack, images, state, kind="stateful", workers=now) as run,
    ):
        next(iter(run.loader))


@pytest.mark.filterwarnings("ignore:Exception ignored in.*DataLoaderIter.__del__")  # of one half made
@pytest.mark.parametrize(("then", "now"), [(0, 2), (2, 0), (2, 1), (1, 2)])
def test_another_number_of_workers_is_refused_by_the_loader_and_taken_by_the_sampler(
    shared_stack, images, epochs, then, now
):
    with run_of(shared_stack, images, kind="stateful", workers=then) as run:
        first = collect(islice(run.loader, 3))
        state = run.state_dict(3)
    refused_by_the_loader(shared_stack, images, state, now)
    gc.collect()  # the half-made iterator, whose end warns, in this test and not in another
    with run_of(shared_stack, images, kind="stateful", workers=now) as run:
        run.sampler.load_state_dict(state)
        assert first + collect(run.loader) == epochs[0]


@pytest.mark.parametrize(
    "consumed", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(9, marks=pytest.mark.slow)]
)
def test_out_of_order_every_sample_comes_once(shared_stack, images, consumed):
    with run_of(shared_stack, images, workers=2, in_order=False) as run:
        before = collect(islice(iter(run.loader), consumed))
        state = run.sampler.state_dict(batches_consumed=consumed)
    with run_of(shared_stack, images, state, in_order=False) as run:
        assert_exactly_once(before + collect(run.loader), expected_pixels(images, resize=SIDE, crop=SIDE))


def global_order(ranks):
    """The samples that ranks have read together, in the order of the plan, and how many more were padding.

    All ranks read the same batches, of equal length, and padding comes at the very end.
    """
    samples = []
    padding = 0
    for together in zip(*ranks, strict=True):
        assert len({(ref.epoch, ref.position, len(ref)) for ref in together}) == 1
        for ref in together:
            ids = [ref.sample_ids[at : at + ID_BYTES] for at in range(0, len(ref.sample_ids), ID_BYTES)]
            flags = ref.padding or bytes(len(ids))
            own = [sample for sample, is_padding in zip(ids, flags, strict=True) if not is_padding]
            assert not (padding and own), "a sample comes after padding"
            samples += own
            padding += len(ids) - len(own)
    return samples, padding


@pytest.mark.slow
@given(
    legs=st.lists(st.sampled_from([2, 3, 4, 6]), min_size=2, max_size=3),
    factor=st.integers(1, 6),
    drop_last=st.booleans(),
    data=st.data(),
)
@settings(max_examples=16, phases=[Phase.generate])  # smaller ones are not looked for: that takes minutes
def test_ranks_of_any_number_go_on_with_the_state_of_any_other(
    shared_stack, images, legs, factor, drop_last, data
):
    """Runs of so many ranks each, of which each goes on after any batch where the one before it stopped: with
    the state of any of its ranks, whose loaders may have asked for more than was read.
    """
    batch = factor * math.lcm(*legs)
    same = {"seed": data.draw(st.integers(0, 9), "seed"), "drop_last": drop_last}
    with run_of(shared_stack, images, batch_size=batch, **same) as one:
        end = len(one.sampler)
        whole = [global_order([one.sampler])[0] for _ in range(2)]
    assert len(set(whole[0])) == len(whole[0]) == (end * batch if drop_last else 150)
    state, at = None, 0
    read = []
    for number, ranks in enumerate(legs, 1):
        stop = data.draw(st.integers(at, end), "stop") if number < len(legs) else end
        with ExitStack() as stack:
            plan = {"batch_size": batch // ranks, "num_replicas": ranks, **same}
            runs = [
                stack.enter_context(run_of(shared_stack, images, state, rank=rank, **plan))
                for rank in range(ranks)
            ]
            ahead = [data.draw(st.integers(number == len(legs), 3), "asked ahead") for _ in runs]
            given_out = [
                list(islice(run.sampler, stop - at + more)) for run, more in zip(runs, ahead, strict=True)
            ]
            samples, padding = global_order([refs[: stop - at] for refs in given_out])
            read += samples
            assert padding == (-len(whole[0]) % ranks if at < stop == end else 0)
            state = runs[data.draw(st.integers(0, ranks - 1), "whose state")].state_dict(stop - at)
            if number == len(legs):
                assert global_order([run.sampler for run in runs])[0] == whole[1]
        at = stop
    assert read == whole[0]
