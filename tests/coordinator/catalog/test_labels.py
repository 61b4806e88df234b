"""Labels come out as they went in, and take the memory of the smallest dtype that holds them."""

from __future__ import annotations

import numpy as np
import pytest

from superdl.coordinator.catalog.labels import Labels


@pytest.mark.parametrize(
    ("labels", "itemsize"),
    [
        (np.array([0, 255]), 1),
        (np.array([0, 256]), 2),
        (np.array([2**16]), 4),
        (np.array([2**32]), 8),
        (np.array([-1, 3]), 8),
        (np.array([7, 8], dtype=np.uint8), 1),
        (np.array([0.5, 1.0]), 8),
        (np.array([], dtype=np.int64), 8),
    ],
    ids=repr,
)
def test_comes_out_as_it_went_in(labels, itemsize):
    held = Labels(labels)
    assert held.nbytes == itemsize * len(labels)
    assert held.itemsize == labels.dtype.itemsize
    assert held.shape == labels.shape
    assert len(held) == len(labels)
    assert held.tolist() == list(held) == labels.tolist()
    places = np.arange(len(labels))[::-1]
    for out, expected in ((held[places], labels[places]), (held.widened(), labels)):
        assert out.dtype == labels.dtype == held.dtype
        assert out.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("labels", "text", "itemsize", "nbytes"),
    [
        (np.array([[1, 2], [3, 400]]), "int64[2]", 16, 8),
        (np.array([[0.5, 2.0, 1.0]]), "float64[3]", 24, 24),
        (
            np.array([(1, [1, 2])], dtype=[("a", "i8"), ("b", "f4", (2,))]),
            '{"a":"int64","b":"float32[2]"}',
            16,
            16,
        ),
    ],
    ids=["integers", "floats", "fields"],
)
def test_arrays_and_fields(labels, text, itemsize, nbytes):
    held = Labels(labels)
    assert held.dtype_text == text
    assert (held.itemsize, held.nbytes, held.shape) == (itemsize, nbytes, labels.shape)
    assert held.widened().tobytes() == labels.tobytes()
    assert held[np.array([0])].dtype == held.widened().dtype == labels.dtype
    assert held[np.array([0])].tobytes() == labels[:1].tobytes()
