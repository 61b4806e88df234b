"""Members: samples that are parts of objects, and the locations of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_wire.request import MEMBER_ENCODINGS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.strings import PackedStrings


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in the smallest unsigned dtype that fits, or in the original dtype if none fits."""
    # min() would raise on an empty array.
    if numbers.dtype.kind in "iu" and numbers.size and numbers.min() >= 0:
        dtype = np.min_scalar_type(numbers.max())
        if dtype.itemsize < numbers.itemsize:
            return numbers.astype(dtype)
    return numbers.copy()


def distinct(strings: PackedStrings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the first occurrences of distinct strings, in byte order of the strings.

    A second array maps every string to its position in the first array.
    """
    order = strings.sort_order()
    starts = np.ones(len(strings), dtype=np.bool_)
    np.logical_not(strings.reorder(order).equals_next(), out=starts[1:])
    which = np.empty(len(strings), dtype=np.int64)
    which[order] = np.cumsum(starts) - 1
    return order[starts], which


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Samples that are members of objects, with one entry each. Members of the same object never overlap."""

    # Index of each member's object.
    objects: NDArray[Any]
    # Names in UTF-8.
    names: PackedStrings
    # In bytes, in the smallest unsigned dtype that fits. For a row of a Parquet file,
    # the offset is the row group and the length the row's index in the group.
    offsets: NDArray[Any]
    lengths: NDArray[Any]
    # Indices into MEMBER_ENCODINGS followed by row_encodings, which are for rows.
    # Empty if all are 0.
    encodings: NDArray[np.uint8]
    row_encodings: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.names)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Return the byte offset at which each member ends, or 0 for rows, whose ends are in the footer."""
        ends = self.offsets.astype(np.int64) + self.lengths.astype(np.int64)
        ends[self.are_rows] = 0
        return ends

    @property
    def are_rows(self) -> NDArray[np.bool_]:
        """Return a mask of the members that are rows of Parquet files rather than byte ranges."""
        if not self.row_encodings:
            return np.zeros(len(self), dtype=np.bool_)
        return self.encodings >= len(MEMBER_ENCODINGS)

    def at(self, indices: NDArray[np.int64]) -> tuple[list[str], list[int], list[int], list[str]]:
        """Return the names, offsets, lengths and encodings of the members at ``indices``."""
        known, codes = (*MEMBER_ENCODINGS, *self.row_encodings), self.encodings
        encodings = [known[code] for code in codes[indices]] if codes.size else [""] * len(indices)
        names = [name.decode() for name in self.names.take(indices)]
        return names, self.offsets[indices].tolist(), self.lengths[indices].tolist(), encodings

    def sort_order(self) -> NDArray[np.int64]:
        """Return the sort order: by object, then offset, then row number within a row group."""
        within = (self.lengths,) if self.row_encodings else ()
        # Members that are neighbours in the catalog can be fetched by a single GET.
        return np.lexsort((*within, self.offsets, self.objects))

    def reorder(self, order: NDArray[np.int64]) -> Members:
        """Return the members in the given order, with each column in the smallest dtype that fits."""
        return Members(
            narrowed(self.objects[order]),
            self.names.reorder(order),
            narrowed(self.offsets[order]),
            narrowed(self.lengths[order]),
            self.encodings[order] if self.encodings.any() else self.encodings[:0],
            self.row_encodings,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of the samples: one object, or one member of an object, per sample."""

    name: str
    # With members, one entry per object until the field is in a catalog.
    keys: PackedStrings
    versions: PackedStrings
    members: Members | None

    def in_order(self, order: NDArray[np.int64]) -> Field:
        """Return the field as stored in a catalog, with its samples in the given order."""
        if self.members is None:
            return Field(self.name, self.keys.reorder(order), self.versions.reorder(order), None)
        members = self.members.reorder(order)
        which = members.objects
        return Field(self.name, self.keys.repeated(which), self.versions.repeated(which), members)
