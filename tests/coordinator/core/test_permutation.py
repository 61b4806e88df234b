"""The keyed permutation behind every order: a bijection of any size, invertible, and stable for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.core.orders import PREFIX_SIZE_MAX, SIZE_MAX, Permutation

KEYS = st.binary(min_size=1, max_size=64)
RADIX_EDGES = [PREFIX_SIZE_MAX, PREFIX_SIZE_MAX + 1, 2**20, 2**20 + 1, 1009**2, 1009 * 1010 + 1, SIZE_MAX]


def test_every_small_size_is_a_bijection_with_its_inverse():
    for size in range(1, 301):
        everything = np.arange(size)
        permutation = Permutation(size, b"key")
        shuffled = permutation.forward(everything)
        assert np.array_equal(np.sort(shuffled), everything)
        assert np.array_equal(permutation.inverse(shuffled), everything)


@given(data=st.data(), size=st.integers(1, SIZE_MAX) | st.sampled_from(RADIX_EDGES), key=KEYS)
@settings(max_examples=200, deadline=None)
def test_the_inverse_undoes_the_permutation_at_any_size(data, size, key):
    drawn = data.draw(st.lists(st.integers(0, size - 1), max_size=50))
    values = np.array([0, *drawn, size - 1], dtype=np.int64)
    permutation = Permutation(size, key)
    shuffled = permutation.forward(values)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert np.array_equal(permutation.inverse(shuffled), values)
    assert np.array_equal(permutation.forward(permutation.inverse(values)), values)


def test_elements_do_not_depend_on_the_shape_of_the_array():
    permutation = Permutation(30_011, b"part")  # more than one block of work
    whole = permutation.forward(np.arange(30_011))
    some = np.random.default_rng(7).integers(0, 30_011, size=(5, 40))
    assert np.array_equal(permutation.forward(some), whole[some])
    assert np.array_equal(permutation.forward(some.T), whole[some.T])
    assert np.array_equal(permutation.forward(some[:, ::3].astype(np.uint16)), whole[some[:, ::3]])
    assert permutation.forward(np.empty(0, dtype=np.int64)).shape == (0,)


# Never change these. Users resume by these orders, which hold on every platform and numpy version.
PINNED = {
    10: [4, 0, 7, 5, 8],
    256: [21, 3, 77, 210, 155],
    257: [225, 1, 134, 119, 155],
    1797: [1208, 1098, 1709, 1024, 819],
    1281167: [455631, 520808, 83035, 548332, 433124],
    1099511627776: [173473840756, 1056145520276, 1067908776653, 295354911549, 342709944311],
}


@pytest.mark.parametrize("size", sorted(PINNED))
def test_permutations_are_pinned(size):
    positions = np.linspace(0, size - 1, 5).astype(np.int64)
    assert Permutation(size, b"golden").forward(positions).tolist() == PINNED[size]
