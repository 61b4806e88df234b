"""Labels come out as they went in, and take the memory of the smallest dtype that holds them."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.catalog.labels import Labels


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
