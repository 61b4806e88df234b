"""Further kinds of records: pointers into a store, and several named arrays for one sample.

The payload of a pointer is ``<QQ`` and the name of a pack: the start of the record in the pack, its
length, and the pack. The payload of named arrays is a table, followed by the arrays in the order of
their names, each on a 64-byte boundary of the payload. The table is ``<I``, the number of arrays, and
then for each array ``<BBBx6I`` (length of its name, dtype code, dimensions, shape) and its name. All
padding is zero.
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
# A pack name must not lead out of the directory of its store.
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
                "a pack name must consist of 1 to 255 of the characters A-Z a-z 0-9 . _ - and not begin with "
                f". or -; got {self.pack!r}"
            )
        end = self.offset + self.length
        if self.offset < 0 or self.length < HEADER_BYTES or end > _MAX_U64:
            raise RecordError(f"a record of {self.length} bytes cannot begin at byte {self.offset} of a pack")


def pack_pointer(pointer: Pointer, sample_id: bytes) -> bytes:
    """Return a complete pointer record."""
    payload = _LOCATION.pack(pointer.offset, pointer.length) + pointer.pack.encode()
    return pack_header(RecordKind.POINTER, payload, sample_id) + payload


def read_pointer(record: Bytes, *, sample_id: bytes | None = None) -> Pointer:
    """Parse a pointer record. Raises :class:`RecordError` if it is invalid."""
    _, payload = checked_payload(record, RecordKind.POINTER, sample_id=sample_id)
    if len(payload) <= _LOCATION.size:
        raise RecordError(
            f"a pointer's payload must be longer than {_LOCATION.size} bytes, not {len(payload)} bytes"
        )
    offset, length = _LOCATION.unpack_from(payload)
    return Pointer(bytes(payload[_LOCATION.size :]).decode(errors="replace"), offset, length)


def pack_arrays(
    arrays: Mapping[str, NDArray[Any]], sample_id: bytes, *, fetch_us: int = 0, decode_us: int = 0
) -> bytes:
    """Return a complete record of several named arrays, in the order of their names.

    Raises the errors of :func:`pack`, and ``RecordError`` for 0 or more than 64 arrays, or for a
    name that is not 1 to 255 bytes long.
    """
    if not 1 <= len(arrays) <= MAX_ARRAYS:
        raise RecordError(f"a record must contain 1 to {MAX_ARRAYS} named arrays, not {len(arrays)}")
    table, bodies = [_COUNT.pack(len(arrays))], []
    for name, array in sorted((name.encode(), array) for name, array in arrays.items()):
        if not 1 <= len(name) <= MAX_NAME_BYTES:
            raise RecordError(f"an array's name must be 1 to {MAX_NAME_BYTES} bytes long, not {name[:40]!r}")
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
    """Return the header and payload of a recipe's result, which is one array or several named ones."""
    if isinstance(result, np.ndarray):
        return pack(result, sample_id, fetch_us=fetch_us, decode_us=decode_us)
    record = pack_arrays(result, sample_id, fetch_us=fetch_us, decode_us=decode_us)
    return record[:HEADER_BYTES], memoryview(record)[HEADER_BYTES:]


class ArrayLocation(NamedTuple):
    """The location of a named array in a payload: the bytes from ``start`` up to ``stop``."""

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
    try:
        table, at = _read_table(payload)
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise RecordError(f"the payload does not contain a valid table of named arrays: {error}") from error
    locations = []
    for name, (dtype, shape, size) in table:
        start, at = _aligned(at), _aligned(at) + size
        locations.append(ArrayLocation(name, dtype, shape, start, at))
    if at != len(payload):
        raise RecordError(f"the named arrays take {at} bytes, but the payload has {len(payload)}")
    return locations


def _read_table(
    payload: memoryview,
) -> tuple[list[tuple[str, tuple[np.dtype[Any], tuple[int, ...], int]]], int]:
    """Return the name of each array with its dtype, shape and size, and the end of the table.

    Raises ``ValueError`` if the table is invalid.
    """
    (count,) = _COUNT.unpack_from(payload)
    if not 1 <= count <= MAX_ARRAYS:
        raise ValueError(f"{count} arrays are listed instead of 1 to {MAX_ARRAYS}")
    at, table = _COUNT.size, []
    for _ in range(count):
        name_bytes, code, ndim, *sides = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        name = bytes(payload[at : at + name_bytes]).decode()
        at += name_bytes
        try:
            table.append((name, checked_array(ndim, tuple(sides), code)))
        except RecordError as error:
            raise ValueError(f"array {name!r}: {error}") from error
    names = [name.encode() for name, _ in table]
    if not all(names):
        raise ValueError("an array has no name")
    # Only one order is valid, so that equal samples have equal bytes.
    if any(first >= second for first, second in itertools.pairwise(names)):
        raise ValueError("names are out of order or repeated")
    return table, at


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
