"""A mix's counts match its proportions exactly, however they are written."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.super_dataset import SuperDataset, SuperMix

PARTS = st.lists(st.tuples(st.integers(1, 100), st.integers(100, 10**6)), min_size=2, max_size=5)


@pytest.mark.parametrize("stopping", ["first_exhausted", "all_exhausted"])
@given(parts=PARTS)
@example(parts=[(2, 100), (5, 250)])
@example(parts=[(9999, 99_990), (1, 10)])
def test_float_proportions_give_exact_counts(stopping, parts):
    wholes, sizes = zip(*parts, strict=True)
    total = sum(wholes)
    rest = 1 - sum(whole / total for whole in wholes[:-1])
    written = {
        "shares": [whole / total for whole in wholes],
        "products": [0.1 * whole for whole in wholes],
        "last is the rest": [*(whole / total for whole in wholes[:-1]), rest],
    }
    expected = counts(stopping, wholes, sizes)
    for way, proportions in written.items():
        assert counts(stopping, proportions, sizes) == expected, way

    lasting = [Fraction(size, whole) for whole, size in parts]
    if stopping == "first_exhausted":
        assert expected == tuple(math.floor(min(lasting) * whole) for whole in wholes)
    else:
        assert expected == tuple(math.ceil(max(lasting) * whole) for whole in wholes)


def counts(stopping, proportions, sizes):
    datasets = [SuperDataset(f"/{number}") for number in range(len(sizes))]
    mix = SuperMix(dict(zip(datasets, proportions, strict=True)), stopping)
    return mix.samples_of_each(sizes)
