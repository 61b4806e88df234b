"""Sweep a real cache: only keys that nobody accounts for are deleted, under any interleaving."""

import contextlib

import numpy as np
import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.sweeping import Sweep, known_ids, unknown_among
from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.dataset import Dataset, Listing
from superdl.super_wire.errors import SourceError
from superdl.super_wire.keys import RECORD_PREFIX, cache_keys
from superdl.super_wire.recipe import Recipe


def ids_of(seed, count):
    return np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8)


def fill(valkey, *several):
    with valkey.client() as client:
        for ids in several:
            client.mset(dict.fromkeys(cache_keys(ids.tobytes()), b"record"))


def remaining(valkey):
    with valkey.client() as client:
        return set(client.keys(RECORD_PREFIX + b"*"))


def keys_of(*several):
    return {key for ids in several for key in cache_keys(ids.tobytes())}


@contextlib.asynccontextmanager
async def sweeping_of(valkey, known):
    cache = Cache(valkey.unix_url, owner="")
    try:
        yield Sweep(cache, known)
    finally:
        await cache.close()


async def steps(valkey, known, times):
    async with sweeping_of(valkey, known) as sweep:
        for now_s in times:
            await sweep.step(now_s)


async def test_a_pass_deletes_only_unknown_records(valkey):
    ours, others, strangers = ids_of(0, 3000), ids_of(1, 3000), ids_of(2, 6000)
    fill(valkey, ours, others, strangers)
    with valkey.client() as client:
        client.set(RECORD_PREFIX + b"no id of ours", b"x")
        client.set(b"somebody else's", b"x")
    await steps(valkey, lambda: [ours, others], range(20))
    assert remaining(valkey) == keys_of(ours, others) | {RECORD_PREFIX + b"no id of ours"}
    with valkey.client() as client:
        assert client.exists(b"somebody else's")


async def test_steps_are_small_and_delete_nothing_while_the_known_ids_are_incomplete(valkey):
    strangers = ids_of(2, 50_000)
    fill(valkey, strangers)
    await steps(valkey, lambda: None, range(5))
    await steps(valkey, list, range(5))
    assert remaining(valkey) == keys_of(strangers), "too few keys were seen to judge"
    await steps(valkey, list, range(12))
    assert 0 < 50_000 - len(remaining(valkey)) <= 3000


async def test_records_that_become_known_during_a_step_are_kept(valkey):
    late = ids_of(3, 100)
    fill(valkey, late)
    answers = iter([[], [], [late], [late], [late], [late]])
    await steps(valkey, lambda: next(answers), range(2))
    assert remaining(valkey) == keys_of(late)


async def test_a_pass_without_unknown_records_is_followed_by_a_pause(valkey):
    strangers = ids_of(2, 100)
    async with sweeping_of(valkey, list) as sweep:
        await sweep.step(0.0)
        fill(valkey, strangers)
        await sweep.step(599.0)
        assert remaining(valkey) == keys_of(strangers)
        await sweep.step(600.0)
    assert not remaining(valkey)


def a_dataset(recipe=None, all_ids=None, error=None):
    return Dataset(b"id", recipe or Recipe([]), Listing("file:///nowhere", "", error=error), all_ids)


def test_ids_are_known_once_all_datasets_are(catalog):
    ids = ids_of(0, 3)
    listed = a_dataset(all_ids=ids)
    listed.listing.catalog = catalog
    assert known_of([]) == []
    (known,) = known_of([listed, listed, a_dataset(error=SourceError("gone"))])
    assert known is ids
    assert known_of([listed, a_dataset()]) is None, "a dataset is still being listed"


def known_of(datasets, *, read=(), held=(), now_s=0.0):
    return known_ids(
        datasets, is_read=lambda content: content in read, held=lambda content: list(held), now_s=now_s
    )


@pytest.fixture
def catalog(tmp_path):
    for number in range(5):
        (tmp_path / "cat").mkdir(exist_ok=True)
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(b"x")
    return list_source(tmp_path.as_uri())


def test_only_held_ids_of_an_unread_dataset_are_known(catalog):
    dataset = a_dataset()
    dataset.listing.catalog = catalog
    dataset.all_ids = np.frombuffer(catalog.sample_ids(dataset.recipe.digest), dtype=np.uint8).reshape(-1, 16)
    held = [(0, np.array([1, 3]))]
    (young,) = known_of([dataset], held=held, now_s=10.0)
    assert young is dataset.all_ids
    (read,) = known_of([dataset], read={dataset.content}, held=held, now_s=1e6)
    assert read is dataset.all_ids
    (rest,) = known_of([dataset], held=held, now_s=1e6)
    assert (rest.rows() == dataset.all_ids[[1, 3]]).all()
    assert keys_of(
        np.frombuffer(unknown_among(dataset.all_ids.tobytes(), [rest]), np.uint8).reshape(-1, 16)
    ) == (keys_of(dataset.all_ids[[0, 2, 4]]))


def test_held_ids_of_a_random_recipe_are_known_by_epoch(catalog):
    recipe = Recipe([{"op": "horizontal_flip"}], augment_seed=3)
    assert recipe.random
    dataset = a_dataset(recipe)
    dataset.listing.catalog = catalog
    held = [(4, np.array([0, 1])), (5, np.array([2]))]
    known = known_of([dataset], read={dataset.content}, held=held)
    rows = np.concatenate([entry.rows() for entry in known])
    expected = catalog.sample_ids(recipe.digest, (3, 4), np.array([0, 1]))
    assert rows.tobytes() == expected + catalog.sample_ids(recipe.digest, (3, 5), np.array([2]))
