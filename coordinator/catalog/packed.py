"""Packed strings: millions of byte strings as one blob and one array of offsets.

A million Python objects cost a hundred megabytes and keep the garbage collector busy; packed, the same keys
cost their bytes and eight more each. Sorting runs in numpy, which lets other threads go on meanwhile. What
the strings mean is left to others.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["PackedStrings", "PackedStringsBuilder"]

_CHUNK = 8192  # strings unpacked at a time: few enough not to matter, many enough to be fast
_WORD = 8


class PackedStrings:
    """An immutable sequence of byte strings.

    Args:
        blob: all strings, one after the other.
        offsets: uint64, one more than there are strings: string ``i`` is ``blob[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("_blob", "_offsets")

    def __init__(self, blob: bytes, offsets: NDArray[np.uint64]) -> None:
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(blob):
            raise ValueError(f"offsets of packed strings go from 0 to {len(blob)}, the length of the blob")
        self._blob = blob
        self._offsets = offsets
        self._offsets.flags.writeable = False

    @classmethod
    def pack(cls, strings: Iterable[bytes]) -> PackedStrings:
        """Pack strings as they come."""
        builder = PackedStringsBuilder()
        for string in strings:
            builder.append(string)
        return builder.build()

    @classmethod
    def concatenate(cls, parts: Sequence[PackedStrings]) -> PackedStrings:
        """All strings of all parts, in order."""
        lengths = [part.lengths() for part in parts]
        return cls(b"".join(part.blob for part in parts), _offsets(lengths))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} packed strings, counted from 0; not {index}")
        return self._blob[int(self._offsets[index]) : int(self._offsets[index + 1])]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _CHUNK):
            yield from self.slice(start, start + _CHUNK)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedStrings):
            return NotImplemented
        return self._blob == other._blob and np.array_equal(self._offsets, other._offsets)

    def __hash__(self) -> int:
        return hash((self._blob, len(self)))

    def __repr__(self) -> str:
        return f"PackedStrings({len(self)} strings, {len(self._blob)} bytes)"

    @property
    def blob(self) -> bytes:
        """All strings, one after the other."""
        return self._blob

    @property
    def nbytes(self) -> int:
        """Memory of blob and offsets, in bytes."""
        return len(self._blob) + self._offsets.nbytes

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""
        return self._offsets[1:] - self._offsets[:-1]

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""
        ends = self._offsets[start : min(stop, len(self)) + 1].tolist()
        return [self._blob[begin:end] for begin, end in pairwise(ends)]

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""
        places = np.asarray(indices, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= len(self)):
            raise IndexError(f"indices of {len(self)} packed strings lie from 0 to {len(self) - 1}")
        begins, ends = self._offsets[places].tolist(), self._offsets[places + 1].tolist()
        return [self._blob[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def reorder(self, order: NDArray[np.int64]) -> PackedStrings:
        """The strings at ``order`` as packed strings."""
        pieces = (
            b"".join(self.take(order[start : start + _CHUNK])) for start in range(0, len(order), _CHUNK)
        )
        return PackedStrings(b"".join(pieces), _offsets([self.lengths()[order]]))

    def equals_next(self) -> NDArray[np.bool_]:
        """Which strings equal the one behind them (if sorted: the repeated ones): bool, shape (len - 1,)."""
        pairs = (first == second for first, second in pairwise(self))
        return np.fromiter(pairs, dtype=np.bool_, count=max(len(self) - 1, 0))

    def sort_order(self) -> NDArray[np.int64]:
        """The stable order that sorts the strings by their bytes: int64, shape (len,).

        A radix sort by words of eight bytes, last word first. A string takes part as soon as it reaches
        into the word, so the work follows the bytes there are, not the longest string. Missing bytes count
        as zero, ties go to the shorter string.
        """
        starts, lengths = self._offsets[:-1], self.lengths()
        # A view of the eight bytes at every place of the blob, as big-endian numbers: they compare as the
        # bytes do.
        padded = self._blob + bytes(_WORD)
        words = np.ndarray((len(self._blob) + 1,), dtype=">u8", buffer=padded, strides=(1,))
        by_length = np.argsort(lengths, kind="stable")
        sorted_lengths = lengths[by_length]
        order = by_length[:0]
        reached = len(by_length)  # by_length[reached:] take part already
        longest = int(sorted_lengths[-1]) if len(self) else 0
        for word in reversed(range(-(-longest // _WORD))):
            first = int(np.searchsorted(sorted_lengths, word * _WORD, side="right"))
            order = np.concatenate([by_length[first:reached], order])
            reached = first
            places = starts[order] + np.uint64(word * _WORD)
            beyond = _WORD - np.minimum(lengths[order] - np.uint64(word * _WORD), np.uint64(_WORD))
            shift = beyond.astype(np.uint64) * np.uint64(8)
            values = (words[places].astype(np.uint64) >> shift) << shift
            order = order[np.argsort(values, kind="stable")]
        return np.concatenate([by_length[:reached], order]).astype(np.int64)


class PackedStringsBuilder:
    """Packs strings one by one."""

    __slots__ = ("_blob", "_ends")

    def __init__(self) -> None:
        self._blob = bytearray()
        self._ends = array("Q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def append(self, string: bytes) -> None:
        """Add one string."""
        self._blob += string
        self._ends.append(len(self._blob))

    def build(self) -> PackedStrings:
        """What was added so far."""
        return PackedStrings(bytes(self._blob), np.array(self._ends, dtype=np.uint64))


def _offsets(lengths: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    total = sum(len(part) for part in lengths)
    offsets = np.zeros(total + 1, dtype=np.uint64)
    if total:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return offsets
