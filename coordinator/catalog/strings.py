"""Byte strings without an object for each: collected and sorted as one blob, then held in less memory yet.

A million Python objects cost a hundred megabytes and keep the garbage collector busy. Packed, the same keys
cost their bytes and eight more each. Keys in sorted order share long beginnings, so the beginning that
neighbours share is then held once for a block of them; ETags are mostly hexadecimal digits, which take half
a byte each. A catalog of ImageNet's size takes 37 MB in this way, where packed strings take 108.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from itertools import pairwise
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["PackedStrings", "PackedStringsBuilder", "RepeatedStrings", "Strings", "compact"]

_CHUNK = 8192  # strings unpacked at a time: few enough not to matter, many enough to be fast
_WORD = 8
_BLOCK_BITS = 6
_BLOCK = 1 << _BLOCK_BITS
_HEX_DIGITS = b"0123456789abcdef"


class Strings(ABC):
    """An immutable sequence of byte strings, however they are held."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""

    @abstractmethod
    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""
        return self.take(np.arange(start, min(stop, len(self))))

    def __getitem__(self, index: int) -> bytes:
        return self.take([index])[0]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _CHUNK):
            yield from self.slice(start, start + _CHUNK)

    def _places(self, indices: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
        places = np.asarray(indices, dtype=np.int64)
        # Seen as unsigned, a negative place is a huge one: one pass finds both.
        if places.size and int(places.view(np.uint64).max()) >= len(self):
            raise IndexError(f"indices of {len(self)} strings lie from 0 to {len(self) - 1}")
        return places


def compact(strings: Strings) -> Strings:
    """The same strings in less memory."""
    if not isinstance(strings, PackedStrings):
        return strings
    return _HexStrings.of(strings) or _PrefixedStrings.of(strings)


class PackedStrings(Strings):
    """Strings in one blob, which can be sorted.

    Args:
        blob: all strings, one after the other.
        offsets: uint64, one more than there are strings: string ``i`` is ``blob[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("blob", "offsets")

    def __init__(self, blob: bytes, offsets: NDArray[np.uint64]) -> None:
        self.blob = blob
        self.offsets = offsets
        self.offsets.flags.writeable = False

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
        return len(self.offsets) - 1

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""
        return self.offsets[1:] - self.offsets[:-1]

    def slice(self, start: int, stop: int) -> list[bytes]:
        """The strings from ``start`` to ``stop``, cut off at the end as slices are."""
        ends = self.offsets[start : min(stop, len(self)) + 1].tolist()
        return [self.blob[begin:end] for begin, end in pairwise(ends)]

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""
        places = self._places(indices)
        begins, ends = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        return [self.blob[begin:end] for begin, end in zip(begins, ends, strict=True)]

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

        A radix sort by words of eight bytes, last word first; in numpy, which lets other threads go on. A
        string takes part as soon as it reaches into the word, so the work follows the bytes there are, not
        the longest string. Missing bytes count as zero, ties go to the shorter string.
        """
        starts, lengths = self.offsets[:-1], self.lengths()
        # A view of the eight bytes at every place of the blob, as big-endian numbers: they compare as the
        # bytes do.
        padded = self.blob + bytes(_WORD)
        words = np.ndarray((len(self.blob) + 1,), dtype=">u8", buffer=padded, strides=(1,))
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


class RepeatedStrings(Strings):
    """Strings that come again and again, each held once.

    Args:
        strings: the different ones.
        which: of each string, its place in these.
    """

    __slots__ = ("_strings", "_which")

    def __init__(self, strings: Strings, which: NDArray[Any]) -> None:
        self._strings = compact(strings)
        self._which = which

    def __len__(self) -> int:
        return len(self._which)

    def lengths(self) -> NDArray[np.uint64]:
        """Length of every string in bytes: uint64, shape (len,)."""
        lengths: NDArray[np.uint64] = self._strings.lengths()[self._which]
        return lengths

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """The strings at ``indices``, in that order; ``IndexError`` if one lies outside."""
        return self._strings.take(self._which[self._places(indices)])


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


class _HexStrings(Strings):
    """Strings of an equal, even number of lower-case hexadecimal digits, two to a byte.

    Args:
        digits: uint8, shape (strings, bytes), two digits in each.
    """

    __slots__ = ("_digits",)

    def __init__(self, digits: NDArray[np.uint8]) -> None:
        self._digits = digits

    @classmethod
    def of(cls, strings: PackedStrings) -> _HexStrings | None:
        """Those strings; ``None`` if one of them is of another kind."""
        lengths = strings.lengths()
        length = int(lengths[0]) if len(strings) else 0
        if not length or length % 2 or (lengths != length).any() or strings.blob.strip(_HEX_DIGITS):
            return None
        digits = np.frombuffer(bytes.fromhex(strings.blob.decode("ascii")), dtype=np.uint8)
        return cls(digits.reshape(len(strings), length // 2))

    def __len__(self) -> int:
        return len(self._digits)

    def lengths(self) -> NDArray[np.uint64]:
        return np.full(len(self), 2 * self._digits.shape[1], dtype=np.uint64)

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        digits = self._digits[self._places(indices)]
        blob, length = digits.tobytes().hex().encode("ascii"), 2 * digits.shape[1]
        return [blob[begin : begin + length] for begin in range(0, len(blob), length)]


class _PrefixedStrings(Strings):
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
    def of(cls, strings: PackedStrings) -> _PrefixedStrings:
        """Those strings, in any order; sorted ones share most."""
        prefixes, parts = [], []
        for start in range(0, len(strings), _BLOCK):
            block = strings.slice(start, start + _BLOCK)
            prefix = commonprefix(block) or b""  # noqa: RUF071  # of bytes, not of paths
            prefixes.append(prefix)
            parts.append(b"".join([string[len(prefix) :] for string in block]))
        blob = b"".join(parts)
        shared = np.repeat(np.array([len(prefix) for prefix in prefixes], dtype=np.uint64), _BLOCK)
        offsets = np.zeros(len(strings) + 1, dtype=np.uint32 if len(blob) < 2**32 else np.uint64)
        np.cumsum(strings.lengths() - shared[: len(strings)], out=offsets[1:], dtype=offsets.dtype)
        return cls(prefixes, blob, offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def lengths(self) -> NDArray[np.uint64]:
        shared = np.repeat(np.array([len(prefix) for prefix in self._prefixes], dtype=np.uint64), _BLOCK)
        return np.diff(self._offsets).astype(np.uint64) + shared[: len(self)]

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        places = self._places(indices)
        prefixes, blob, offsets = self._prefixes, self._blob, self._offsets
        blocks, begins, ends = places >> _BLOCK_BITS, offsets[places], offsets[places + 1]
        return [
            prefixes[block] + blob[begin:end]
            for block, begin, end in zip(blocks.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]


def _offsets(lengths: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    offsets = np.zeros(sum(map(len, lengths)) + 1, dtype=np.uint64)
    if len(offsets) > 1:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return offsets
