"""The index of a store: what its segments and packs tell of one collection, and segments written for others.

Segments spare whoever opens a store reading the index of each pack. What none tells of, the packs do. All of
this blocks, and runs in threads.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.store import (
    SEGMENT_DTYPE,
    PackMeta,
    Segment,
    SegmentPack,
    collection_of,
    pack_segment,
    segment_entries,
    segment_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.super_wire.request import PrefetchResult
    from superdl.super_wire.store import PackIndex, Store

__all__ = [
    "AT_ONCE",
    "Found",
    "Known",
    "collection_in",
    "look",
    "merge_segments",
    "read_indexes",
    "read_segments",
    "segment_written",
    "threads",
    "write_segments",
]

_log = logging.getLogger(__name__)

AT_ONCE = 16
"""Requests to a store at one time."""

_SEGMENTS_MAX = 16
"""Of one collection; more are written anew as one."""

_LARGE = 2**20
"""Entries of a full segment: no more is added to it, and merging leaves it as it is."""


@dataclass(slots=True)
class Known:
    """What was read of a collection before, so that a look reads what is new alone."""

    packs: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Found:
    """What a look has found: all packs of the store with their sizes, and what is told of those that are new.

    ``usable`` says which of the ``told`` packs hold records of this decoder and are as long as they should
    be. ``useless`` are the others, and those whose index is broken; ``gone`` were known, and are no more.
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
    names = [name for name in _segments_of(store, collection) if name not in known.segments] if new else []
    pieces = list(read_segments(store, names))
    by_segments = {pack.name for piece in pieces for pack in piece.packs}
    indexes, broken = _told_by_packs(store, {name: sizes[name] for name in sorted(new - by_segments)})
    if indexes and not store.read_only:
        with contextlib.suppress(StoreError):  # its disk is full, perhaps: the packs will tell again
            names += write_segments(store, collection, indexes)
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


def segment_written(
    dataset: Dataset, indices: NDArray[np.int64], result: PrefetchResult, fingerprint: str
) -> Segment:
    """Return what a result says of the pack that its function wrote; ``indices`` are the samples in it.

    Raises:
        StoreFormatError: there can be no such pack.
    """
    made_of = dataset.catalog.id_bucket, dataset.recipe.json, fingerprint, result.function_version
    pack = SegmentPack(result.pack, result.store_bytes, PackMeta(collection_in(dataset), *made_of))
    offsets, lengths = np.array(result.offsets, dtype=np.int64), np.array(result.lengths)
    stored = offsets > 0
    return segment_of(pack, dataset.ids(indices, 0), offsets[stored], lengths[stored])


def write_segments(store: Store, collection: str, pieces: Iterable[Segment]) -> list[str]:
    """Write what is known of some packs, in as many segments as keep readers' memory bounded; their names."""
    names, group, entries = [], [], 0
    for piece in pieces:
        group.append(piece)
        entries += len(piece.entries)
        if entries >= _LARGE:
            names.append(store.write_segment(pack_segment(_together(group)), collection))
            group, entries = [], 0
    if group:
        names.append(store.write_segment(pack_segment(_together(group)), collection))
    return names


def merge_segments(store: Store, collection: str) -> None:
    """Write the segments of a collection as one where they are many.

    Others may do the same at once, or read what goes: then they read more of packs, or the same twice.
    """
    names = _segments_of(store, collection)
    if len(names) <= _SEGMENTS_MAX:
        return
    left, merged, kept = set(store.packs()), [], []
    for name in names:
        segment = next(read_segments(store, [name]), None)
        if segment is not None and len(segment.entries) < _LARGE:
            kept.append(_only(segment, left))
            left.difference_update(pack.name for pack in segment.packs)
            merged.append(name)
    if len(kept) > 1:
        write_segments(store, collection, kept)
        for name in merged:
            store.remove_segment(name)


def _segments_of(store: Store, collection: str) -> list[str]:
    return sorted(name for name in store.segments() if name.startswith(collection))


def read_segments(store: Store, names: Iterable[str]) -> Iterator[Segment]:
    """Those of some segments that are there and can be read; of others, packs tell the same."""
    for name in names:
        with contextlib.suppress(StoreGoneError):
            try:
                yield store.read_segment(name)
            except (StoreFormatError, StoreRefusedError) as error:
                _log.warning("the segment %s of the store is left out: %s", name, error)


def read_indexes(store: Store, packs: Mapping[str, int]) -> Iterator[tuple[str, PackIndex | StoreError]]:
    """The index of each of these packs, or why it has none for us; those that go meanwhile are left out."""

    def read(item: tuple[str, int]) -> PackIndex | StoreError:
        try:
            index = store.read_index(*item)
        except (StoreGoneError, StoreFormatError, StoreRefusedError) as error:  # a fault of this pack alone
            return error
        return replace(index, entries=index.entries.copy())  # else all that was read stays in memory

    with threads(AT_ONCE) as pool:
        for name, found in zip(packs, pool.map(read, packs.items()), strict=True):
            if not isinstance(found, StoreGoneError):
                yield name, found


@contextlib.contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool; what it has not begun is not begun any more once an error, or a person, has ended the work."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="super-store")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _told_by_packs(store: Store, packs: Mapping[str, int]) -> tuple[list[Segment], set[str]]:
    """What packs themselves tell, and those that are broken; another's that we may not read is no such."""
    told: list[Segment] = []
    unread: dict[str, StoreError] = {}
    for name, found in read_indexes(store, packs):
        if isinstance(found, StoreError):
            unread[name] = found
        else:
            told.append(Segment((SegmentPack(name, packs[name], found.meta),), segment_entries(found, 0)))
    if unread:
        one = next(iter(unread.values()))
        _log.warning("packs of the store that are not used: %d, such as %s", len(unread), one)
    return told, {name for name, why in unread.items() if isinstance(why, StoreFormatError)}


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
