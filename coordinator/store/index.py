"""The index of a store: segments list many packs' entries, packs the rest. All of this blocks."""

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

# Per collection; more are merged into one.
_SEGMENTS_MAX = 16

# Entries of a full segment. It gets no more, and merging leaves it alone.
_LARGE = 2**20


@dataclass(slots=True)
class Known:
    """Packs and segments of a collection read so far: a look reads only new ones."""

    packs: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look: the sizes of all packs of the store, and the entries of the new ones."""

    sizes: dict[str, int]
    told: Segment
    # Marks those packs of told that hold records of this decoder and have the right length.
    usable: NDArray[np.bool_]
    # The other packs, and those with a broken index.
    useless: frozenset[str]
    # Known before, and missing now.
    gone: frozenset[str]


def collection_in(dataset: Dataset | None) -> str:
    """Return the collection of a dataset's records; empty without a dataset."""
    return "" if dataset is None else collection_of(dataset.catalog.id_bucket, dataset.recipe.digest)


def look(store: Store, collection: str, fingerprint: str, known: Known) -> Found:
    """Read a collection's packs and segments that ``known`` lacks, and add them to it; ``StoreError``."""
    before = frozenset(known.packs)  # excludes packs that are added to it during this look
    sizes = store.packs()
    present = {name for name in sizes if name.startswith(collection)}
    gone, new = before - present, present - before
    names = [name for name in _segments_of(store, collection) if name not in known.segments] if new else []
    pieces = list(read_segments(store, names))
    by_segments = {pack.name for piece in pieces for pack in piece.packs}
    indexes, broken = _told_by_packs(store, {name: sizes[name] for name in sorted(new - by_segments)})
    if indexes and not store.read_only:
        # Save the next reader from reading these packs.
        with contextlib.suppress(StoreError):  # a full disk: packs can be read again
            names += write_segments(store, collection, indexes)
    merged = _together([*pieces, *indexes])
    usable = [
        sizes.get(pack.name) == pack.bytes and pack.meta.fingerprint == fingerprint for pack in merged.packs
    ]
    # A segment may list a pack newer than the listing: the next look finds it.
    useless = {
        pack.name for pack, good in zip(merged.packs, usable, strict=True) if not good and pack.name in sizes
    }
    known.segments.update(names)
    known.packs = present | (known.packs - before)
    return Found(sizes, merged, np.array(usable, dtype=np.bool_), frozenset(useless | broken), gone)


def segment_written(
    dataset: Dataset, indices: NDArray[np.int64], result: PrefetchResult, fingerprint: str
) -> Segment:
    """Return a result's entries for its function's pack; ``StoreFormatError``: there is no such pack."""
    made_of = dataset.catalog.id_bucket, dataset.recipe.json, fingerprint, result.function_version
    pack = SegmentPack(result.pack, result.store_bytes, PackMeta(collection_in(dataset), *made_of))
    offsets, lengths = np.array(result.offsets, dtype=np.int64), np.array(result.lengths)
    stored = offsets > 0
    return segment_of(pack, dataset.ids(indices, 0), offsets[stored], lengths[stored])


def write_segments(store: Store, collection: str, pieces: Iterable[Segment]) -> list[str]:
    """Write packs' entries as segments, bounded for readers' memory; return names."""
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
    """Merge the segments of a collection if there are many."""
    names = _segments_of(store, collection)
    if len(names) <= _SEGMENTS_MAX:
        return
    existing, merged, kept = set(store.packs()), [], []
    for name in names:
        segment = next(read_segments(store, [name]), None)
        if segment is not None and len(segment.entries) < _LARGE:
            # Each pack once, and only those that still exist.
            kept.append(_only(segment, existing))
            existing.difference_update(pack.name for pack in segment.packs)
            merged.append(name)
    # Others may merge at the same time, or read removed segments: they read more
    # packs, or entries twice.
    if len(kept) > 1:
        write_segments(store, collection, kept)
        for name in merged:
            store.remove_segment(name)


def _segments_of(store: Store, collection: str) -> list[str]:
    return sorted(name for name in store.segments() if name.startswith(collection))


def read_segments(store: Store, names: Iterable[str]) -> Iterator[Segment]:
    """Yield the segments that can be read. For others, packs hold the same entries."""
    for name in names:
        with contextlib.suppress(StoreGoneError):
            try:
                yield store.read_segment(name)
            except (StoreFormatError, StoreRefusedError) as error:
                _log.warning("the segment %s of the store is left out: %s", name, error)


def read_indexes(store: Store, packs: Mapping[str, int]) -> Iterator[tuple[str, PackIndex | StoreError]]:
    """Yield each pack's index, or the error that prevents its use; skip packs that vanish."""

    def read(item: tuple[str, int]) -> PackIndex | StoreError:
        try:
            index = store.read_index(*item)
        except (StoreGoneError, StoreFormatError, StoreRefusedError) as error:  # concerns this pack alone
            return error
        return replace(index, entries=index.entries.copy())  # a view would keep all that was read

    with threads(AT_ONCE) as pool:
        for name, outcome in zip(packs, pool.map(read, packs.items()), strict=True):
            if not isinstance(outcome, StoreGoneError):
                yield name, outcome


@contextlib.contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool. On an error or an interrupt, it drops the work that has not started."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="super-store")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _told_by_packs(store: Store, packs: Mapping[str, int]) -> tuple[list[Segment], set[str]]:
    """Return the entries of packs from their own indexes, and the broken packs."""
    segments: list[Segment] = []
    unread: dict[str, StoreError] = {}
    for name, outcome in read_indexes(store, packs):
        if isinstance(outcome, StoreError):
            unread[name] = outcome
        else:
            segments.append(
                Segment((SegmentPack(name, packs[name], outcome.meta),), segment_entries(outcome, 0))
            )
    if unread:
        example = next(iter(unread.values()))
        _log.warning("packs of the store that are not used: %d, such as %s", len(unread), example)
    # Packs of others that may not be read are not broken.
    return segments, {name for name, why in unread.items() if isinstance(why, StoreFormatError)}


def _together(pieces: Iterable[Segment]) -> Segment:
    packs: list[SegmentPack] = []
    parts = [np.empty(0, dtype=SEGMENT_DTYPE)]
    for piece in pieces:
        part = piece.entries.copy()
        part["pack"] += len(packs)
        parts.append(part)
        packs += piece.packs
    return Segment(tuple(packs), np.concatenate(parts))


def _only(segment: Segment, wanted: set[str]) -> Segment:
    is_wanted = np.array([pack.name in wanted for pack in segment.packs], dtype=np.bool_)
    entries = segment.entries[is_wanted[segment.entries["pack"]]].copy()
    entries["pack"] = (np.cumsum(is_wanted) - 1)[entries["pack"]]
    packs = tuple(pack for pack in segment.packs if pack.name in wanted)
    return Segment(packs, entries)
