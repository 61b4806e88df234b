"""Residency of one sample set: the table of states, footprints, and the account that always adds up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, SampleState, SetKey
from superdl.coordinator.core.samples import LEGAL, CacheMemory, SampleSet, footprint
from tests.simulation.invariants import problems_of

KEY = SetKey(b"data", EVERY_EPOCH)
S = SampleState
# jemalloc's size classes from 16 bytes to 1 MiB (jemalloc(3), "Size classes", 16-byte quantum)
CLASSES = sorted(
    {16, 32, 48, 64, 80, 96, 112, 128}
    | {base + part * base // 4 for base in (2**power for power in range(7, 20)) for part in (1, 2, 3, 4)}
)


def sample_set(size: int = 4, *, known_absent: bool = False, memory: CacheMemory | None = None) -> SampleSet:
    return SampleSet(KEY, size, record_bytes=1000, known_absent=known_absent, memory=memory)


def at(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def test_an_illegal_change_of_one_changes_none():
    samples = sample_set(known_absent=True)
    samples.move(at(0), S.IN_FLIGHT)
    with pytest.raises(RuntimeError, match="IN_FLIGHT to IN_FLIGHT"):
        samples.move(at(0, 1), S.IN_FLIGHT)
    assert samples.count(S.ABSENT) == 3


@given(st.integers(1, 2**20 - 16))
def test_a_footprint_is_a_size_class_and_the_key(record_bytes):
    taken = int(footprint(np.array([record_bytes]))[0])
    key_bytes = int(footprint(np.array([0]))[0]) - 16
    assert taken - key_bytes == next(size for size in CLASSES if size >= record_bytes + 16)


def test_no_record_is_larger_than_its_footprint_in_a_real_server(valkey):
    with valkey.client() as client:
        for size in (64, 200, 1000, 50_000, 150_592, 602_176):
            client.set(b"super:r1:" + b"0" * 32, bytes(size))
            taken = int(footprint(np.array([size]))[0])
            assert client.memory_usage(b"super:r1:" + b"0" * 32) <= taken <= 1.25 * size + 200


@given(
    st.lists(
        st.tuples(st.sampled_from(list(S)), st.sets(st.integers(0, 9)), st.integers(1, 10**6)), max_size=40
    )
)
def test_the_account_adds_up_after_any_changes(changes):
    memory = CacheMemory()
    samples = sample_set(10, known_absent=True, memory=memory)
    for to, chosen, size_bytes in changes:
        able = [index for index in sorted(chosen) if LEGAL[samples.state[index], to]]
        indices = np.array(able, dtype=np.int64)
        if to == S.RESIDENT:
            samples.store(indices, np.full(indices.size, size_bytes))
        else:
            samples.move(indices, to)
        assert list(problems_of(samples)) == []
        assert memory.resident_bytes == samples.resident_bytes


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda samples: setattr(samples, "resident_count", 3), "are counted"),
        (lambda samples: setattr(samples, "resident_bytes", 1), "do not add up"),
        (lambda samples: samples.stored_bytes.__setitem__(0, 0), "has no footprint"),
        (lambda samples: samples.stored_bytes.__setitem__(1, 9), "not in the cache has a footprint"),
    ],
)
def test_a_broken_account_is_reported(break_it, problem):
    samples = sample_set(known_absent=True)
    samples.move(at(0), S.IN_FLIGHT)
    samples.store(at(0), np.array([1000]))
    break_it(samples)
    assert any(problem in line for line in problems_of(samples))
