"""Classification of received records: good, tombstone, pointer, or corrupt."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from superdl.super_wire.errors import RecordError, RecordIdError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.record import (
    HEADER_BYTES,
    RecordKind,
    Tombstone,
    id_prefixes,
    parse_header,
    read_tombstone,
    verify_payload,
)
from superdl.super_wire.record_kinds import array_places, read_pointer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_wire.record import Header
    from superdl.super_wire.record_kinds import Pointer

Verify: TypeAlias = Literal["auto", "all"]

# One in this many hashed payloads is hashed again in each epoch.
HASHED_SHARE = 64

# The bytes of a header that samples of one layout share: magic to payload length, and shape.
_LAYOUT = np.r_[0:16, 24:48]

_SLOTS = 2**20  # of eight bytes each: 8 MiB, of which only touched pages take memory
_UPPER = np.uint64(0xFFFFFFFF00000000)
_LOWER = np.uint64(0x00000000FFFFFFFF)


class SeenRecords:
    """A direct-mapped table, at most 8 MiB, of records that were hashed. Thread-safe."""

    def __init__(self) -> None:
        self._pid = 0
        # 32 bits of the sample id, besides the 20 that choose the slot, and 32 of its production times.
        self._entries: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def to_hash(self, sample_ids: bytes, epoch: int) -> NDArray[np.bool_]:
        """Return which payloads to hash, shape (samples,): new ones, and those due."""
        if self._pid != os.getpid():  # a fork has not read what its parent has
            self._entries = np.zeros(_SLOTS, dtype=np.uint64)
            self._pid = os.getpid()  # set last, because other threads check it
        slots, upper = _slots_of(sample_ids)
        entries = self._entries[slots]
        turn = (id_prefixes(sample_ids) + np.uint64(epoch % HASHED_SHARE)) % np.uint64(HASHED_SHARE) == 0
        new = (entries & _UPPER != upper) | (entries == 0)
        chosen: NDArray[np.bool_] = new | turn
        return chosen

    def unlike(self, sample_ids: bytes, buffer: BatchBuffer, offsets: NDArray[np.intp]) -> list[int]:
        """Return those of ``offsets`` whose record differs from the one hashed before."""
        slots, upper = _slots_of(sample_ids)
        differs = self._entries[slots[offsets]] != upper[offsets] | _times(buffer, offsets)
        changed: list[int] = offsets[differs].tolist()
        return changed

    def remember(self, sample_ids: bytes, buffer: BatchBuffer, offsets: NDArray[np.intp]) -> None:
        """Remember the records at ``offsets`` as hashed and correct."""
        slots, upper = _slots_of(sample_ids)
        # An evicted record is hashed again.
        self._entries[slots[offsets]] = upper[offsets] | _times(buffer, offsets)


def _slots_of(sample_ids: bytes) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    words = np.frombuffer(sample_ids, dtype="<u8")[1::2]
    return (words & np.uint64(_SLOTS - 1)).astype(np.intp), words & _UPPER


def _times(buffer: BatchBuffer, offsets: NDArray[np.intp]) -> NDArray[np.uint64]:
    """Return a value that identifies a production of a sample; 0 marks an empty slot."""
    headers = buffer.headers[offsets]
    mixed = headers["fetch_us"].astype(np.uint64) * np.uint64(0x9E3779B1) + headers["decode_us"]
    times: NDArray[np.uint64] = (mixed & _LOWER) | np.uint64(1)
    return times


@dataclass(slots=True)
class CheckedRecords:
    """The result of checking some samples of a batch, by offset."""

    tombstones: dict[int, Tombstone] = field(default_factory=dict)
    pointers: dict[int, Pointer] = field(default_factory=dict)
    corrupt: dict[int, RecordError] = field(default_factory=dict)

    @property
    def astray(self) -> str:
        """Return evidence that another sample's record came: replies are out of step."""
        return next((str(error) for error in self.corrupt.values() if isinstance(error, RecordIdError)), "")


def layout_columns(raw_headers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bytes of headers, uint8 (n, 64), that tell dtype and shape."""
    return raw_headers[:, _LAYOUT]


def check_records(
    buffer: BatchBuffer, sample_ids: bytes, offsets: Sequence[int], seen: SeenRecords | None
) -> CheckedRecords:
    """Check the records received for ``offsets``; those in none of the result's mappings are good.

    ``sample_ids`` are of the whole batch. Without ``seen``, all payloads are hashed.
    """
    checked = CheckedRecords()
    if not offsets:
        return checked
    places = np.array(offsets, dtype=np.intp)
    prefixes = id_prefixes(sample_ids)
    first = _check_one(buffer, sample_ids, offsets[0], checked)
    if first is None or first.kind is RecordKind.ARRAYS:  # whose layout is in the payload
        unlike = offsets[1:]
    else:
        # All headers at once against the first good one; only those that differ are parsed.
        layout = layout_columns(buffer.raw_headers[places])
        lengths = buffer.record_bytes[places]
        alike = (layout == layout[0]).all(axis=1) & (lengths == lengths[0])
        alike &= buffer.headers["id_prefix"][places] == prefixes[places]
        unlike = places[~alike].tolist()
    for offset in unlike:
        _check_one(buffer, sample_ids, offset, checked)
    if settled := {*checked.corrupt, *checked.tombstones, *checked.pointers}:
        places = np.array([offset for offset in offsets if offset not in settled], np.intp)
    _check_payloads(buffer, sample_ids, places, seen, checked)
    return checked


def _check_payloads(
    buffer: BatchBuffer,
    sample_ids: bytes,
    places: NDArray[np.intp],
    seen: SeenRecords | None,
    checked: CheckedRecords,
) -> None:
    digests, came = buffer.digests, places.tolist()
    # Most payloads were hashed as they arrived.
    hashed = [offset for offset in came if offset in digests]
    late = [offset for offset in came if offset not in digests]
    if seen is not None and late:
        late = seen.unlike(sample_ids, buffer, np.array(late, dtype=np.intp))
    computed = np.array([digests[offset] for offset in hashed], dtype=np.uint64)
    differing = np.array(hashed, dtype=np.intp)[computed != buffer.headers["payload_hash"][hashed]]
    for offset in (*late, *differing.tolist()):
        _verify_one(buffer, offset, checked)
    if seen is not None:
        fresh = [offset for offset in (*hashed, *late) if offset not in checked.corrupt]
        seen.remember(sample_ids, buffer, np.array(fresh, dtype=np.intp))


def _check_one(buffer: BatchBuffer, sample_ids: bytes, offset: int, checked: CheckedRecords) -> Header | None:
    """Check a single record; return its header if it is good data."""
    try:
        record_bytes = int(buffer.record_bytes[offset])
        if record_bytes < HEADER_BYTES:
            # Always raises: it is too short to have a header.
            parse_header(buffer.payload(offset))
        raw_header = bytes(buffer.raw_headers[offset])
        sample_id = sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES]
        header = parse_header(raw_header, record_bytes=record_bytes, sample_id=sample_id)
        if header.kind is RecordKind.TOMBSTONE:
            checked.tombstones[offset] = read_tombstone(raw_header + bytes(buffer.payload(offset)))
            return None
        if header.kind is RecordKind.POINTER:
            record = raw_header + bytes(buffer.payload(offset))
            checked.pointers[offset] = read_pointer(record, sample_id=sample_id)
            return None
        if header.kind is RecordKind.ARRAYS:
            array_places(buffer.payload(offset))
    except RecordError as error:
        checked.corrupt[offset] = error
        return None
    return header


def _verify_one(buffer: BatchBuffer, offset: int, checked: CheckedRecords) -> None:
    try:
        verify_payload(parse_header(bytes(buffer.raw_headers[offset])), buffer.payload(offset))
    except RecordError as error:
        checked.corrupt[offset] = error
