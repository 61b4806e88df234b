"""List a store's collections and packs, find out which are in use or corrupt, and drop packs."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.store import (
    AT_ONCE,
    AUTO,
    NONE,
    StoredPack,
    read_indexes,
    read_segments,
    threads,
    to_prune,
)
from superdl.super_wire.errors import (
    ConfigError,
    RecordError,
    StoreError,
    StoreFormatError,
    StoreGoneError,
)
from superdl.super_wire.store import IN_USE_S, check_record, default_directory, parse_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from superdl.super_wire.store import PackIndex, PackMeta, Store

# Our name among the users of a store, which is never registered.
_INSTANCE = "superdl-store"
LEAST = 16  # records checked in each collection, however small the share
_AT_A_TIME = 64  # records of one pack that are in memory at once


@dataclass(slots=True)
class Collection:
    """The packs of one bucket under one recipe. ``packs`` maps their names to their sizes in bytes."""

    name: str
    packs: dict[str, int] = field(default_factory=dict)
    # Empty, like the recipe, if none of its packs could be read.
    bucket: str = ""
    recipe: str = ""
    # Counts of packs, by their decoder's fingerprint.
    decoders: dict[str, int] = field(default_factory=dict)
    records: int = 0
    # Unix time at which a job last had it open; 0 if none did.
    used_s: float = 0.0
    in_use: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the total size of the collection's packs."""
        return sum(self.packs.values())


@dataclass(slots=True)
class Contents:
    """The contents of a store: collections by name, and each pack's decoder."""

    collections: dict[str, Collection] = field(default_factory=dict)
    decoders: dict[str, str] = field(default_factory=dict)
    # Packs whose index we cannot read, with the reasons.
    broken: dict[str, StoreError] = field(default_factory=dict)
    # Number of processes that have the store open.
    users: int = 0


def store_address(named: str | None, environment: Mapping[str, str]) -> str:
    """Return the address: ``named``, ``SUPER_STORE`` or the default. Raises ``ConfigError`` for ``none``."""
    text = named or environment.get("SUPER_STORE") or AUTO
    if text.lower() == AUTO:
        return str(default_directory(environment))
    if text.lower() == NONE:
        raise ConfigError("SUPER_STORE=none disables the store; pass a store as an argument")
    return parse_store(text)


def contents_of(store: Store, now_s: float) -> Contents:
    """Return a store's contents, from its index segments and from packs that they do not describe."""
    contents = Contents(users=len(store.others(_INSTANCE, now_s)))
    used, packs = store.used(), store.packs()
    known: dict[str, tuple[PackMeta, int]] = {}
    for segment in read_segments(store, store.segments()):
        known |= {pack.name: (pack.index.meta, len(pack.index.entries)) for pack in segment}
    for pack, index in read_indexes(store, {name: size for name, size in packs.items() if name not in known}):
        if isinstance(index, StoreError):
            contents.broken[pack] = index
        else:
            known[pack] = index.meta, len(index.entries)
    for pack, size in packs.items():
        name = collection_name(pack)
        collection = contents.collections.setdefault(name, Collection(name, used_s=used.get(name, 0.0)))
        collection.packs[pack] = size
        if pack in known:
            meta, records = known[pack]
            collection.bucket, collection.recipe = meta.bucket, meta.recipe
            collection.decoders[meta.fingerprint] = collection.decoders.get(meta.fingerprint, 0) + 1
            collection.records += records
            contents.decoders[pack] = meta.fingerprint
    for collection in contents.collections.values():
        collection.in_use = bool(contents.users) and now_s - collection.used_s < IN_USE_S
    return contents


def collection_name(pack: str) -> str:
    """Return the name of the collection that a pack belongs to."""
    return pack.partition("-")[0]


@dataclass(slots=True)
class Removed:
    """The dropped packs, their size, and the number of dropped index segments."""

    packs: list[str] = field(default_factory=list)
    size_bytes: int = 0
    segments: int = 0


def choose(contents: Contents, decoder: str, *, keep_bytes: int = 0) -> list[str]:
    """Return the packs to drop, in the order that a coordinator uses. Packs of open collections are kept.

    ``keep_bytes`` of packs may remain. ``decoder`` is the fingerprint of this machine's decoder.
    """
    packs = [
        StoredPack(pack, size, _is_useless(contents, pack, decoder), collection.used_s)
        for collection in contents.collections.values()
        for pack, size in collection.packs.items()
        if not collection.in_use
    ]
    return to_prune(
        packs, sum(collection.size_bytes for collection in contents.collections.values()) - keep_bytes
    )


def _is_useless(contents: Contents, pack: str, decoder: str) -> bool:
    if (why := contents.broken.get(pack)) is not None:
        # A pack that only its owner can read is kept.
        return isinstance(why, StoreFormatError)
    return contents.decoders.get(pack) != decoder


def prune(store: Store, contents: Contents, packs: Iterable[str]) -> Removed:
    """Drop packs of unused collections, and index segments that list no remaining pack."""
    free = [collection for collection in contents.collections.values() if not collection.in_use]
    sizes = {pack: size for collection in free for pack, size in collection.packs.items()}
    # Only files that the store itself names are ever removed.
    dropped = [pack for pack in packs if pack in sizes]
    with threads(AT_ONCE) as pool:
        for _ in pool.map(store.remove, dropped):  # raises the error
            pass
    removed = Removed(dropped, sum(sizes[pack] for pack in dropped))
    if dropped:
        for name in list(_empty_segments(store)):
            store.remove_segment(name)
            removed.segments += 1
    return removed


def _empty_segments(store: Store) -> Iterator[str]:
    remaining = store.packs()
    for name in store.segments():
        for packs in read_segments(store, [name]):  # empty if it is gone, corrupt or another user's
            if not any(pack.name in remaining for pack in packs):
                yield name


@dataclass(frozen=True, slots=True)
class Wrong:
    """A record that differs from its description or, if ``sample`` is empty, an invalid pack."""

    pack: str
    sample: str
    why: str


@dataclass(slots=True)
class Verification:
    """The result of verifying a store: counts of packs, records and checked records, and all faults."""

    packs: int = 0
    records: int = 0
    checked: int = 0
    wrong: list[Wrong] = field(default_factory=list)

    @property
    def wrong_packs(self) -> list[str]:
        """Return the packs with faults."""
        return sorted({fault.pack for fault in self.wrong})


def verify(
    store: Store, *, share: float = 0.01, note: Callable[[str], None] = lambda _: None
) -> Verification:
    """Check the indexes of all packs, and a random ``share`` (0 to 1) of each collection's records."""
    packs = store.packs()
    verification = Verification(len(packs))
    collections: dict[str, dict[str, PackIndex]] = defaultdict(dict)
    for name, index in read_indexes(store, packs):
        if isinstance(index, StoreFormatError):
            verification.wrong.append(Wrong(name, "", str(index)))
        elif isinstance(index, StoreError):  # perhaps another user's
            note(f"not verified: {index}")
        else:
            collections[collection_name(name)][name] = index
    note(f"{len(packs):,} indexes read")
    for indexes in collections.values():
        verification.records += sum(len(index.entries) for index in indexes.values())
        with threads(len(os.sched_getaffinity(0))) as pool:
            faults = pool.map(lambda item: _checked(store, *item), _sampled(indexes, share).items())
            for fault in chain.from_iterable(faults):
                verification.checked += 1
                verification.wrong += [fault] if fault else []
        note(f"{verification.checked:,} records checked")
    return verification


def _sampled(indexes: dict[str, PackIndex], share: float) -> dict[str, PackIndex]:
    """Return the packs' indexes, reduced to a random share of all records."""
    counts = [len(index.entries) for index in indexes.values()]
    count = sum(counts)
    positions = np.random.default_rng().choice(
        count, min(count, max(LEAST, math.ceil(share * count))), replace=False
    )
    is_drawn = np.zeros(count, dtype=bool)
    is_drawn[positions] = True
    masks = np.split(is_drawn, np.cumsum(counts)[:-1])
    return {
        name: replace(index, entries=index.entries[mask])
        for (name, index), mask in zip(indexes.items(), masks, strict=True)
        if mask.any()
    }


def _checked(store: Store, name: str, index: PackIndex) -> list[Wrong | None]:
    entries = np.sort(index.entries, order="offset")
    faults: list[Wrong | None] = []
    for start in range(0, len(entries), _AT_A_TIME):
        chunk = entries[start : start + _AT_A_TIME]
        try:
            records = store.read_many(
                name, list(zip(chunk["offset"].tolist(), chunk["bytes"].tolist(), strict=True))
            )
        except StoreGoneError:
            break  # dropped meanwhile
        for sample, record in zip(map(bytes, chunk["id"].tolist()), records, strict=True):
            try:
                check_record(record, sample)
            except RecordError as error:
                faults.append(Wrong(name, sample.hex(), str(error)))
            else:
                faults.append(None)
    return faults
