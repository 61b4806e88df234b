"""The contents of a store: its collections, their packs and records, and which of them are open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.store import AUTO, NONE, read_indexes, read_segments
from superdl.super_wire.errors import ConfigError, StoreError
from superdl.super_wire.store import IN_USE_S, default_directory, parse_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.super_wire.store import PackMeta, Store

__all__ = ["INSTANCE", "Collection", "Contents", "collection_name", "contents_of", "store_address"]

INSTANCE = "superdl-store"
"""Our own name among the users of a store; it is never registered."""


@dataclass(slots=True)
class Collection:
    """The packs of one bucket under one recipe. ``packs`` are bytes by name.

    ``bucket`` and ``recipe`` are empty if none of its packs could be read. ``used_s`` is the Unix time at
    which a job last had it open; 0 if none did. ``decoders`` counts packs by their decoder's fingerprint.
    """

    name: str
    packs: dict[str, int] = field(default_factory=dict)
    bucket: str = ""
    recipe: str = ""
    decoders: dict[str, int] = field(default_factory=dict)
    records: int = 0
    used_s: float = 0.0
    in_use: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its packs."""
        return sum(self.packs.values())


@dataclass(slots=True)
class Contents:
    """The contents of a store: collections by name, and each pack's decoder.

    ``broken`` has the packs whose index we cannot read, with the reasons.
    """

    collections: dict[str, Collection] = field(default_factory=dict)
    decoders: dict[str, str] = field(default_factory=dict)
    broken: dict[str, StoreError] = field(default_factory=dict)
    users: int = 0
    """Number of processes that have the store open."""


def store_address(named: str | None, environment: Mapping[str, str]) -> str:
    """Return the address of the store: an argument, else ``SUPER_STORE``, else the default directory, which
    ``auto`` also means.

    Raises:
        ConfigError: it is not an address, or ``SUPER_STORE`` disables the store.
    """
    text = named or environment.get("SUPER_STORE") or AUTO
    if text.lower() == AUTO:
        return str(default_directory(environment))
    if text.lower() == NONE:
        raise ConfigError("SUPER_STORE=none turns the store off: name the one that you mean as the argument")
    return parse_store(text)


def contents_of(store: Store, now_s: float) -> Contents:
    """Return a store's contents from its index segments, and packs in none of them."""
    contents = Contents(users=len(store.others(INSTANCE, now_s)))
    used, packs = store.used(), store.packs()
    known: dict[str, tuple[PackMeta, int]] = {}
    for segment in read_segments(store, store.segments()):
        counts = np.bincount(segment.entries["pack"], minlength=len(segment.packs)).tolist()
        known |= {pack.name: (pack.meta, count) for pack, count in zip(segment.packs, counts, strict=True)}
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
    """Return the collection of a pack, by its name."""
    return pack.partition("-")[0]
