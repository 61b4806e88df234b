"""Draws: what a user gives becomes numbers, and these cross a message as they are."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire import draws as module
from superdl.super_wire.draws import DRAWS_BYTES_MAX, Draws, pack_numbers, unpack_numbers
from superdl.super_wire.errors import ConfigError


def draws_of(indices: Any = None, weights: Any = None, **how: Any) -> Draws:
    return Draws.of(indices, weights, **{"count": None, "repeats": 1, "shuffle": True} | how)


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), ascending=st.booleans())
def test_packed_numbers_come_back(numbers: list[int], ascending: bool) -> None:
    packed = np.array(sorted(numbers) if ascending else numbers, dtype="<i8").tobytes()
    assert unpack_numbers(pack_numbers(packed)) == packed


@given(weights=st.lists(st.floats(0, 1e300), min_size=1, max_size=50), repeats=st.integers(1, 9))
def test_draws_cross_a_message(weights: list[float], repeats: int) -> None:
    indices = np.arange(len(weights))[::-1] * 3
    for given_draws in (
        draws_of(indices, weights, count=7, repeats=repeats),
        draws_of(indices, shuffle=False, repeats=repeats),
        draws_of(weights=weights, repeats=repeats),
    ):
        assert Draws.unpacked(*given_draws.packed(), given_draws.count, repeats) == given_draws
    assert Draws.unpacked(b"", b"", 0, 0) is None


def test_what_holds_numbers_is_taken() -> None:
    expected = draws_of([0, 2, 5], [1.0, 0.5, 2.0])
    for kind in (list, tuple, np.array, torch.tensor):
        assert draws_of(kind([5, 0, 2]), kind([2.0, 1.0, 0.5])) == expected
    assert draws_of(range(3), torch.ones(3, dtype=torch.float32)).count == 3
    assert draws_of([5, 0, 2], shuffle=False).index_array.tolist() == [5, 0, 2]
    assert len({draws_of([1, 2]).digest, draws_of([1, 2], repeats=2).digest, draws_of([1, 3]).digest}) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"indices": []}, "indices are empty"),
        ({"indices": {1, 2}}, "indices are a list or array of 1 to 16,777,216 whole numbers; not set"),
        ({"indices": [0.5]}, "indices are"),
        ({"indices": [True, False]}, "indices are"),
        ({"indices": [[1], [2]]}, "indices are"),
        ({"indices": "abc"}, "indices are"),
        ({"weights": []}, "weights are empty"),
        ({"weights": ["1"]}, "weights are"),
        ({"weights": [[1], [2, 3]]}, "weights are numbers in a row"),
        ({"indices": [1, 2], "weights": [1.0]}, "weights are one for each index: 2; not 1"),
        ({"count": 3}, "give weights too"),
    ],
)
def test_what_is_no_draws_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draws_of(**wrong)


def test_an_imagenet_fits_into_a_message() -> None:
    generator, size = np.random.default_rng(0), 1_281_167
    split = generator.permutation(size)[: size * 9 // 10]
    by_class = 1 / (1 + np.arange(size) // 1300)
    for drawn in (draws_of(split), draws_of(split, shuffle=False), draws_of(weights=by_class)):
        drawn.packed()
    with pytest.raises(
        ConfigError, match="more than the 4,128,768 that a coordinator takes: round the weights"
    ):
        draws_of(weights=generator.random(size)).packed()
    assert DRAWS_BYTES_MAX < 4 * 2**20


@pytest.mark.parametrize(
    "packed",
    [
        b"=",
        b"=abc",
        b"?" + zlib.compress(bytes(8)),
        b"=" + zlib.compress(bytes(7)),
        b"=" + zlib.compress(b""),
        b"=" + zlib.compress(bytes(8))[:-1],
        b"+" + zlib.compress(bytes(8 * 101)),
    ],
)
def test_what_is_not_packed_is_refused(packed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_MAX", 100)
    with pytest.raises(ConfigError, match="indices or weights"):
        unpack_numbers(packed)
    with pytest.raises(ConfigError, match="indices or weights"):
        Draws.unpacked(packed, b"", 0, 1)


@pytest.mark.parametrize(
    ("count", "weighted", "repeats"), [(1, False, 1), (0, True, 1), (2**41, True, 1), (0, False, 2000)]
)
def test_numbers_that_no_sampler_sends_are_refused(count: int, weighted: bool, repeats: int) -> None:
    weights = pack_numbers(np.ones(3).tobytes()) if weighted else b""
    with pytest.raises(ConfigError, match="are none"):
        Draws.unpacked(b"", weights, count, repeats)
