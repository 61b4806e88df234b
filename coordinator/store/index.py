"""Read and write a store's index: segments that cover many packs, and each pack's own index. Blocks."""

from __future__ import annotations

import contextlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.display import counted
from superdl.super_wire.errors import StoreError, StoreFormatError, StoreGoneError, StoreRefusedError
from superdl.super_wire.ids import digest128
from superdl.super_wire.record import RecordKind
from superdl.super_wire.store import (
    ENTRY_DTYPE,
    PACKS,
    PackIndex,
    PackMeta,
    check_entries,
    checked_name,
    collection_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.super_wire.request import PrefetchResult
    from superdl.super_wire.store import Store

_log = logging.getLogger(__name__)

AT_ONCE = 16

_SEGMENTS_MAX = 16  # of a collection; more are merged
_FULL_ENTRIES = 2**20  # a segment with this many entries is not extended or merged
_LENGTH_BYTES, _DIGEST_BYTES = 8, 16


@dataclass(slots=True)
class Known:
    """The packs and segments of a collection that have been read. :func:`look` reads only new ones."""

    packs: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class IndexedPack:
    """A pack's name, length and index."""

    name: str
    bytes: int
    index: PackIndex


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """The sizes of all packs in the store, and the changes to a collection's packs."""

    sizes: dict[str, int]
    # New packs with records of this decoder and the right length.
    packs: list[IndexedPack]
    # New packs of other decoders, and those with a corrupt index.
    useless: frozenset[str]
    # Known packs that have disappeared.
    gone: frozenset[str]


def collection_in(dataset: Dataset | None) -> str:
    """Return the collection that contains a dataset's records, or an empty string for ``None``."""
    return "" if dataset is None else collection_of(dataset.catalog.id_bucket, dataset.recipe.digest)


def look(store: Store, collection: str, fingerprint: str, known: Known) -> StoreChanges:
    """Read a collection's new packs and segments, and add them to ``known``. May raise ``StoreError``."""
    before = frozenset(known.packs)  # excludes packs that are added meanwhile
    sizes = store.packs()
    present = {name for name in sizes if name.startswith(collection)}
    gone, new = before - present, present - before
    names = [name for name in _segments_of(store, collection) if name not in known.segments] if new else []
    packs = [pack for segment in read_segments(store, names) for pack in segment]
    indexed, broken = _by_own_indexes(
        store, {name: sizes[name] for name in sorted(new - {pack.name for pack in packs})}
    )
    if indexed and not store.read_only:
        # Save the next reader from reading the packs.
        with contextlib.suppress(StoreError):  # if the disk is full, packs are read again
            names += write_segments(store, collection, indexed)
    packs += indexed
    usable = [
        pack
        for pack in packs
        if sizes.get(pack.name) == pack.bytes and pack.index.meta.fingerprint == fingerprint
    ]
    # A segment may contain a pack that is newer than the listing. The next look finds it.
    useless = {pack.name for pack in packs if pack.name in sizes} - {pack.name for pack in usable}
    known.segments.update(names)
    known.packs = present | (known.packs - before)
    return StoreChanges(sizes, usable, frozenset(useless | broken), gone)


def pack_written(
    dataset: Dataset, indices: NDArray[np.int64], result: PrefetchResult, fingerprint: str
) -> IndexedPack:
    """Return the pack that a result describes. Raises ``StoreFormatError`` if the result is invalid."""
    origin = dataset.catalog.id_bucket, dataset.recipe.json, fingerprint, result.function_version
    meta = PackMeta(collection_in(dataset), *origin)
    if not checked_name(PACKS, result.pack).startswith(f"{meta.collection}-"):
        raise StoreFormatError(f"the pack does not belong to the collection {meta.collection}")
    offsets = np.array(result.offsets, dtype=np.int64)
    stored = offsets > 0
    entries = np.zeros(np.count_nonzero(stored), ENTRY_DTYPE)
    entries["id"] = np.frombuffer(dataset.ids(indices[stored], 0), ENTRY_DTYPE["id"])
    entries["offset"], entries["bytes"] = offsets[stored], np.array(result.lengths)[stored]
    entries["kind"] = RecordKind.DATA
    check_entries(entries, 0, result.store_bytes)
    return IndexedPack(result.pack, result.store_bytes, PackIndex(meta, entries))


def write_segments(store: Store, collection: str, packs: Iterable[IndexedPack]) -> list[str]:
    """Write the entries of packs to segments that fit into readers' memory. Return the segment names."""
    names, group, entries = [], list[IndexedPack](), 0
    for pack in packs:
        if entries >= _FULL_ENTRIES:
            names.append(store.write_segment(pack_segment(group), collection))
            group, entries = [], 0
        group.append(pack)
        entries += len(pack.index.entries)
    if group:
        names.append(store.write_segment(pack_segment(group), collection))
    return names


def merge_segments(store: Store, collection: str) -> None:
    """Merge a collection's segments if there are too many."""
    names = _segments_of(store, collection)
    if len(names) <= _SEGMENTS_MAX:
        return
    existing, kept, merged = set(store.packs()), list[IndexedPack](), []
    for name in names:
        for packs in read_segments(store, [name]):
            if sum(len(pack.index.entries) for pack in packs) < _FULL_ENTRIES:
                # Keep each pack once, and only if it still exists.
                kept += [pack for pack in packs if pack.name in existing]
                existing.difference_update(pack.name for pack in packs)
                merged.append(name)
    # Others may merge concurrently or read removed segments. They read some packs or entries again.
    if len(merged) > 1:
        write_segments(store, collection, kept)
        for name in merged:
            store.remove_segment(name)


def _segments_of(store: Store, collection: str) -> list[str]:
    return sorted(name for name in store.segments() if name.startswith(collection))


def read_segments(store: Store, names: Iterable[str]) -> Iterator[list[IndexedPack]]:
    """Yield the packs in each segment. Skip unreadable segments: the packs contain the entries too."""
    for name in names:
        with contextlib.suppress(StoreGoneError):
            try:
                yield unpack_segment(store.read_segment(name))
            except (StoreFormatError, StoreRefusedError) as error:
                _log.warning("skipping the segment %s/index/%s: %s", store.address, name, error)


def read_indexes(store: Store, packs: Mapping[str, int]) -> Iterator[tuple[str, PackIndex | StoreError]]:
    """Yield each pack's index, or the error that prevents its use. Packs that disappear are skipped."""

    def read(item: tuple[str, int]) -> PackIndex | StoreError:
        try:
            index = store.read_index(*item)
        except (StoreGoneError, StoreFormatError, StoreRefusedError) as error:  # other packs may be readable
            return error
        return replace(index, entries=index.entries.copy())  # a view would keep all read bytes alive

    with threads(AT_ONCE) as pool:
        for name, outcome in zip(packs, pool.map(read, packs.items()), strict=True):
            if not isinstance(outcome, StoreGoneError):
                yield name, outcome


@contextlib.contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool that drops pending work after an error or interrupt."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="super-store")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _by_own_indexes(store: Store, packs: Mapping[str, int]) -> tuple[list[IndexedPack], set[str]]:
    """Read each pack's own index. Return the packs with their indexes, and the names of damaged packs."""
    indexed: list[IndexedPack] = []
    unread: dict[str, StoreError] = {}
    for name, outcome in read_indexes(store, packs):
        if isinstance(outcome, StoreError):
            unread[name] = outcome
        else:
            indexed.append(IndexedPack(name, packs[name], outcome))
    if unread:
        example = next(iter(unread.values()))
        _log.warning(
            "ignoring %s of the store that cannot be read; first error: %s",
            counted(len(unread), "pack"),
            example,
        )
    # Another user's packs are not damaged.
    return indexed, {name for name, why in unread.items() if isinstance(why, StoreFormatError)}


def pack_segment(packs: Sequence[IndexedPack]) -> bytes:
    """Encode a segment: the length of a JSON table of packs, the table, the packs' entries, and a digest."""
    numbers = {meta: number for number, meta in enumerate({pack.index.meta: None for pack in packs})}
    rows = [(pack.name, pack.bytes, len(pack.index.entries), numbers[pack.index.meta]) for pack in packs]
    table = json.dumps({"metas": [asdict(meta) for meta in numbers], "packs": rows}, ensure_ascii=False)
    head = table.encode()
    body = len(head).to_bytes(_LENGTH_BYTES, "little") + head
    body += b"".join(pack.index.entries.tobytes() for pack in packs)
    return body + digest128(body)


def unpack_segment(data: bytes) -> list[IndexedPack]:
    """Decode a segment into packs with views of its entries. Raises ``StoreFormatError`` if it is damaged."""
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if digest128(body) != digest:
        raise StoreFormatError("the segment is damaged or truncated: its digest does not match")
    try:
        return _packs_in(body)
    except (ArithmeticError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise StoreFormatError(f"the segment's table is damaged: {error!r:.200}") from error


def _packs_in(body: bytes) -> list[IndexedPack]:
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    table, entries = json.loads(body[_LENGTH_BYTES:end]), np.frombuffer(memoryview(body)[end:], ENTRY_DTYPE)
    metas, rows = [PackMeta.from_mapping(meta) for meta in table["metas"]], table["packs"]
    sizes, counts = np.array([(size, count) for _, size, count, _ in rows], np.uint64).reshape(-1, 2).T
    if int(counts.sum()) != len(entries) or (counts > len(entries)).any():
        raise ValueError(
            f"the segment has {len(entries)} entries, but its packs' counts do not add up to that: "
            f"{counts[:5].tolist()}, ..."
        )
    check_entries(entries, 0, np.repeat(sizes, counts.astype(np.int64)))
    parts = np.split(entries, np.cumsum(counts[:-1]).astype(np.int64))
    return [
        IndexedPack(checked_name(PACKS, name), size, PackIndex(metas[number], part))
        for (name, size, _, number), part in zip(rows, parts, strict=False)
    ]
