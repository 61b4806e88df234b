"""The keyed permutation: a bijection of every size, with its inverse, uniform, and the same for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from superdl.coordinator.core.permutation import (
    KEY_BYTES_MAX,
    PREFIX_SIZE_MAX,
    SIZE_MAX,
    Permutation,
    checked_elements,
)
from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

KEYS = st.binary(min_size=1, max_size=KEY_BYTES_MAX)

# A sound permutation fails one test in a million. The keys are fixed: a test that passes once passes always.
P_VALUE_MIN = 1e-6


def chi_squared_p_value(values: NDArray[np.int64], outcomes: int, bins: int = 97) -> float:
    """How likely values as uneven as these are, if all of ``range(outcomes)`` are equally likely."""
    bins = min(bins, outcomes)
    per_bin = np.diff(-(-np.arange(bins + 1, dtype=np.int64) * outcomes // bins))
    expected = per_bin * (values.size / outcomes)
    observed = np.bincount(values * bins // outcomes, minlength=bins)
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), bins - 1))


def many_keys(size: int, positions: NDArray[np.int64], keys: int) -> NDArray[np.int64]:
    """Where the positions go under each of many keys: int64 ``[keys, positions]``."""
    return np.stack([Permutation(size, key.to_bytes(4, "little")).forward(positions) for key in range(keys)])


def test_every_small_size_is_a_bijection_with_its_inverse() -> None:
    for size in range(1, 301):
        everything = np.arange(size)
        permutation = Permutation(size, b"key")
        shuffled = permutation.forward(everything)
        assert shuffled.dtype == np.int64
        assert np.array_equal(np.sort(shuffled), everything)
        assert np.array_equal(permutation.inverse(shuffled), everything)


@given(size=st.integers(1, 100_000), key=KEYS)
@settings(max_examples=60, deadline=None)
def test_any_size_is_a_bijection_with_its_inverse(size: int, key: bytes) -> None:
    everything = np.arange(size)
    permutation = Permutation(size, key)
    shuffled = permutation.forward(everything)
    assert (np.bincount(shuffled, minlength=size) == 1).all()
    assert np.array_equal(permutation.inverse(shuffled), everything)


@given(data=st.data(), size=st.integers(1, SIZE_MAX), key=KEYS)
@settings(max_examples=200, deadline=None)
def test_inverse_and_forward_undo_each_other_at_huge_sizes(
    data: st.DataObject, size: int, key: bytes
) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=50)), dtype=np.int64)
    permutation = Permutation(size, key)
    shuffled = permutation.forward(values)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert np.array_equal(permutation.inverse(shuffled), values)
    assert np.array_equal(permutation.forward(permutation.inverse(values)), values)


@pytest.mark.parametrize(
    "size", [PREFIX_SIZE_MAX, PREFIX_SIZE_MAX + 1, 2**20, 2**20 + 1, 1009**2, 1009 * 1010 + 1, SIZE_MAX]
)
def test_sizes_at_the_edge_of_a_radix(size: int) -> None:
    ends = np.concatenate((np.arange(200), np.arange(size - 200, size)))
    permutation = Permutation(size, b"edge")
    shuffled = permutation.forward(ends)
    assert ((shuffled >= 0) & (shuffled < size)).all()
    assert np.array_equal(permutation.inverse(shuffled), ends)


def test_a_part_is_a_part_of_the_whole_whatever_the_array() -> None:
    permutation = Permutation(30_011, b"part")  # more than one block of work
    whole = permutation.forward(np.arange(30_011))
    some = np.random.default_rng(7).integers(0, 30_011, size=(5, 40))
    assert np.array_equal(permutation.forward(some), whole[some])
    assert np.array_equal(permutation.forward(some.T), whole[some.T])
    assert np.array_equal(permutation.forward(some[:, ::3].astype(np.uint16)), whole[some[:, ::3]])
    assert permutation.forward(np.empty(0, dtype=np.int64)).shape == (0,)


def test_keys_and_sizes_give_different_orders() -> None:
    everything = np.arange(1000)
    first = Permutation(1000, b"first").forward(everything)
    assert np.array_equal(first, Permutation(1000, b"first").forward(everything))
    assert (first == Permutation(1000, b"second").forward(everything)).mean() < 0.02
    assert (first == Permutation(1001, b"first").forward(everything)).mean() < 0.02
    assert (first == everything).mean() < 0.02


# Written once, never to change: users resume by these orders. They hold on every platform and numpy version.
PINNED = {
    10: [4, 0, 7, 5, 8],
    256: [21, 3, 77, 210, 155],
    257: [225, 1, 134, 119, 155],
    1797: [1208, 1098, 1709, 1024, 819],
    1281167: [455631, 520808, 83035, 548332, 433124],
    1099511627776: [173473840756, 1056145520276, 1067908776653, 295354911549, 342709944311],
}


@pytest.mark.parametrize("size", sorted(PINNED))
def test_orders_are_pinned(size: int) -> None:
    positions = np.linspace(0, size - 1, 5).astype(np.int64)
    assert Permutation(size, b"golden").forward(positions).tolist() == PINNED[size]


@pytest.mark.parametrize("size", [3, 97, PREFIX_SIZE_MAX, PREFIX_SIZE_MAX + 1, 1000, 1_281_167, SIZE_MAX])
def test_a_position_goes_everywhere_equally_often(size: int) -> None:
    positions = np.unique([0, 1, size // 2, size - 1])
    for column in many_keys(size, positions, keys=5000).T:
        assert chi_squared_p_value(column, size) > P_VALUE_MIN


@pytest.mark.parametrize("size", [1000, 1797, 65_536, 300_007])
@pytest.mark.parametrize("direction", [Permutation.forward, Permutation.inverse])
def test_neighbours_within_one_order_are_unrelated(
    size: int, direction: Callable[[Permutation, NDArray[np.int64]], NDArray[np.int64]]
) -> None:
    # Lags of a radix are where a Feistel network with too few rounds shows first.
    left_radix = int(np.ceil(np.sqrt(size)))
    right_radix = -(-size // left_radix)
    lags = sorted({1, 2, 3, right_radix - 1, right_radix, right_radix + 1, 2 * right_radix})
    orders = [direction(Permutation(size, b"key %d" % key), np.arange(size)) for key in range(20)]
    for lag in lags:
        differences = np.concatenate([order[lag:] - order[:-lag] for order in orders]) % size - 1
        assert chi_squared_p_value(differences, size - 1) > P_VALUE_MIN


@pytest.mark.parametrize("size", [0, -1, SIZE_MAX + 1])
def test_a_size_out_of_bounds_is_refused(size: int) -> None:
    with pytest.raises(PlanError, match=f"not {size}"):
        Permutation(size, b"key")


@pytest.mark.parametrize("key", [b"", b"x" * (KEY_BYTES_MAX + 1)])
def test_a_key_out_of_bounds_is_refused(key: bytes) -> None:
    with pytest.raises(PlanError, match=f"not {len(key)}"):
        Permutation(10, key)


@pytest.mark.parametrize("size", [10, 1000])
def test_values_out_of_range_are_refused_by_name(size: int) -> None:
    permutation = Permutation(size, b"key")
    with pytest.raises(PlanError, match=rf"positions must be in range\({size}\).* to {size}$"):
        permutation.forward(np.array([0, size]))
    with pytest.raises(PlanError, match=r"indices must be in range.* from -1 to 3"):
        permutation.inverse(np.array([-1, 3]))
    with pytest.raises(PlanError, match="float64"):
        permutation.forward(np.array([0.5]))


def test_values_beyond_int64_do_not_wrap_into_range() -> None:
    with pytest.raises(PlanError, match="things"):
        checked_elements(np.array([2**64 - 1], dtype=np.uint64), "things", 10)
