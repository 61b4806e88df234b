"""A batch has the structure of torch's ``default_collate``, whatever samples consist of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from superdl.super_dataset.pictures import batched, rows_of


class Pair(NamedTuple):
    left: Any
    right: Any


LEAVES = {
    "tensor": lambda n: torch.arange(6, dtype=torch.float16).view(2, 3) + n,
    "scalar": lambda n: torch.tensor(n, dtype=torch.int16),
    "array": lambda n: np.full((2, 1), n, dtype=np.uint8),
    "number": np.float32,
    "int": lambda n: n,
    "float": lambda n: n / 7,
    "bool": lambda n: n % 2 == 0,
    "str": lambda n: f"name {n}",
    "bytes": lambda n: bytes([n]),
}
CONTAINERS = {"tuple": tuple, "list": list, "pair": lambda parts: Pair(*parts[:1], parts[1:])}
STRUCTURES = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda inner: (
        st.tuples(st.sampled_from(sorted(CONTAINERS)), st.lists(inner, min_size=1, max_size=3))
        | st.tuples(
            st.sampled_from([dict, OrderedDict]), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        )
    ),
    max_leaves=8,
)


def sample(structure, number):
    if isinstance(structure, str):
        return LEAVES[structure](number)
    kind, parts = structure
    if isinstance(parts, dict):
        return kind((name, sample(part, number)) for name, part in parts.items())
    return CONTAINERS[kind]([sample(part, number) for part in parts])


def assert_alike(made, expected):
    if isinstance(expected, torch.Tensor):
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        assert torch.equal(made, expected)
    elif isinstance(expected, dict):
        assert type(made) is type(expected)
        assert list(made) == list(expected)
        for name, part in expected.items():
            assert_alike(made[name], part)
    elif isinstance(expected, tuple | list):
        assert isinstance(made, Pair) is isinstance(expected, Pair)
        assert len(made) == len(expected)
        for pair in zip(made, expected, strict=True):
            assert_alike(*pair)
    else:
        assert made == expected


@given(structure=STRUCTURES, count=st.integers(1, 4))
def test_batches_have_the_structure_of_default_collate(structure, count):
    samples = [sample(structure, number) for number in range(count)]
    assert_alike(batched(iter(samples), count), default_collate(samples))


def test_samples_that_default_collate_rejects_stay_a_list():
    for samples in (
        [torch.zeros(2), torch.zeros(3)],
        [None, None],
        [(1, 2), (3,)],
        [{"a": 1}, {"b": 1}],
        [np.array(["text"]), np.array(["other"])],
    ):
        made = batched(iter(samples), 2)
        assert type(made) is list
        assert len(made) == 2
    ragged, whole = batched(iter([(torch.zeros(2), 1), (torch.zeros(3), 2)]), 2)
    assert [len(one) for one in ragged] == [2, 3]
    assert whole.tolist() == [1, 2]


def test_rows_collate_to_the_same_batch():
    for labels in (
        torch.tensor([3, 1]),
        torch.tensor([0.5, 1.0], dtype=torch.float32),
        torch.tensor([0.5, 1.0], dtype=torch.float64),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        {"age": torch.tensor([3, 1]), "box": torch.zeros(2, 4)},
    ):
        assert_alike(default_collate(rows_of(labels, numbers=True)), labels)
    assert [type(row) for row in rows_of(torch.tensor([3, 1]), numbers=True)] == [int, int]
