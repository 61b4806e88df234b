"""``SampleList``: keys and labels of a listed source, for scripts, without an object for each sample."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from superdl.super_wire.labels import Labels


class SampleList(Sequence[tuple[str, Any]]):
    """A sequence of ``(path, label)``, in the order of the catalog, created on access.

    Paths are files, or URLs of objects (``s3://bucket/key``); members of objects show as ``path::member``. A
    label is an int or a float if the dataset has numbers, an array or a numpy record if it has those, a dict
    if a field varies in length. A million samples take the bytes of their keys and 16 more for each.

    Args:
        bucket: ``s3://name`` or ``file:///directory``, which contains the keys.
        keys: one after another.
        lengths: of each key, a little-endian number of 4 bytes.
        labels: of each sample, read-only, shape (samples, ...), or RaggedLabels.
    """

    def __init__(self, bucket: str, keys: bytes, lengths: bytes, labels: Labels) -> None:
        self._below = bucket.removeprefix("file://").rstrip("/") + "/"
        self._keys = keys
        self._ends = np.cumsum(np.frombuffer(lengths, dtype="<u4"), dtype=np.int64)
        self.labels = labels

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> tuple[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, Any] | list[tuple[str, Any]]:
        """Return one sample, or a list of those in a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise IndexError(f"a list of {len(self)} samples has no place {place}")
        place %= len(self)
        begin = self._ends[place - 1] if place else 0
        label = self.labels[place]
        is_number = isinstance(label, np.number)
        # Names of files need not be UTF-8.
        key = os.fsdecode(self._keys[begin : self._ends[place]])
        return self._below + key, label.item() if is_number else label

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self[:2]))
        return f"<SampleList of {len(self)}: {some}{', ...' if len(self) > 2 else ''}>"  # noqa: PLR2004
