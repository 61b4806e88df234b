"""The cache's records: a 64-byte header followed by an array's bytes, which are never copied."""

from __future__ import annotations

import enum
import functools
import json
import math
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Bytes: TypeAlias = bytes | bytearray | memoryview
# The message for objects whose version differs from the listed one begins with this.
CHANGED_SINCE = "changed since it was listed"
# The reason in tombstones that a coordinator writes once it has reached its spending cap.
SPENDING_CAP = "spending_cap"
# The reason in the tombstone under a dataset's id while its source is unavailable.
UNAVAILABLE = "unavailable"
# The same while the source is being listed. This time does not count toward read timeouts.
LISTING = "listing"
MAGIC = b"SUPR"
RECORD_VERSION = 2
MAX_NDIM = 6
payload_hash: Callable[[Bytes], int] = xxhash.xxh3_64_intdigest
_HEADER = struct.Struct("<4sBBBBQQ6IIIQ")
HEADER_BYTES = _HEADER.size
_MAX_U32 = 2**32 - 1
_NO_SIDES = (0,) * MAX_NDIM
_MAX_ARRAY_BYTES = 2**63  # numpy's limit, also for the non-zero sides of empty arrays
# The header as a numpy dtype, to read many headers at once.
HEADER_DTYPE = np.dtype(
    [
        ("magic", "S4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("dtype", "u1"),
        ("ndim", "u1"),
        ("payload_bytes", "<u8"),
        ("payload_hash", "<u8"),
        ("shape", "<u4", (MAX_NDIM,)),
        ("fetch_us", "<u4"),
        ("decode_us", "<u4"),
        ("id_prefix", "<u8"),
    ]
)

# numpy's names of the dtype codes in headers. Codes are never reused.
DTYPE_NAMES = dict(
    enumerate(("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"), 1)
) | {9: "float16", 10: "float32", 11: "float64", 12: "bool"}

DTYPE_CODES = {name: code for code, name in DTYPE_NAMES.items()}


class RecordKind(enum.IntEnum):
    """The kind of a record."""

    # Codes differ in at least two bits, because the hash does not cover the header.
    DATA = 1  # the sample: one array
    TOMBSTONE = 2  # the reason for the absence of a sample
    POINTER = 4  # the location of the sample's record in a store
    ARRAYS = 7  # the sample: several named arrays


_KINDS = frozenset(RecordKind)


@dataclass(frozen=True, slots=True)
class Header:
    """The checked header of a record. Times are in microseconds."""

    kind: RecordKind
    dtype: str
    shape: tuple[int, ...]
    payload_bytes: int
    payload_hash: int
    fetch_us: int
    decode_us: int
    # The first eight bytes of the sample id, as a little-endian number. It reveals a record under
    # another sample's key.
    id_prefix: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The reason for a sample's absence."""

    key: str
    reason: str  # a short code: undecodable, too_large, ...
    message: str
    permanent: bool  # whether the object's bytes are at fault; other tombstones expire


def id_prefixes(sample_ids: bytes) -> NDArray[np.uint64]:
    """Return the prefixes of concatenated sample ids, as in record headers: uint64 of shape (samples,)."""
    if len(sample_ids) % ID_BYTES:
        raise ValueError(f"sample ids have {ID_BYTES} bytes each, but these have {len(sample_ids)} in total")
    # An id consists of two such numbers. The first is its prefix.
    return np.frombuffer(sample_ids, dtype="<u8")[::2]


def pack(
    array: NDArray[Any], sample_id: bytes, *, fetch_us: int = 0, decode_us: int = 0
) -> tuple[bytes, memoryview]:
    """Return a record's header and payload. The payload is a view if ``array`` is C-contiguous.

    Raises ``RecordError`` for more than 6 dimensions or a dimension of 2**32 or more, and ``TypeError``
    for a dtype that records cannot contain.
    """
    code, stored = stored_dtype(array.dtype)
    check_shape(array.shape)
    payload = np.ascontiguousarray(array, dtype=stored).reshape(-1).view(np.uint8).data
    times = (fetch_us, decode_us)
    header = pack_header(RecordKind.DATA, payload, sample_id, code=code, shape=array.shape, times=times)
    return header, payload


def check_shape(shape: tuple[int, ...]) -> None:
    """Raise :class:`RecordError` for a shape that does not fit into a header."""
    if len(shape) > MAX_NDIM or any(side > _MAX_U32 for side in shape):
        raise RecordError(f"a record can have at most {MAX_NDIM} dimensions, each below 2**32, not {shape}")


def pack_header(
    kind: RecordKind,
    payload: Bytes,
    sample_id: bytes,
    *,
    code: int = 1,
    shape: tuple[int, ...] | None = None,
    times: tuple[int, int] = (0, 0),
) -> bytes:
    """Return the header of a record of ``kind``. Without ``shape``, the payload is plain bytes.

    ``code`` is the payload's dtype code. ``times`` are the fetch and decode times in microseconds.
    """
    size = memoryview(payload).nbytes
    sides = (size,) if shape is None else shape
    head = (MAGIC, RECORD_VERSION, kind, code, len(sides), size, payload_hash(payload))
    padding, (fetch_us, decode_us) = _NO_SIDES[len(sides) :], times
    # Times over 71 minutes do not fit into the header.
    clipped = (min(fetch_us, _MAX_U32), min(decode_us, _MAX_U32))
    return _HEADER.pack(*head, *sides, *padding, *clipped, _id_prefix(sample_id))


def _id_prefix(sample_id: bytes) -> int:
    if len(sample_id) != ID_BYTES:
        raise ValueError(f"a sample id must be {ID_BYTES} bytes long, not {len(sample_id)}")
    return int.from_bytes(sample_id[:8], "little")


@functools.lru_cache(maxsize=64)  # numpy builds a dtype's name at each call
def stored_dtype(dtype: np.dtype[Any]) -> tuple[int, np.dtype[Any]]:
    """Return a dtype's code in headers, and the same dtype in the byte order of records."""
    code = DTYPE_CODES.get(dtype.name)
    if code is None:
        raise TypeError(f"records can contain {', '.join(DTYPE_CODES)}, but not {dtype}")
    return code, dtype.newbyteorder("<")


def pack_tombstone(tombstone: Tombstone, sample_id: bytes) -> bytes:
    """Return a complete tombstone record: a header and a JSON payload."""
    payload = json.dumps(asdict(tombstone), separators=(",", ":")).encode()
    return pack_header(RecordKind.TOMBSTONE, payload, sample_id) + payload


def parse_header(record: Bytes, *, record_bytes: int | None = None, sample_id: bytes | None = None) -> Header:
    """Parse and check a header, given at least the first 64 bytes of a record.

    ``record_bytes`` is the length of the whole record, if it is known.

    Raises:
        RecordIdError: the record does not belong to ``sample_id``.
        RecordVersionError: this version of SUPER does not support the format version, kind or dtype.
        RecordError: the bytes are not a record, there are too few or too many, or the shape does not match
            the length of the payload.
    """
    if len(record) < HEADER_BYTES:
        raise RecordError(f"a record has at least {HEADER_BYTES} bytes, not {len(record)}")
    magic, version, kind, code, ndim, payload_bytes, payload_hash, *rest = _HEADER.unpack_from(record)
    if magic != MAGIC:
        raise RecordError(f"a record begins with {MAGIC!r}, not {magic!r}")
    if version != RECORD_VERSION:
        raise RecordVersionError(
            f"this version of SUPER reads records of version {RECORD_VERSION}, not of version {version}"
        )
    if kind not in _KINDS or code not in DTYPE_NAMES:
        raise RecordVersionError(f"record version {version} has no kind {kind} with dtype code {code}")
    _, shape, array_bytes = checked_array(ndim, tuple(rest[:MAX_NDIM]), code)
    dtype = DTYPE_NAMES[code]
    if array_bytes != payload_bytes:
        raise RecordError(f"shape {shape} of {dtype} does not match a payload of {payload_bytes} bytes")
    if record_bytes is not None and record_bytes != HEADER_BYTES + payload_bytes:
        raise RecordError(
            f"the header states {HEADER_BYTES + payload_bytes} bytes, but the record has {record_bytes}"
        )
    fetch_us, decode_us, prefix = rest[MAX_NDIM:]
    if sample_id is not None and prefix != _id_prefix(sample_id):
        raise RecordIdError(
            f"the record is of sample {prefix.to_bytes(8, 'little').hex()}..., not of {sample_id.hex()}"
        )
    return Header(RecordKind(kind), dtype, shape, payload_bytes, payload_hash, fetch_us, decode_us, prefix)


def checked_array(ndim: int, sides: tuple[int, ...], code: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return an array's dtype, shape and size in bytes. Raises :class:`RecordError` if they are invalid."""
    if code not in DTYPE_NAMES or ndim > MAX_NDIM:
        raise RecordError(f"an array cannot have dtype code {code} and {ndim} dimensions")
    shape, extra_sides = sides[:ndim], sides[ndim:]
    if any(extra_sides):  # a flipped bit in ndim could turn (28, 28, 1) into (28, 28)
        raise RecordError(f"an array of {ndim} dimensions cannot have further sides {extra_sides}")
    dtype = np.dtype(DTYPE_NAMES[code]).newbyteorder("<")
    if math.prod(filter(None, shape)) * dtype.itemsize >= _MAX_ARRAY_BYTES:
        raise RecordError(f"an array cannot have shape {shape}")
    return dtype, shape, math.prod(shape) * dtype.itemsize


def verify_payload(header: Header, payload: Bytes) -> None:
    """Raise :class:`RecordError` unless the xxh3-64 of ``payload`` matches the header."""
    actual = payload_hash(payload)
    if actual != header.payload_hash:
        raise RecordError(
            f"the payload's xxh3-64 is {actual:016x}, but the header states {header.payload_hash:016x}"
        )


def checked_payload(
    record: Bytes, kind: RecordKind, *, sample_id: bytes | None = None
) -> tuple[Header, memoryview]:
    """Return a record's header and payload. Raises ``RecordError`` unless it is intact and of ``kind``."""
    header = parse_header(record, record_bytes=len(record), sample_id=sample_id)
    payload = memoryview(record)[HEADER_BYTES:]
    verify_payload(header, payload)
    if header.kind is not kind:
        raise RecordVersionError(
            f"the record is of kind {header.kind.name.lower()}, not of kind {kind.name.lower()}"
        )
    return header, payload


def unpack(record: Bytes, *, sample_id: bytes | None = None) -> tuple[Header, NDArray[Any]]:
    """Return a data record's header and array. The array is a view, read-only if ``record`` is."""
    header, payload = checked_payload(record, RecordKind.DATA, sample_id=sample_id)
    dtype = np.dtype(header.dtype).newbyteorder("<")
    return header, np.frombuffer(payload, dtype=dtype).reshape(header.shape)


def read_tombstone(record: Bytes) -> Tombstone:
    """Parse a tombstone record. Raises :class:`RecordError` if it is invalid."""
    _, payload = checked_payload(record, RecordKind.TOMBSTONE)
    try:
        fields = json.loads(bytes(payload))
        return Tombstone(
            str(fields["key"]), str(fields["reason"]), str(fields["message"]), bool(fields["permanent"])
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(
            f"a tombstone's payload must be JSON with key, reason, message and permanent: {error!r}"
        ) from error
