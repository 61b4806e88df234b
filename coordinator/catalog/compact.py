"""Strings that do not change any more, in as little memory as their kind allows.

Keys in sorted order share long beginnings, so the beginning that neighbours share is held once for a block of
them (as sorted string tables do). ETags are mostly hexadecimal digits, which take half a byte each. A catalog
of ImageNet's size takes 37 MB in this way, where packed strings take 108. Collecting and sorting are done
before, by :mod:`superdl.coordinator.catalog.packed`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from superdl.coordinator.catalog.packed import PackedStrings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["HexStrings", "PrefixedStrings", "Strings", "compact"]

_BLOCK_BITS = 6
_BLOCK = 1 << _BLOCK_BITS
_HEX_DIGITS = b"0123456789abcdef"
_CHUNK = 8192


class Strings(Protocol):
    """What a catalog's strings can do, however they are held."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[bytes]:
        """Each, in order."""

    def __getitem__(self, index: int) -> bytes:
        """One of them, counted from 0; ``IndexError`` if it lies outside."""

    @property
    def nbytes(self) -> int:
        """Memory that they take, in bytes."""

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""


def compact(strings: Strings) -> Strings:
    """The same strings in less memory."""
    if not isinstance(strings, PackedStrings):
        return strings
    return HexStrings.of(strings) or PrefixedStrings.of(strings)


class HexStrings:
    """Strings of an equal, even number of lower-case hexadecimal digits, two to a byte.

    Args:
        digits: uint8, shape (strings, bytes), two digits in each.
    """

    __slots__ = ("_digits",)

    def __init__(self, digits: NDArray[np.uint8]) -> None:
        self._digits = digits

    @classmethod
    def of(cls, strings: PackedStrings) -> HexStrings | None:
        """Those strings; ``None`` if one of them is of another kind."""
        lengths = strings.lengths()
        length = int(lengths[0]) if len(strings) else 0
        if not length or length % 2 or (lengths != length).any() or strings.blob.strip(_HEX_DIGITS):
            return None
        digits = np.frombuffer(bytes.fromhex(strings.blob.decode("ascii")), dtype=np.uint8)
        return cls(digits.reshape(len(strings), length // 2))

    def __len__(self) -> int:
        return len(self._digits)

    def __iter__(self) -> Iterator[bytes]:
        return _in_chunks(self)

    def __getitem__(self, index: int) -> bytes:
        return self.take([index])[0]

    @property
    def nbytes(self) -> int:
        """Memory of the digits, in bytes."""
        return self._digits.nbytes

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""
        return np.full(len(self), 2 * self._digits.shape[1], dtype=np.uint64)

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""
        return self._strings(self._digits[start:stop])

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""
        return self._strings(self._digits[_places(indices, len(self))])

    def _strings(self, digits: NDArray[np.uint8]) -> list[bytes]:
        blob, length = digits.tobytes().hex().encode("ascii"), 2 * digits.shape[1]
        return [blob[begin : begin + length] for begin in range(0, len(blob), length)]


class PrefixedStrings:
    """Strings in blocks of 64: what all of a block begin with is held once.

    Args:
        prefixes: of each block.
        blob: what follows the prefix in each string, one after the other.
        offsets: string ``i`` is its block's prefix and ``blob[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("_blob", "_offsets", "_prefixes")

    def __init__(self, prefixes: list[bytes], blob: bytes, offsets: NDArray[Any]) -> None:
        self._prefixes = prefixes
        self._blob = blob
        self._offsets = offsets

    @classmethod
    def of(cls, strings: PackedStrings) -> PrefixedStrings:
        """Those strings, in any order; sorted ones share most."""
        prefixes, parts = [], []
        for start in range(0, len(strings), _BLOCK):
            block = strings.slice(start, start + _BLOCK)
            prefix = _common_prefix(min(block), max(block))
            prefixes.append(prefix)
            parts.append(b"".join([string[len(prefix) :] for string in block]))
        blob = b"".join(parts)
        shared = np.repeat(np.array([len(prefix) for prefix in prefixes], dtype=np.uint64), _BLOCK)
        offsets = np.zeros(len(strings) + 1, dtype=np.uint32 if len(blob) < 2**32 else np.uint64)
        np.cumsum(strings.lengths() - shared[: len(strings)], out=offsets[1:], dtype=offsets.dtype)
        return cls(prefixes, blob, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        return _in_chunks(self)

    def __getitem__(self, index: int) -> bytes:
        return self.take([index])[0]

    @property
    def nbytes(self) -> int:
        """Memory of prefixes, blob and offsets, in bytes."""
        return sum(map(len, self._prefixes)) + len(self._blob) + self._offsets.nbytes

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""
        shared = np.repeat(np.array([len(prefix) for prefix in self._prefixes], dtype=np.uint64), _BLOCK)
        return np.diff(self._offsets).astype(np.uint64) + shared[: len(self)]

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""
        ends = self._offsets[start : min(stop, len(self)) + 1].tolist()
        prefixes, blob = self._prefixes, self._blob
        return [
            prefixes[place >> _BLOCK_BITS] + blob[begin:end]
            for place, (begin, end) in enumerate(pairwise(ends), start)
        ]

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""
        places = _places(indices, len(self))
        prefixes, blob, offsets = self._prefixes, self._blob, self._offsets
        blocks, begins, ends = places >> _BLOCK_BITS, offsets[places], offsets[places + 1]
        return [
            prefixes[block] + blob[begin:end]
            for block, begin, end in zip(blocks.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]


def _places(indices: NDArray[Any] | Sequence[int], count: int) -> NDArray[np.int64]:
    places = np.asarray(indices, dtype=np.int64)
    # Seen as unsigned, a negative place is a huge one: one pass finds both.
    if places.size and int(places.view(np.uint64).max()) >= count:
        raise IndexError(f"indices of {count} strings lie from 0 to {count - 1}")
    return places


def _common_prefix(first: bytes, last: bytes) -> bytes:
    """What the first and the last of sorted strings begin with, and so all between them."""
    length = next(
        (place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
    return first[:length]


def _in_chunks(strings: Strings) -> Iterator[bytes]:
    for start in range(0, len(strings), _CHUNK):
        yield from strings.slice(start, start + _CHUNK)
