"""Labels in the smallest dtype that holds them, given out in the dtype that they have.

A thousand classes fit into two bytes each, where the labels that readers get are int64. Labels with named
fields are kept as they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_wire.label_dtype import label_dtype_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Labels"]

_NARROW = (np.uint8, np.uint16, np.uint32)


class Labels:
    """An immutable array of labels, one for each sample.

    Args:
        labels: shape (samples,), or (samples, ...) where each label is an array; a structured dtype where it
            has named fields.
    """

    __slots__ = ("_narrow", "dtype")

    def __init__(self, labels: NDArray[Any]) -> None:
        self.dtype: np.dtype[Any] = labels.dtype
        """What the labels are given out in."""
        self._narrow = _narrowed(labels)

    def __len__(self) -> int:
        return len(self._narrow)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.widened())

    def __getitem__(self, places: Any) -> Any:
        """The labels at places, as numpy indexes."""
        return self._narrow[places].astype(self.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, samples first."""
        return self._narrow.shape

    @property
    def itemsize(self) -> int:
        """Bytes of a label that is given out."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def dtype_text(self) -> str:
        """What a label is, as :mod:`superdl.super_wire.label_dtype` writes it."""
        return label_dtype_text(self.dtype, self.shape[1:])

    @property
    def nbytes(self) -> int:
        """Memory that the labels take, in bytes."""
        return self._narrow.nbytes

    def widened(self) -> NDArray[Any]:
        """All labels in their dtype, as a fresh array."""
        return self._narrow.astype(self.dtype)

    def tolist(self) -> list[Any]:
        """All labels as Python's numbers."""
        values: list[Any] = self._narrow.tolist()
        return values


def _narrowed(labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind in "iu" and labels.size and labels.min() >= 0:
        largest = int(labels.max())
        for dtype in _NARROW:
            if largest <= np.iinfo(dtype).max and np.dtype(dtype).itemsize < labels.dtype.itemsize:
                return labels.astype(dtype)
    return labels.copy()
