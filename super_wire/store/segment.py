"""Segments: parts of a store's index, each with the contents of some packs, which saves opening them.

Several may list one pack, some list packs that are gone, and packs in none have their own index.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from superdl.super_wire.errors import StoreFormatError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.store.layout import PACKS, checked_name
from superdl.super_wire.store.pack import DATA_KINDS, PackMeta

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.super_wire.record import Bytes
    from superdl.super_wire.store.pack import PackIndex

SEGMENT_VERSION = 1
# A record: its sample, header's offset, whole length, and its pack's index.
SEGMENT_DTYPE = np.dtype([("id", f"V{ID_BYTES}"), ("offset", "<u8"), ("bytes", "<u4"), ("pack", "<u4")])
_ALIGNMENT = 64
_MAGIC = b"SSEG"
_HEAD = struct.Struct("<4sIQQQ32s")
_HEAD_HASHED = 24  # its bytes before the hash


@dataclass(frozen=True, slots=True)
class SegmentPack:
    """A pack in a segment: its name, its length and its meta."""

    name: str
    bytes: int
    meta: PackMeta


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A parsed segment; ``entries`` is an array of :data:`SEGMENT_DTYPE`."""

    packs: tuple[SegmentPack, ...]
    entries: NDArray[np.void]


def segment_entries(index: PackIndex, pack: int) -> NDArray[np.void]:
    """Return one pack's data as a segment's entries, with the index ``pack``."""
    data = index.entries[np.isin(index.entries["kind"], [int(kind) for kind in DATA_KINDS])]
    entries = np.empty(len(data), SEGMENT_DTYPE)
    for name in ("id", "offset", "bytes"):
        entries[name] = data[name]
    entries["pack"] = pack
    return entries


def segment_of(
    pack: SegmentPack, ids: bytes, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Segment:
    """Build the segment of a pack just written, from the ids and places of its records."""
    if not checked_name(PACKS, pack.name).startswith(f"{pack.meta.collection}-"):
        raise StoreFormatError(f"the pack is not of the collection {pack.meta.collection}")
    entries = np.zeros(offsets.size, SEGMENT_DTYPE)
    entries["id"] = np.frombuffer(ids, SEGMENT_DTYPE["id"])
    entries["offset"], entries["bytes"] = offsets, lengths
    _check_places((pack,), entries)
    return Segment((pack,), entries)


def pack_segment(segment: Segment) -> bytes:
    """Return a segment's bytes."""
    packs, entries = segment.packs, segment.entries
    metas = {pack.meta: place for place, pack in reversed(list(enumerate(packs)))}
    numbers = {meta: number for number, meta in enumerate(metas)}
    rows = [[pack.name, pack.bytes, numbers[pack.meta]] for pack in packs]
    table = {"metas": [asdict(meta) for meta in metas], "packs": rows}
    packed_table = json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()
    packed_table += b" " * (-len(packed_table) % _ALIGNMENT)  # spaces may follow JSON
    body = packed_table + np.ascontiguousarray(entries, SEGMENT_DTYPE).tobytes()
    numbered = _HEAD.pack(_MAGIC, SEGMENT_VERSION, len(packed_table), len(entries), 0, b"")[:_HEAD_HASHED]
    digest = xxhash.xxh3_64(numbered)
    digest.update(body)
    return numbered + digest.intdigest().to_bytes(8, "little") + bytes(_HEAD.size - _HEAD_HASHED - 8) + body


def read_segment(data: Bytes) -> Segment:
    """Parse a segment; its entries are a view of the bytes. StoreFormatError if broken."""
    if len(data) < _HEAD.size:
        raise StoreFormatError(f"a segment has at least {_HEAD.size} bytes; this one has {len(data)}")
    magic, version, table_bytes, count, stated_hash, zeros = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise StoreFormatError(f"a segment begins with {_MAGIC!r}; this one with {magic!r}")
    if version != SEGMENT_VERSION:
        raise StoreFormatError(
            f"this SUPER reads segment version {SEGMENT_VERSION}; this one is version {version}"
        )
    entries_at = _HEAD.size + table_bytes
    if entries_at + count * SEGMENT_DTYPE.itemsize != len(data):
        raise StoreFormatError(f"the segment is cut off: {count} entries are not in {len(data)} bytes")
    view = memoryview(data)
    digest = xxhash.xxh3_64(view[:_HEAD_HASHED])
    digest.update(view[_HEAD.size :])
    if digest.intdigest() != stated_hash or any(zeros):
        raise StoreFormatError(f"the segment is broken: its xxh3-64 is not {stated_hash:016x}")
    packs = _read_table(view[_HEAD.size : entries_at])
    entries = np.frombuffer(view[entries_at:], SEGMENT_DTYPE)
    _check_places(packs, entries)
    return Segment(packs, entries)


def _read_table(data: memoryview) -> tuple[SegmentPack, ...]:
    try:
        table: Any = json.loads(bytes(data))
        metas = [PackMeta.from_mapping(meta) for meta in table["metas"]]
        packs = tuple(
            SegmentPack(checked_name(PACKS, name), _size(size), metas[_size(number)])
            for name, size, number in table["packs"]
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise StoreFormatError(f"a segment's table of packs is broken: {error!r}") from error
    return packs


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"no size or place: {value!r:.40}")
    return value


def _check_places(packs: tuple[SegmentPack, ...], entries: NDArray[np.void]) -> None:
    """Raise ``StoreFormatError`` unless each entry is inside its pack."""
    if not len(entries):
        return
    if not packs or int(entries["pack"].max()) >= len(packs):
        raise StoreFormatError(f"an entry names a pack beyond the {len(packs)} of its segment")
    sizes = np.array([pack.bytes for pack in packs], np.uint64)[entries["pack"]]
    begins, lengths = entries["offset"], entries["bytes"]
    wrong = (begins > sizes) | (lengths < HEADER_BYTES) | (lengths > sizes - np.minimum(begins, sizes))
    if wrong.any():
        raise StoreFormatError("an entry names a record beyond its pack's end")
