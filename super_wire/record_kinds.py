"""More kinds of records: pointers into a store, and several named arrays for one sample.

A pointer's payload is ``<QQ`` (the offset and length of a record in a pack), followed by the pack's
name. The payload of named arrays is a table, followed by the arrays in the order of their names, each at
a multiple of 64 bytes. The table is ``<I`` (the number of arrays), followed for each array by ``<BBBx6I``
(length of its name, dtype code, dimensions, shape) and its name. All padding is zero.
"""

from __future__ import annotations

import itertools
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.super_wire.errors import RecordError
from superdl.super_wire.record import (
    HEADER_BYTES,
    MAX_NDIM,
    RecordKind,
    check_shape,
    checked_array,
    checked_payload,
    pack,
    pack_header,
    stored_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from superdl.super_wire.record import Bytes

MAX_ARRAYS = 64
MAX_NAME_BYTES = 255  # of UTF-8
_ALIGNMENT = 64
_MAX_U64 = 2**64 - 1
_LOCATION = struct.Struct("<QQ")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<BBBx6I")
# A pack name must not lead out of its store's directory.
_PACK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """The location of a record in a store: ``length`` bytes from ``offset`` in the file ``pack``."""

    pack: str
    offset: int
    length: int

    def __post_init__(self) -> None:
        if not _PACK_NAME.fullmatch(self.pack):
            raise RecordError(
                "a pack name must have 1 to 255 of the characters A-Z a-z 0-9 . _ - and not begin with . or "
                f"-, so not {self.pack!r}"
            )
        end = self.offset + self.length
        if self.offset < 0 or self.length < HEADER_BYTES or end > _MAX_U64:
            raise RecordError(f"a pack cannot have a record of {self.length} bytes at offset {self.offset}")


def pack_pointer(pointer: Pointer, sample_id: bytes) -> bytes:
    """Return a complete pointer record."""
    payload = _LOCATION.pack(pointer.offset, pointer.length) + pointer.pack.encode()
    return pack_header(RecordKind.POINTER, payload, sample_id) + payload


def read_pointer(record: Bytes, *, sample_id: bytes | None = None) -> Pointer:
    """Parse a pointer record. Raises :class:`RecordError` if it is invalid."""
    _, payload = checked_payload(record, RecordKind.POINTER, sample_id=sample_id)
    if len(payload) <= _LOCATION.size:
        raise RecordError(f"a pointer's payload has more than {_LOCATION.size} bytes, not {len(payload)}")
    offset, length = _LOCATION.unpack_from(payload)
    return Pointer(bytes(payload[_LOCATION.size :]).decode(errors="replace"), offset, length)


def pack_arrays(
    arrays: Mapping[str, NDArray[Any]], sample_id: bytes, *, fetch_us: int = 0, decode_us: int = 0
) -> bytes:
    """Return a complete record of named arrays, in the order of their names.

    Raises the errors of :func:`pack`, and ``RecordError`` unless there are 1 to 64 arrays with names of
    1 to 255 bytes.
    """
    if not 1 <= len(arrays) <= MAX_ARRAYS:
        raise RecordError(f"a record must contain 1 to {MAX_ARRAYS} named arrays, not {len(arrays)}")
    table, bodies = [_COUNT.pack(len(arrays))], []
    for name, array in sorted((name.encode(), array) for name, array in arrays.items()):
        if not 1 <= len(name) <= MAX_NAME_BYTES:
            raise RecordError(f"an array's name must have 1 to {MAX_NAME_BYTES} bytes, so not {name[:40]!r}")
        code, stored = stored_dtype(array.dtype)
        check_shape(array.shape)
        sides = (*array.shape, *(0,) * (MAX_NDIM - array.ndim))
        table.append(_ENTRY.pack(len(name), code, array.ndim, *sides) + name)
        bodies.append(np.ascontiguousarray(array, dtype=stored).tobytes())
    parts = [b"".join(table), *bodies]
    payload = b"".join(part.ljust(_aligned(len(part)), b"\0") for part in parts[:-1]) + parts[-1]
    return pack_header(RecordKind.ARRAYS, payload, sample_id, times=(fetch_us, decode_us)) + payload


def pack_sample(
    result: NDArray[Any] | Mapping[str, NDArray[Any]],
    sample_id: bytes,
    *,
    fetch_us: int = 0,
    decode_us: int = 0,
) -> tuple[bytes, memoryview]:
    """Return the header and payload for a recipe's result: an array, or several named ones."""
    if isinstance(result, np.ndarray):
        return pack(result, sample_id, fetch_us=fetch_us, decode_us=decode_us)
    record = pack_arrays(result, sample_id, fetch_us=fetch_us, decode_us=decode_us)
    return record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:]


class ArrayLocation(NamedTuple):
    """A named array in a payload, which occupies the bytes from ``start`` up to ``stop``."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def read_arrays(record: Bytes, *, sample_id: bytes | None = None) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a record as views of ``record``."""
    _, payload = checked_payload(record, RecordKind.ARRAYS, sample_id=sample_id)
    return {
        name: np.frombuffer(payload[start:stop], dtype=dtype).reshape(shape)
        for name, dtype, shape, start, stop in array_locations(payload)
    }


def array_locations(payload: memoryview) -> list[ArrayLocation]:
    """Locate the named arrays in a payload, in the order of their names.

    Raises ``RecordError`` if the payload is inconsistent.
    """
    arrays, names = [], [b""]
    try:
        (count,) = _COUNT.unpack_from(payload)
        at = _COUNT.size
        for _ in range(min(count, MAX_ARRAYS)):
            name_bytes, code, ndim, *sides = _ENTRY.unpack_from(payload, at)
            at += _ENTRY.size
            names.append(bytes(payload[at : at + name_bytes]))
            at += name_bytes
            arrays.append((names[-1].decode(), checked_array(ndim, tuple(sides), code)))
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordError(f"the payload has no valid table of named arrays: {error}") from error
    # Only one order is valid, so that equal samples have the same bytes.
    if not 1 <= count <= MAX_ARRAYS or any(first >= second for first, second in itertools.pairwise(names)):
        raise RecordError(f"a record must have 1 to {MAX_ARRAYS} arrays, with distinct names in sorted order")
    locations = []
    for name, (dtype, shape, size) in arrays:
        start, at = _aligned(at), _aligned(at) + size
        locations.append(ArrayLocation(name, dtype, shape, start, at))
    if at != len(payload):
        raise RecordError(f"the named arrays take {at} bytes, but the payload has {len(payload)}")
    return locations


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
