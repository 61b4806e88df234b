"""What lies in a store: its collections, their packs and records, and which of them somebody has open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_wire.errors import ConfigError, StoreFormatError, StoreGoneError
from superdl.super_wire.store import IN_USE_S, default_directory, parse_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from superdl.super_wire.store import PackIndex, PackMeta, Store

__all__ = [
    "AT_ONCE",
    "INSTANCE",
    "Collection",
    "Contents",
    "collection_name",
    "contents_of",
    "read_indexes",
    "store_address",
    "threads",
]

INSTANCE = "superdl-store"
"""Our own name among those who have a store open; it is never among them."""

AT_ONCE = 16
"""Requests to a store at one time."""


@dataclass(slots=True)
class Collection:
    """The packs of one bucket under one recipe. ``packs`` are bytes by name.

    ``bucket`` and ``recipe`` are empty where no pack of it could be read. ``used_s`` is the Unix time at
    which a job had it open last; 0 where none did. ``decoders`` counts packs by their decoder's fingerprint.
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
        """Bytes of its packs."""
        return sum(self.packs.values())


@dataclass(slots=True)
class Contents:
    """All that a store holds: its collections by name, and the fingerprint of each pack's decoder.

    ``broken`` has the packs that cannot be read, each with the reason.
    """

    collections: dict[str, Collection] = field(default_factory=dict)
    decoders: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    users: int = 0
    """How many have the store open."""


def store_address(named: str | None, environment: Mapping[str, str]) -> str:
    """The address of the store that is meant: an argument, else ``SUPER_STORE``, else the default directory,
    for which ``auto`` stands too.

    Raises:
        ConfigError: it is no address, or ``SUPER_STORE`` says that there is none.
    """
    text = named or environment.get("SUPER_STORE") or "auto"
    if text == "auto":
        return str(default_directory(environment))
    if text == "none":
        raise ConfigError("SUPER_STORE=none turns the store off: name the one that you mean as the argument")
    return parse_store(text)


def contents_of(store: Store, now_s: float) -> Contents:
    """What a store holds. Index segments say it; a pack that is in none of them is asked itself."""
    found = Contents(users=len(store.others(INSTANCE, now_s)))
    used, packs, known = store.used(), store.packs(), _of_segments(store)
    for pack, index in read_indexes(store, {name: size for name, size in packs.items() if name not in known}):
        if isinstance(index, str):
            found.broken[pack] = index
        else:
            known[pack] = index.meta, len(index.entries)
    for pack, size in packs.items():
        name = collection_name(pack)
        one = found.collections.setdefault(name, Collection(name, used_s=used.get(name, 0.0)))
        one.packs[pack] = size
        if pack in known:
            meta, records = known[pack]
            one.bucket, one.recipe = meta.bucket, meta.recipe
            one.decoders[meta.fingerprint] = one.decoders.get(meta.fingerprint, 0) + 1
            one.records += records
            found.decoders[pack] = meta.fingerprint
    for one in found.collections.values():
        one.in_use = bool(found.users) and now_s - one.used_s < IN_USE_S
    return found


def collection_name(pack: str) -> str:
    """The collection that a pack is of, by its name."""
    return pack.partition("-")[0]


def _of_segments(store: Store) -> dict[str, tuple[PackMeta, int]]:
    """What segments say of packs: the meta of each, and how many records it has."""
    known: dict[str, tuple[PackMeta, int]] = {}
    for name in store.segments():
        try:
            segment = store.read_segment(name)
        except (StoreFormatError, StoreGoneError):  # the packs say it themselves
            continue
        counts = np.bincount(segment.entries["pack"], minlength=len(segment.packs)).tolist()
        for pack, count in zip(segment.packs, counts, strict=True):
            known[pack.name] = pack.meta, count
    return known


def read_indexes(store: Store, packs: Mapping[str, int]) -> Iterable[tuple[str, PackIndex | str]]:
    """The index of each of these packs, or why it has none; packs that are gone meanwhile are left out."""

    def read(item: tuple[str, int]) -> tuple[str, Any]:
        try:
            index = store.read_index(*item)
        except StoreFormatError as error:
            return item[0], str(error)
        except StoreGoneError:
            return item[0], None
        return item[0], replace(index, entries=index.entries.copy())  # else all that was read stays in memory

    with threads(AT_ONCE) as pool:
        yield from (found for found in pool.map(read, packs.items()) if found[1] is not None)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool; what it has not begun is not begun any more once an error, or a person, has ended the work."""
    pool = ThreadPoolExecutor(count, thread_name_prefix="super-store")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
