"""The cache of the simulated world."""

from __future__ import annotations

import numpy as np

from superdl.coordinator.core import SetKey, footprint
from superdl.experiments.simulator.cache_model import CacheModel

KEY = SetKey(b"a", -1)
SOME = np.array([1, 3, 5])


def cache_with(*, corrupt: tuple[int, ...] = ()) -> CacheModel:
    cache = CacheModel(lambda key: 10, np.random.default_rng(1), budget_bytes=10**9)
    cache.store(KEY, SOME, np.full(3, 1000), corrupt=list(corrupt))
    return cache


def test_what_is_stored_is_found_and_takes_memory():
    cache = cache_with()
    assert cache.look(KEY, np.arange(6), 0.0).tolist() == [0, 1000, 0, 1000, 0, 1000]
    assert cache.used_bytes == 3 * footprint(np.array([1000]))[0]
    cache.store(KEY, SOME, np.full(3, 1000), corrupt=[])
    assert cache.used_bytes == 3 * footprint(np.array([1000]))[0], "written over itself"
    cache.drop(KEY, SOME[:2])
    assert (
        cache.held_bytes(KEY, np.ones(10, dtype=bool)) == cache.used_bytes == footprint(np.array([1000]))[0]
    )


def test_tombstones_expire_and_do_not_bury_records():
    cache = cache_with()
    cache.write_tombstones(KEY, np.array([1, 2]), 0.0, ttl_s=5.0)
    cache.write_tombstones(KEY, np.array([4]), 0.0)
    assert cache.look(KEY, np.array([1, 2, 4]), 4.9).tolist() == [1000, -1, -1]
    assert cache.look(KEY, np.array([1, 2, 4]), 5.0).tolist() == [1000, 0, -1]


def test_spoilt_records_are_mended_by_writing_them_again():
    cache = cache_with(corrupt=(3,))
    assert cache.spoilt(KEY, SOME).tolist() == [False, True, False]
    cache.store(KEY, SOME, np.full(3, 1000), corrupt=[])
    assert not cache.spoilt(KEY, SOME).any()


def test_eviction_and_flushing_lose_records():
    cache = cache_with()
    assert cache.evict(0.5) == 2
    assert np.count_nonzero(cache.look(KEY, np.arange(10), 0.0)) == 1
    cache.flush()
    assert cache.used_bytes == 0
    assert not cache.look(KEY, np.arange(10), 0.0).any()
