"""The index of a store: what its segments and packs tell of one collection, and segments written for others.

Segments spare whoever opens a store reading the index of each pack. What none tells of, the packs do. All of
this blocks, and runs in threads.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError
from superdl.super_wire.store import (
    SEGMENT_DTYPE,
    Segment,
    SegmentPack,
    collection_of,
    pack_segment,
    segment_entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.datasets import Dataset
    from superdl.super_wire.store import Store

__all__ = ["Found", "Known", "collection_in", "look", "merge_segments", "segment_of", "write_segment"]

_log = logging.getLogger(__name__)

_READERS = 16
_SEGMENTS_MAX = 16
"""Of one collection; more are written anew as one."""

_LARGE = 2**20
"""Entries of a segment that merging leaves as it is."""


@dataclass(slots=True)
class Known:
    """What was read of a collection before, so that a look reads what is new alone."""

    packs: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look has found: all packs of the store with their sizes, and what is told of those that are new.

    ``usable`` says which of the ``told`` packs hold records of this decoder and are as long as they should
    be. ``useless`` are the others, and those without an index that can be read; ``gone`` were known, and are
    no more.
    """

    sizes: dict[str, int]
    told: Segment
    usable: NDArray[np.bool_]
    useless: frozenset[str]
    gone: frozenset[str]


def collection_in(dataset: Dataset | None) -> str:
    """The collection of a dataset's records; empty for none."""
    return "" if dataset is None else collection_of(dataset.catalog.id_bucket, dataset.recipe.digest)


def look(store: Store, collection: str, fingerprint: str, known: Known) -> Found:
    """Read what a store has of a collection and ``known`` lacks; ``known`` has it then.

    Indexes that had to be read from packs are written as a segment, so that the next one is spared that.

    Raises:
        StoreError: the store does not answer, or refuses.
    """
    before = frozenset(known.packs)  # what is written while this looks is no part of it
    sizes = store.packs()
    there = {name for name in sizes if name.startswith(collection)}
    gone, new = before - there, there - before
    pieces: list[Segment] = []
    names = [name for name in _segments_of(store, collection) if name not in known.segments] if new else []
    for name in names:
        segment = _segment(store, name)
        if segment is not None:
            pieces.append(segment)
    by_segments = {pack.name for piece in pieces for pack in piece.packs}
    indexes, broken = _indexes(store, {name: sizes[name] for name in sorted(new - by_segments)})
    if indexes and not store.read_only:
        with contextlib.suppress(StoreError):  # its disk is full, perhaps: the packs will tell again
            names.append(write_segment(store, collection, indexes))
    told = _together([*pieces, *indexes])
    usable = [
        sizes.get(pack.name) == pack.bytes and pack.meta.fingerprint == fingerprint for pack in told.packs
    ]
    # A segment may tell of a pack that came after the listing: the next look finds it.
    useless = {
        pack.name for pack, good in zip(told.packs, usable, strict=True) if not good and pack.name in sizes
    }
    known.segments.update(names)
    known.packs = there | (known.packs - before)
    return Found(sizes, told, np.array(usable, dtype=np.bool_), frozenset(useless | broken), gone)


def segment_of(
    pack: SegmentPack, ids: bytes, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Segment:
    """What is known of a pack that was just written: whose records lie where."""
    entries = np.zeros(offsets.size, dtype=SEGMENT_DTYPE)
    entries["id"] = np.frombuffer(ids, dtype=SEGMENT_DTYPE["id"])
    entries["offset"], entries["bytes"] = offsets, lengths
    return Segment((pack,), entries)


def write_segment(store: Store, collection: str, pieces: Iterable[Segment]) -> str:
    """Write what is known of some packs; the segment's name."""
    return store.write_segment(pack_segment(_together(pieces)), collection)


def merge_segments(store: Store, collection: str) -> None:
    """Write the segments of a collection as one where they are many.

    Others may do the same at once, or read what goes: then they read more of packs, or the same twice.
    """
    names = _segments_of(store, collection)
    if len(names) <= _SEGMENTS_MAX:
        return
    left, merged, kept = set(store.packs()), [], []
    for name in names:
        segment = _segment(store, name)
        if segment is not None and len(segment.entries) < _LARGE:
            kept.append(_only(segment, left))
            left.difference_update(pack.name for pack in segment.packs)
            merged.append(name)
    if kept:
        write_segment(store, collection, kept)
        for name in merged:
            store.remove_segment(name)


def _segments_of(store: Store, collection: str) -> list[str]:
    return sorted(name for name in store.segments() if name.startswith(collection))


def _segment(store: Store, name: str) -> Segment | None:
    """A segment; ``None`` if it went meanwhile, or is none: packs tell the same."""
    try:
        return store.read_segment(name)
    except StoreGoneError:
        return None
    except StoreFormatError as error:
        _log.warning("the segment %s of the store is left out: %s", name, error)
        return None


def _indexes(store: Store, packs: Mapping[str, int]) -> tuple[list[Segment], set[str]]:
    """What packs themselves tell, and those that have no index that can be read."""

    def read(name: str) -> Segment | None:
        try:
            index = store.read_index(name, packs[name])
        except StoreGoneError:
            return None
        except StoreFormatError as error:
            _log.warning("the pack %s of the store is not used: %s", name, error)
            return None
        return Segment((SegmentPack(name, packs[name], index.meta),), segment_entries(index, 0))

    if not packs:
        return [], set()
    with ThreadPoolExecutor(min(_READERS, len(packs)), thread_name_prefix="super-store") as readers:
        read_of = dict(zip(packs, readers.map(read, packs), strict=True))
    found = [piece for piece in read_of.values() if piece is not None]
    return found, {name for name, piece in read_of.items() if piece is None}


def _together(pieces: Iterable[Segment]) -> Segment:
    """What several tell, as one."""
    packs: list[SegmentPack] = []
    parts = [np.empty(0, dtype=SEGMENT_DTYPE)]
    for piece in pieces:
        part = piece.entries.copy()
        part["pack"] += len(packs)
        parts.append(part)
        packs += piece.packs
    return Segment(tuple(packs), np.concatenate(parts))


def _only(segment: Segment, wanted: set[str]) -> Segment:
    """What a segment tells of some packs."""
    there = np.array([pack.name in wanted for pack in segment.packs], dtype=np.bool_)
    entries = segment.entries[there[segment.entries["pack"]]].copy()
    entries["pack"] = (np.cumsum(there) - 1)[entries["pack"]]
    packs = tuple(pack for pack in segment.packs if pack.name in wanted)
    return Segment(packs, entries)
