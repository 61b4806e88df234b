"""Draws: the published generator, the same for a sample wherever it is, fresh by seed, epoch and purpose."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.super_dataset.augment.random_numbers import BatchRandom, below, philox4x32, unit_interval
from tests.super_dataset.augmenting import ids_of

SAMPLES = 20_000


@pytest.mark.parametrize(
    ("counter", "key", "expected"),  # the vectors that the authors publish with Random123
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_gives_the_published_numbers(counter, key, expected):
    made = philox4x32(np.array(counter, dtype=np.uint64), np.array(key, dtype=np.uint64))
    assert made.tolist() == expected


def test_whole_numbers_below_a_bound_are_all_as_likely():
    bits = BatchRandom(ids_of(*range(SAMPLES)), seed=0, epoch=0).bits("jitter", 1)[0]
    counts = np.bincount(below(bits, np.full(SAMPLES, 24)), minlength=24)
    assert len(counts) == 24
    assert (
        (counts - SAMPLES / 24) ** 2 / (SAMPLES / 24)
    ).sum() < 49.7  # chi-squared, 23 degrees, one in 1,000
    ends = np.array([0, 2**32 - 1], dtype=np.uint64)
    assert below(ends, np.array([7, 7])).tolist() == [0, 6]
    assert unit_interval(ends).tolist() == [0.0, 1 - 2.0**-32]
