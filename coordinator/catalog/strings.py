"""Byte strings in an Arrow array, in memory or in a mapped file, without a Python object per string."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

# A million Python objects take 100 MB and slow down the garbage collector. Packed,
# a key takes its length plus eight bytes.
_IN_MEMORY_BYTES = 2**26
_CHUNK = 8192  # number of strings to unpack at a time, a trade-off between memory and speed


class PackedStrings:
    """An immutable sequence of byte strings.

    Args:
        array: large binaries of Arrow without nulls, or a dictionary of them, which
            contains each distinct string once.
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def pack(cls, strings: Iterable[bytes]) -> PackedStrings:
        """Pack strings that are in memory."""
        import pyarrow as pa

        return cls(pa.array(list(strings), pa.large_binary()))

    @classmethod
    def of(cls, texts: Any) -> PackedStrings:
        """Wrap an Arrow array of strings without nulls."""
        import pyarrow as pa

        return cls(texts.cast(pa.large_binary()))

    @classmethod
    def of_parts(cls, joined: Any, ends: Any) -> PackedStrings:
        """Wrap two buffers: the joined strings, and their starts as uint64, followed by the end."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined)]
        return cls(pa.Array.from_buffers(pa.large_binary(), buffers[1].size // 8 - 1, buffers))

    @classmethod
    def concatenate(cls, parts: Sequence[PackedStrings]) -> PackedStrings:
        """Return the strings of all parts, in order."""
        builder = PackedStringsBuilder()
        for part in parts:
            builder.extend(part)
        return builder.build()

    def repeated(self, which: NDArray[Any]) -> PackedStrings:
        """Return the string at each index in ``which``. Each distinct string is stored only once."""
        import pyarrow as pa

        return PackedStrings(pa.DictionaryArray.from_arrays(which, self.array))

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> bytes:
        return self.take([index])[0]

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self.chunks():
            yield from _unpacked(chunk.array)

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """Return the strings at ``indices``, in that order. Raises ``IndexError`` if one is out of range."""
        return _unpacked(self._taken(np.asarray(indices, dtype=np.int64)))

    def chunks(self) -> Iterator[PackedStrings]:
        """Yield all strings in chunks of a few thousand. A chunk does not keep others in memory."""
        for start in range(0, len(self), _CHUNK):
            yield PackedStrings(self._taken(np.arange(start, min(start + _CHUNK, len(self)))))

    def _taken(self, indices: NDArray[np.int64]) -> Any:
        import pyarrow as pa

        if pa.types.is_dictionary(self.array.type):
            taken = _computed("take", self.array.indices, pa.array(indices))
            return _computed("take", self.array.dictionary, taken)
        return _computed("take", self.array, pa.array(indices))

    def parts(self) -> tuple[bytes | memoryview, NDArray[np.uint64]]:
        """Return the joined strings, and their starts followed by the end, without a copy."""
        if not len(self):
            return b"", np.zeros(1, dtype=np.uint64)
        _, offsets, joined = self.array.buffers()
        # A slice shares its parent's buffers, so skip to its offsets.
        ends = np.frombuffer(offsets, np.uint64, len(self) + 1, 8 * self.array.offset)
        return memoryview(joined or b"")[int(ends[0]) : int(ends[-1])], ends - ends[0] if ends[0] else ends

    def reorder(self, order: NDArray[np.int64]) -> PackedStrings:
        """Return the strings rearranged by ``order``, an array of indices."""
        builder = PackedStringsBuilder()
        # Copy in pieces, because take() uses memory and the builder moves the strings to a file.
        for start in range(0, len(order), _CHUNK):
            builder.extend(PackedStrings(self._taken(order[start : start + _CHUNK])))
        return builder.build()

    def with_prefix(self, prefix: bytes) -> PackedStrings:
        """Return the strings, each with a prefix."""
        import pyarrow as pa

        builder, none = PackedStringsBuilder(), pa.scalar(b"", pa.large_binary())
        for chunk in self.chunks():
            start = pa.scalar(prefix, pa.large_binary())
            joined = _computed("binary_join_element_wise", start, chunk.array, none)
            builder.extend(PackedStrings(joined))
        return builder.build()

    def equals_next(self) -> NDArray[np.bool_]:
        """Return a mask of the strings that equal the next one, as bool of shape (len - 1,)."""
        equal = _computed("equal", self.array[:-1], self.array[1:])
        mask: NDArray[np.bool_] = equal.to_numpy(zero_copy_only=False)
        return mask

    def sort_order(self) -> NDArray[np.int64]:
        """Return the stable order of the strings by their bytes, as int64 of shape (len,)."""
        order: NDArray[np.int64] = _computed("array_sort_indices", self.array).to_numpy().view(np.int64)
        return order


def _computed(function: str, *arguments: Any) -> Any:
    """Call one of Arrow's functions without ``pyarrow.compute``, which takes 20 ms to import."""
    from pyarrow._compute import call_function

    return call_function(function, list(arguments))


def _unpacked(array: Any) -> list[bytes]:
    strings: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return strings


class PackedStringsBuilder:
    """Packs strings, up to 64 MB in memory, and beyond that in temporary files."""

    __slots__ = ("_ends", "_joined")

    def __init__(self) -> None:
        # Closed by build(), or at the end of a listing that failed.
        self._joined = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        self._ends = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        # The first string begins at 0.
        self._ends.write(bytes(8))

    def __del__(self) -> None:
        self._joined.close()
        self._ends.close()

    def __len__(self) -> int:
        return self._ends.tell() // 8 - 1

    def extend(self, strings: PackedStrings) -> None:
        """Append strings, which must not be dictionary-encoded."""
        joined, ends = strings.parts()
        self._ends.write((ends[1:] + np.uint64(self._joined.tell())).tobytes())
        self._joined.write(joined)

    def build(self) -> PackedStrings:
        """Return the added strings. Nothing may be added afterwards."""
        return PackedStrings.of_parts(_written(self._joined), _written(self._ends))


def _written(file: tempfile.SpooledTemporaryFile[bytes]) -> bytes | mmap.mmap:
    """Return the contents of a file, mapped if it is on disk, and close the file."""
    with file:
        if file.tell() > _IN_MEMORY_BYTES:
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.seek(0)
        return file.read()
