"""Byte strings packed in Arrow arrays, in memory or in mapped files, rather than in Python objects."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

# A million Python objects take 100 MB and slow down the garbage collector. A packed key takes its length
# plus eight bytes.
_IN_MEMORY_BYTES = 2**26
_CHUNK = 8192  # strings to unpack at a time


class PackedStrings:
    """An immutable sequence of byte strings.

    Args:
        array: an Arrow large binary array without nulls, or a dictionary array that contains
            each distinct string once.
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
        """Wrap two buffers: the joined strings, and their start offsets plus the final end, as uint64."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined)]
        return cls(pa.Array.from_buffers(pa.large_binary(), buffers[1].size // 8 - 1, buffers))

    def repeated(self, which: NDArray[Any]) -> PackedStrings:
        """Return the string at each index in ``which``, storing each distinct string once."""
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
        """Return the strings at ``indices``. Raises ``IndexError`` if an index is out of range."""
        return _unpacked(self._taken(np.asarray(indices, dtype=np.int64)))

    def chunks(self) -> Iterator[PackedStrings]:
        """Yield all strings in chunks of a few thousand. No chunk keeps another one in memory."""
        for start in range(0, len(self), _CHUNK):
            yield PackedStrings(self._taken(np.arange(start, min(start + _CHUNK, len(self)))))

    def _taken(self, indices: NDArray[np.int64]) -> Any:
        import pyarrow as pa

        if pa.types.is_dictionary(self.array.type):
            return self.array.dictionary.take(self.array.indices.take(pa.array(indices)))
        return self.array.take(pa.array(indices))

    def parts(self) -> tuple[bytes | memoryview, NDArray[np.uint64]]:
        """Return the joined strings, and their start offsets plus the final end, without copying strings."""
        if not len(self):
            return b"", np.zeros(1, dtype=np.uint64)
        _, offsets, joined = self.array.buffers()
        # A slice shares its parent's buffers, so skip to its offsets.
        ends = np.frombuffer(offsets, np.uint64, len(self) + 1, 8 * self.array.offset)
        return memoryview(joined or b"")[int(ends[0]) : int(ends[-1])], ends - ends[0] if ends[0] else ends

    def reorder(self, order: NDArray[np.int64]) -> PackedStrings:
        """Return the strings at the indices in ``order``."""
        builder = PackedStringsBuilder()
        # Copy in pieces: take() allocates memory, and the builder moves the strings to a file.
        for start in range(0, len(order), _CHUNK):
            builder.extend(PackedStrings(self._taken(order[start : start + _CHUNK])))
        return builder.build()

    def with_prefix(self, prefix: bytes) -> PackedStrings:
        """Return the strings with a prefix added to each."""
        import pyarrow as pa
        import pyarrow.compute as pc

        builder, none = PackedStringsBuilder(), pa.scalar(b"", pa.large_binary())
        for chunk in self.chunks():
            joined = pc.binary_join_element_wise(pa.scalar(prefix, pa.large_binary()), chunk.array, none)
            builder.extend(PackedStrings(joined))
        return builder.build()

    def equals_next(self) -> NDArray[np.bool_]:
        """Return whether each string equals the next, as a bool array of shape (len - 1,)."""
        import pyarrow.compute as pc

        equal: NDArray[np.bool_] = pc.equal(self.array[:-1], self.array[1:]).to_numpy(zero_copy_only=False)
        return equal

    def find_in(self, others: PackedStrings) -> NDArray[np.int64]:
        """Return the index of each string in ``others``, or -1 if missing, as int64 of shape (len,)."""
        import pyarrow.compute as pc

        indices = pc.index_in(self.array, value_set=others.array).fill_null(-1)
        return indices.to_numpy().astype(np.int64)  # type: ignore[no-any-return]

    def sort_order(self) -> NDArray[np.int64]:
        """Return the indices that sort the strings by bytes, stably, as int64 of shape (len,)."""
        import pyarrow.compute as pc

        order: NDArray[np.int64] = pc.array_sort_indices(self.array).to_numpy().view(np.int64)
        return order


def _unpacked(array: Any) -> list[bytes]:
    strings: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()
    return strings


class PackedStringsBuilder:
    """Packs strings in memory or, beyond 64 MB, in temporary files."""

    __slots__ = ("_ends", "_joined")

    def __init__(self) -> None:
        # Closed by build(), or when a failed listing ends.
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
        """Append strings, which must not be in a dictionary array."""
        joined, ends = strings.parts()
        self._ends.write((ends[1:] + np.uint64(self._joined.tell())).tobytes())
        self._joined.write(joined)

    def build(self) -> PackedStrings:
        """Return the packed strings. No more may be added afterwards."""
        return PackedStrings.of_parts(_written(self._joined), _written(self._ends))


def _written(file: tempfile.SpooledTemporaryFile[bytes]) -> bytes | mmap.mmap:
    """Close a file and return its contents, mapped if they are on disk."""
    with file:
        if file.tell() > _IN_MEMORY_BYTES:
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.seek(0)
        return file.read()
