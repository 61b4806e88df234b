"""Packs: immutable files of records, with an index at the end (docs/store.md)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import struct
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, BinaryIO, Self

import numpy as np
import xxhash

from superdl.super_wire.errors import RecordVersionError, StoreFormatError
from superdl.super_wire.ids import ID_BYTES, with_length
from superdl.super_wire.record import HEADER_BYTES, RecordKind, parse_header, verify_payload
from superdl.super_wire.store.layout import PACKS, checked_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from numpy.typing import NDArray

    from superdl.super_wire.record import Bytes, Header


PACK_VERSION = 1
MAX_RECORDS = 2**20
# An entry of a pack's index: sample id, and the record's offset, length and kind.
ENTRY_DTYPE = np.dtype(
    [("id", f"V{ID_BYTES}"), ("offset", "<u8"), ("bytes", "<u4"), ("kind", "u1"), ("pad", "V3")]
)

DATA_KINDS = frozenset({RecordKind.DATA, RecordKind.ARRAYS})
_MAGIC = b"SPAK"
_HEAD = struct.Struct("<4sI56x")
_ENTRY = struct.Struct(f"<{ID_BYTES}sQIB3x")
_FOOTER = struct.Struct("<4sIQQQQ24s")
_FOOTER_HASHED = 32  # bytes of the footer that its hash covers
_ZEROS = bytes(4096)
_ALIGNMENT = 64
_PAGE = 4096  # alignment for O_DIRECT
_LARGE_PAYLOAD = 65536
_MAX_RECORD = 2**32 - 1
_MAX_META = 2**20
_TAIL = 65536  # bytes of the first read, which contains the whole index of most packs


@dataclass(frozen=True, slots=True)
class PackMeta:
    """Properties shared by all records of a pack."""

    collection: str
    bucket: str  # of the samples
    recipe: str  # as canonical JSON
    fingerprint: str  # of the decoder
    version: str  # of SUPER, for information

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> PackMeta:
        """Parse a JSON mapping. Raises ``StoreFormatError`` if a field is missing or not a string."""
        names = [field.name for field in fields(cls)]
        try:
            texts = [mapping[name] for name in names]
            for text in texts:
                text.encode()  # JSON allows lone surrogates, but UTF-8 does not
        except (AttributeError, KeyError, TypeError, UnicodeEncodeError) as error:
            raise StoreFormatError(
                f"a pack's meta must contain the strings {', '.join(names)}: {error!r}"
            ) from error
        return cls(*texts)


@dataclass(frozen=True, slots=True, eq=False)
class PackIndex:
    """The contents of a pack. ``entries`` is an array of :data:`ENTRY_DTYPE`."""

    meta: PackMeta
    entries: NDArray[np.void]


def collection_of(bucket: str, recipe_digest: bytes) -> str:
    """Return the collection for a bucket and a recipe, as 16 hexadecimal digits."""
    framed = b"".join(map(with_length, (bucket.encode(), recipe_digest)))
    return hashlib.blake2b(framed, digest_size=8).hexdigest()


def new_pack_name(collection: str) -> str:
    """Return a unique pack name that begins with the collection."""
    return checked_name(PACKS, f"{collection}-{secrets.token_hex(12)}.pack")


class PackInProgress:
    """A pack that is being written to a new ``file``.

    The store never contains a partial pack. Leaving the context abandons the pack unless it was committed.
    """

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        meta: PackMeta,
        *,
        publish: Callable[[], None],
        discard: Callable[[], None] = lambda: None,
        failures: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._name, self._file, self._meta, self._open = name, file, meta, True
        self._publish, self._discard, self._failures = publish, discard, failures
        self._entries = bytearray()
        self.size = 0  # bytes written so far; after the commit, the size of the pack
        with self._all_or_nothing():
            self._write(_HEAD.pack(_MAGIC, PACK_VERSION))

    @property
    def count(self) -> int:
        """The number of records added so far."""
        return len(self._entries) // _ENTRY.size

    def add(self, sample_id: bytes, header: bytes, payload: Bytes) -> int:
        """Write a record, and return its offset.

        Raises ``ValueError`` if packs cannot contain such a record, or if this pack is full. A ``StoreError``
        abandons the pack.
        """
        self._check_open()
        size = HEADER_BYTES + memoryview(payload).nbytes
        if len(sample_id) != ID_BYTES or len(header) != HEADER_BYTES or header[5] not in DATA_KINDS:
            raise ValueError(
                f"a pack record needs a sample id of {ID_BYTES} bytes and a header of {HEADER_BYTES} bytes, "
                "of the kind 'data' or 'arrays'"
            )
        if size > _MAX_RECORD or self.count >= MAX_RECORDS:
            raise ValueError(
                f"a pack can contain at most {MAX_RECORDS} records of up to {_MAX_RECORD} bytes each"
            )
        # Align payloads, not headers, to a page or cache line.
        step = _PAGE if size - HEADER_BYTES >= _LARGE_PAYLOAD else _ALIGNMENT
        offset = -(-(self.size + HEADER_BYTES) // step) * step - HEADER_BYTES
        try:
            self._file.write(_ZEROS[: offset - self.size])
            self._file.write(header)
            self._file.write(payload)
        except OSError:
            self.abandon()
            with self._failures():  # entering it for each record would be expensive
                raise
        self.size = offset + size
        self._entries += _ENTRY.pack(sample_id, offset, size, header[5])
        return offset

    def commit(self) -> str:
        """Make the pack visible, and return its name.

        After a ``StoreError``, the pack stays invisible unless only S3's response was lost.
        """
        self._check_open()
        with self._all_or_nothing():
            self._write_index()
            self._file.flush()
            self._publish()
            self._file.close()
        self._open = False
        return self._name

    def abandon(self) -> None:
        """Discard the pack. This has no effect after a commit."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):  # no space for its buffer
                self._file.close()
            self._discard()

    def _write_index(self) -> None:
        self._write(_ZEROS[: -self.size % _ALIGNMENT])
        entries_offset = self.size
        meta = json.dumps(asdict(self._meta), ensure_ascii=False, separators=(",", ":")).encode()
        if len(meta) > _MAX_META:
            raise ValueError(f"a pack's meta may take at most {_MAX_META} bytes, not {len(meta)}")
        digest = xxhash.xxh3_64(self._entries)
        digest.update(meta)
        self._write(self._entries)
        self._write(meta)
        numbers = (PACK_VERSION, self.count, entries_offset, len(meta))
        # The hash also covers the footer up to the hash.
        digest.update(_FOOTER.pack(_MAGIC, *numbers, 0, b"")[:_FOOTER_HASHED])
        self._write(_FOOTER.pack(_MAGIC, *numbers, digest.intdigest(), b""))

    def _write(self, data: Bytes) -> None:
        self._file.write(data)
        self.size += memoryview(data).nbytes

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"the pack {self._name} has already been committed or abandoned")

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        try:
            with self._failures():
                yield
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()


def read_pack_index(read: Callable[[int, int], bytes], size: int) -> PackIndex:
    """Read the index of a pack of ``size`` bytes, in one read, or in two if the pack is large.

    ``read(offset, length)`` may return fewer bytes. Raises ``StoreFormatError`` if the pack is truncated
    or has a different version or a corrupt index.
    """
    if size < _HEAD.size + _FOOTER.size:
        raise StoreFormatError(f"a pack must be at least {_HEAD.size + _FOOTER.size} bytes long, not {size}")
    tail_at = max(0, size - _TAIL)
    tail = _whole(read, tail_at, size - tail_at)
    footer = tail[-_FOOTER.size :]
    magic, version, count, entries_at, meta_bytes, stated_hash, zeros = _FOOTER.unpack(footer)
    if magic != _MAGIC:
        raise StoreFormatError(
            f"a pack must end with a footer that begins with {_MAGIC!r}, so this is not a whole pack"
        )
    if version != PACK_VERSION:
        raise StoreFormatError(
            f"this version of SUPER reads pack version {PACK_VERSION}, but the pack has version {version}"
        )
    meta_at = entries_at + count * ENTRY_DTYPE.itemsize
    if meta_at + meta_bytes + _FOOTER.size != size or count > MAX_RECORDS or meta_bytes > _MAX_META:
        raise StoreFormatError(
            f"the footer lists {count} records, which does not match a pack of {size} bytes"
        )
    # The index of a large pack begins before the first read.
    if entries_at < tail_at:
        tail, tail_at = _whole(read, entries_at, tail_at - entries_at) + tail, entries_at
    index = memoryview(tail)[entries_at - tail_at : size - tail_at - _FOOTER.size + _FOOTER_HASHED]
    if xxhash.xxh3_64_intdigest(index) != stated_hash or any(zeros):
        raise StoreFormatError(f"the index is corrupt (its xxh3-64 is not {stated_hash:016x})")
    entries = np.frombuffer(index[: meta_at - entries_at], ENTRY_DTYPE)
    check_entries(entries, _HEAD.size, entries_at)
    try:
        meta = PackMeta.from_mapping(json.loads(bytes(index[meta_at - entries_at : -_FOOTER_HASHED])))
    except (ValueError, RecursionError) as error:
        raise StoreFormatError(f"a pack's meta must be JSON: {error}") from error
    return PackIndex(meta, entries)


def check_entries(entries: NDArray[np.void], first: int, end: int | NDArray[np.uint64]) -> None:
    """Raise ``StoreFormatError`` unless all records lie between the offsets ``first`` and ``end``.

    ``end`` is one offset for all records, or an array with one for each.
    """
    begins, lengths = entries["offset"], entries["bytes"]
    invalid = (begins < first) | (begins > end) | (lengths < HEADER_BYTES)
    if (invalid | (lengths > end - np.minimum(begins, end))).any():
        raise StoreFormatError("an index entry refers to bytes outside the pack, or fewer than a header")


def _whole(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    data = read(offset, length)
    if len(data) != length:
        raise StoreFormatError(
            f"the pack is truncated: of {length} bytes from offset {offset}, only {len(data)} are present"
        )
    return data


def check_record(record: Bytes, sample_id: bytes) -> Header:
    """Check a packed record's id and hash, and return its header. Raises ``RecordError`` if it is corrupt."""
    header = parse_header(record, record_bytes=len(record), sample_id=sample_id)
    verify_payload(header, memoryview(record)[HEADER_BYTES:])
    if header.kind not in DATA_KINDS:
        raise RecordVersionError(f"packs contain data, but this record is of kind {header.kind.name.lower()}")
    return header
