"""A run stopped anywhere resumes exactly: the same batches in the same order, none twice."""

import gc
import random
from itertools import islice

import pytest

from superdl.super_dataset import Recipe
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from tests.fixtures.images import SIDE
from tests.fixtures.workers import until
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import BATCH_SIZE, BATCHES, run_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # called by torchdata 0.11
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

LEGS = 4
EPOCHS = 2 * LEGS + 1

# Four workers prefetch eight batches. tests/sampler/test_iterating.py covers the sampler's state after each
# batch.
LOADERS = [
    pytest.param("plain", 0, {}, id="plain"),
    pytest.param("plain", 2, {}, id="plain, workers"),
    pytest.param("stateful", 0, {}, id="stateful"),
    pytest.param("stateful", 4, {}, id="stateful, workers"),
    pytest.param("stateful", 2, {"snapshot_every_n_steps": 3}, id="stateful, few snapshots"),
    pytest.param("stateful", 2, {"persistent_workers": True}, id="stateful, lasting workers"),
    pytest.param("threads", 0, {"prefetch": 4}, id="threads"),
    pytest.param("threads", 0, {"threads": 0, "num_workers": 2}, id="processes"),
]


@pytest.fixture(scope="module")
def epochs(shared_stack, images, expected):
    """The epochs of an uninterrupted run."""
    with run_of(shared_stack, images) as run:
        whole = [collect(run.loader) for _ in range(EPOCHS)]
    for delivered in whole:
        assert_exactly_once(delivered, expected)
    return whole


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "workers", "options"), LOADERS)
def test_a_run_goes_on_wherever_the_one_before_was_stopped(
    shared_stack, images, epochs, kind, workers, options, seed
):
    """Stop runs after any batch, at the last one of an epoch, or after it; some abandon an epoch for the
    next. Each starts from the state of the one before, which some load twice.
    """
    chance = random.Random(f"{kind} {workers} {seed}")
    state = None
    epoch = batch = 0
    for _ in range(LEGS):
        for _ in range(chance.choice([1, 1, 2])):
            with run_of(shared_stack, images, state, kind=kind, workers=workers, options=options) as run:
                at = epoch, batch
                for iteration in range(chance.choice([1, 1, 2])):
                    if iteration and at[1]:  # abandon the epoch
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


@pytest.mark.filterwarnings("ignore:Exception ignored in.*DataLoaderIter.__del__")  # of a half-built one
@pytest.mark.parametrize(("then", "now"), [(0, 2), (2, 0), (1, 2)])
def test_another_number_of_workers_is_refused_by_the_loader_and_taken_by_the_sampler(
    shared_stack, images, epochs, then, now
):
    with run_of(shared_stack, images, kind="stateful", workers=then) as run:
        first = collect(islice(run.loader, 3))
        state = run.state_dict(3)
    with (
        pytest.raises((AssertionError, KeyError)),  # of torchdata
        run_of(shared_stack, images, state, kind="stateful", workers=now) as run,
    ):
        next(iter(run.loader))
    gc.collect()  # collect the partly built iterator here: its end warns
    with run_of(shared_stack, images, kind="stateful", workers=now) as run:
        run.sampler.load_state_dict(state)
        assert first + collect(run.loader) == epochs[0]


def test_out_of_order_every_sample_comes_once(shared_stack, images, expected):
    consumed = 4
    with run_of(shared_stack, images, workers=2, in_order=False) as run:
        before = collect(islice(iter(run.loader), consumed))
        state = run.sampler.state_dict(batches_consumed=consumed)
    with run_of(shared_stack, images, state, in_order=False) as run:
        assert_exactly_once(before + collect(run.loader), expected)


# --------------------------------- a loaded or reopened state is announced early: its batches are prefetched

# Each epoch has its own samples, so the cache's contents tell which epochs were requested.
RANDOM = Recipe([{"op": "random_resized_crop", "size": SIDE}], augment_seed=0)


def refs_of(stack, images, epoch):
    with run_of(stack, images, recipe=RANDOM) as run:
        run.sampler.set_epoch(epoch)
        return list(run.sampler)


def cached(stack, refs):
    """How many samples of these batches are in the cache."""
    with stack.valkey.client() as client:
        ids = [ref.sample_ids[at : at + ID_BYTES] for ref in refs for at in range(0, 16 * len(ref), ID_BYTES)]
        return client.exists(*map(cache_key, ids))


def start_anew(stack):
    stack.kill_coordinator()
    stack.valkey.client().flushall()
    stack.start_coordinator()


@pytest.mark.parametrize("place", [(3, 5), (3, 9), (2, 10)])
def test_what_comes_next_is_in_the_cache_before_it_is_asked_for(restarted_stack, images, place):
    epoch, position = place
    ahead = (refs_of(restarted_stack, images, epoch) + refs_of(restarted_stack, images, epoch + 1))[
        position : position + 2
    ]
    start_anew(restarted_stack)
    assert cached(restarted_stack, ahead) == 0
    with run_of(restarted_stack, images, recipe=RANDOM) as run:
        run.sampler.load_state_dict(run.sampler.state_dict() | {"epoch": epoch, "position": position})
        until(lambda: cached(restarted_stack, ahead) == sum(map(len, ahead)), 30.0)


def test_a_restarted_coordinator_looks_ahead_from_where_its_ranks_are(restarted_stack, images):
    first, now = refs_of(restarted_stack, images, 0), refs_of(restarted_stack, images, 3)
    with run_of(restarted_stack, images, recipe=RANDOM) as run:
        run.sampler.set_epoch(3)
        iterator = iter(run.loader)
        assert len(list(islice(iterator, 2))) == 2
        start_anew(restarted_stack)
        assert len(list(iterator)) == len(now) - 2
        assert cached(restarted_stack, now[2:]) == sum(map(len, now[2:]))
        assert cached(restarted_stack, first) == 0, "produced an epoch that nobody will read"
