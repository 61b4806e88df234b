"""A run that goes on somewhere finds its batches on their way: what was loaded or reopened is told early."""

from __future__ import annotations

from itertools import islice

import pytest

from superdl.super_dataset import Recipe
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from tests.fixtures.images import SIDE
from tests.integration.resuming import run_of, wait_until

# Each epoch has samples of its own, so that what is in the cache tells which epochs were asked for.
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
        samples = sum(map(len, ahead))
        wait_until(
            lambda: cached(restarted_stack, ahead) == samples, f"batches from {place} on are not being made"
        )


def test_a_restarted_coordinator_looks_ahead_from_where_its_ranks_are(restarted_stack, images):
    first, now = refs_of(restarted_stack, images, 0), refs_of(restarted_stack, images, 3)
    with run_of(restarted_stack, images, recipe=RANDOM) as run:
        run.sampler.set_epoch(3)
        iterator = iter(run.loader)
        assert len(list(islice(iterator, 2))) == 2
        start_anew(restarted_stack)
        assert len(list(iterator)) == len(now) - 2
        assert cached(restarted_stack, now[2:]) == sum(map(len, now[2:]))
        assert cached(restarted_stack, first) == 0, "nobody will read the first epoch again"
