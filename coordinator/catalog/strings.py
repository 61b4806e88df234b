"""Byte strings without a Python object each: one blob, in memory or in a mapped file, as in Arrow."""

from __future__ import annotations

import mmap
import tempfile
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

# A million Python objects take 100 MB and slow down the garbage collector. Packed,
# the same keys take their bytes plus eight more each.
_IN_MEMORY_BYTES = 2**26
_CHUNK = 8192  # strings unpacked at a time: few for memory, many for speed


class PackedStrings:
    """An immutable sequence of byte strings in one blob.

    Args:
        blob: all strings, one after the other: bytes, or a view of a mapped file.
        offsets: uint64, one more than there are strings: string ``i`` is
            ``blob[offsets[i]:offsets[i + 1]]``.
        which: place of each string among those of the blob, if distinct ones are
            held once; else ``None``.
    """

    __slots__ = ("blob", "offsets", "which")

    def __init__(
        self,
        blob: bytes | memoryview,
        offsets: NDArray[np.uint64],
        which: NDArray[Any] | None = None,
    ) -> None:
        self.blob, self.offsets, self.which = blob, offsets, which
        self.offsets.flags.writeable = False

    @classmethod
    def pack(cls, strings: Iterable[bytes]) -> PackedStrings:
        """Pack strings that are in memory."""
        strings = list(strings)
        offsets = np.zeros(len(strings) + 1, dtype=np.uint64)
        np.cumsum(list(map(len, strings)), out=offsets[1:])
        return cls(b"".join(strings), offsets)

    @classmethod
    def concatenate(cls, parts: Sequence[PackedStrings]) -> PackedStrings:
        """Return all strings of all parts, in order."""
        builder = PackedStringsBuilder()
        for part in parts:
            builder.extend(part)
        return builder.build()

    @classmethod
    def of(cls, strings: Any) -> PackedStrings:
        """Wrap the strings of an Arrow array without copying them; null becomes empty."""
        import pyarrow as pa

        if pa.types.is_dictionary(strings.type):
            return cls.of(strings.dictionary).repeated(strings.indices.to_numpy())
        array = strings.cast(pa.large_binary()).fill_null(b"")
        if not len(array):
            return cls(b"", np.zeros(1, dtype=np.uint64))
        _, offsets, blob = array.buffers()
        # A slice shares its parent's buffers: skip to its own offsets.
        ends = np.frombuffer(offsets, np.uint64, len(array) + 1, 8 * array.offset)
        return cls(memoryview(blob or b"")[int(ends[0]) : int(ends[-1])], ends - ends[0] if ends[0] else ends)

    def repeated(self, which: NDArray[Any]) -> PackedStrings:
        """Return the string at each place in ``which``; each distinct one stays held once."""
        return PackedStrings(self.blob, self.offsets, which)

    def __len__(self) -> int:
        return len(self.offsets) - 1 if self.which is None else len(self.which)

    def __getitem__(self, index: int) -> bytes:
        return self.take([index])[0]

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _CHUNK):
            yield from self.slice(start, start + _CHUNK)

    def lengths(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint64]:
        """Return the length in bytes of every string from ``start`` to ``stop``: uint64."""
        if self.which is None:
            return np.diff(self.offsets[start : None if stop is None else stop + 1])
        which = self.which[start:stop].astype(np.int64)
        lengths: NDArray[np.uint64] = self.offsets[which + 1] - self.offsets[which]
        return lengths

    def slice(self, start: int, stop: int) -> list[bytes]:
        """Return the strings from ``start`` to ``stop``; like a slice, it stops at the end."""
        if self.which is not None:
            return self.take(np.arange(start, min(stop, len(self))))
        ends = self.offsets[start : min(stop, len(self)) + 1].tolist()
        return [bytes(self.blob[begin:end]) for begin, end in pairwise(ends)]

    def take(self, indices: NDArray[Any] | Sequence[int]) -> list[bytes]:
        """Return the strings at ``indices``, in that order; ``IndexError`` if one is out of range."""
        places = np.asarray(indices, dtype=np.int64)
        # As unsigned numbers, negative places are huge: one pass catches both errors.
        if places.size and int(places.view(np.uint64).max()) >= len(self):
            raise IndexError(f"indices of {len(self)} strings lie from 0 to {len(self) - 1}")
        if self.which is not None:
            places = self.which[places].astype(np.int64)
        begins, ends = self.offsets[places].tolist(), self.offsets[places + 1].tolist()
        return [bytes(self.blob[begin:end]) for begin, end in zip(begins, ends, strict=True)]

    def arrow(self) -> Any:
        """Return an Arrow array of large binaries that shares the bytes; a dictionary if strings repeat."""
        import pyarrow as pa

        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.blob)]
        strings = pa.Array.from_buffers(pa.large_binary(), len(self.offsets) - 1, buffers)
        return strings if self.which is None else pa.DictionaryArray.from_arrays(self.which, strings)

    def reorder(self, order: NDArray[np.int64]) -> PackedStrings:
        """Return the strings at ``order`` as packed strings."""
        strings, builder = self.arrow(), PackedStringsBuilder()
        # In pieces: take() copies into memory, the builder moves them to a file.
        for start in range(0, len(order), _CHUNK):
            builder.extend(PackedStrings.of(strings.take(order[start : start + _CHUNK])))
        return builder.build()

    def behind(self, prefix: bytes) -> PackedStrings:
        """Return the strings, each with a prefix in front."""
        import pyarrow as pa
        import pyarrow.compute as pc

        strings, builder, none = self.arrow(), PackedStringsBuilder(), pa.scalar(b"", pa.large_binary())
        for start in range(0, len(self), _CHUNK):
            chunk = strings[start : start + _CHUNK]
            joined = pc.binary_join_element_wise(pa.scalar(prefix, pa.large_binary()), chunk, none)
            builder.extend(PackedStrings.of(joined))
        return builder.build()

    def equals_next(self) -> NDArray[np.bool_]:
        """Return which strings equal the next one: bool, shape (len - 1,)."""
        import pyarrow.compute as pc

        strings = self.arrow()
        equal: NDArray[np.bool_] = pc.equal(strings[:-1], strings[1:]).to_numpy(zero_copy_only=False)
        return equal

    def sort_order(self) -> NDArray[np.int64]:
        """Return the stable order by the strings' bytes: int64, shape (len,)."""
        import pyarrow.compute as pc

        order: NDArray[np.int64] = pc.array_sort_indices(self.arrow()).to_numpy().view(np.int64)
        return order


class PackedStringsBuilder:
    """Packs strings one by one."""

    __slots__ = ("_blob", "_ends")

    def __init__(self) -> None:
        self._blob, self._ends = _Spool(), _Spool()
        # The first string begins at 0.
        self._ends.write(bytes(8))

    def __len__(self) -> int:
        return self._ends.size // 8 - 1

    def extend(self, strings: PackedStrings) -> None:
        """Add many strings, none of them repeated."""
        self._ends.write((strings.offsets[1:] + np.uint64(self._blob.size)).tobytes())
        self._blob.write(strings.blob)

    def build(self) -> PackedStrings:
        """Return the strings added. Afterwards, nothing may be added."""
        return PackedStrings(self._blob.view(), np.frombuffer(self._ends.view(), dtype=np.uint64))


class _Spool:
    """Bytes that are written once: up to 64 MB in memory, more in a temporary file."""

    __slots__ = ("_file", "_latest", "size")

    def __init__(self) -> None:
        self._latest, self.size = bytearray(), 0
        self._file: IO[bytes] | None = None

    def write(self, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        if len(self._latest) + len(piece) < _IN_MEMORY_BYTES:
            self._latest += piece
            return
        self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # view() closes it
        self._file.write(self._latest)
        self._file.write(piece)
        self._latest.clear()

    def view(self) -> bytes | memoryview:
        """Return everything written. Afterwards, nothing may be written."""
        if self._file is None:
            return bytes(self._latest)
        with self._file as file:
            file.write(self._latest)
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ))
