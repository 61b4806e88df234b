"""Dropping packs of a store: those not worth their room, broken ones, or all.

The packs are chosen first (:func:`choose`), so that the user can confirm, and then dropped (:func:`prune`).
Only files that the store itself names are ever removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.coordinator.store import AT_ONCE, StoredPack, threads, to_prune
from superdl.store.contents import INSTANCE
from superdl.super_wire.errors import StoreFormatError, StoreGoneError, StoreRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from superdl.store.contents import Contents
    from superdl.super_wire.store import Store

__all__ = ["Removed", "choose", "clear", "prune"]

_DAY_S = 86400.0


@dataclass(slots=True)
class Removed:
    """Dropped packs, their bytes, and index segments that described nothing else."""

    packs: list[str] = field(default_factory=list)
    size_bytes: int = 0
    segments: int = 0


def choose(
    contents: Contents,
    decoder: str,
    now_s: float,
    *,
    keep_bytes: int = 0,
    older_than_days: float | None = None,
) -> list[str]:
    """Return the packs to drop, in the order in which a coordinator would make room.

    An open collection keeps its packs in any case.

    Args:
        contents: of the store.
        decoder: the fingerprint of this machine's decoder.
        now_s: Unix time.
        keep_bytes: bytes of packs that may stay.
        older_than_days: instead, drop packs of collections that no job opened for this time.
    """
    free = [collection for collection in contents.collections.values() if not collection.in_use]
    if older_than_days is not None:
        expired = [collection for collection in free if older_than_days * _DAY_S <= now_s - collection.used_s]
        return [pack for collection in expired for pack in collection.packs]
    packs = [
        StoredPack(pack, size, _is_useless(contents, pack, decoder), collection.used_s)
        for collection in free
        for pack, size in collection.packs.items()
    ]
    return to_prune(
        packs, sum(collection.size_bytes for collection in contents.collections.values()) - keep_bytes
    )


def _is_useless(contents: Contents, pack: str, decoder: str) -> bool:
    """Return whether no reader here can use a pack. One readable only by its owner is kept."""
    if (why := contents.broken.get(pack)) is not None:
        return isinstance(why, StoreFormatError)
    return contents.decoders.get(pack) != decoder


def prune(store: Store, contents: Contents, packs: Iterable[str]) -> Removed:
    """Drop packs of unused collections, and index segments without packs."""
    free = [collection for collection in contents.collections.values() if not collection.in_use]
    sizes = {pack: size for collection in free for pack, size in collection.packs.items()}
    removed = _dropped(store, {pack: sizes[pack] for pack in packs if pack in sizes})
    if removed.packs:
        for name in list(_segments_of_nothing(store)):
            store.remove_segment(name)
            removed.segments += 1
    return removed


def _dropped(store: Store, packs: Mapping[str, int]) -> Removed:
    with threads(AT_ONCE) as pool:
        for _ in pool.map(store.remove, packs):  # raises the error
            pass
    return Removed(list(packs), sum(packs.values()))


def _segments_of_nothing(store: Store) -> Iterator[str]:
    remaining = store.packs()
    for name in store.segments():
        try:
            if not any(pack.name in remaining for pack in store.read_segment(name).packs):
                yield name
        except (StoreFormatError, StoreGoneError, StoreRefusedError):  # gone, of another version or user
            continue


def clear(store: Store, now_s: float) -> Removed:
    """Drop all packs, index and marks; the file that marks the directory as a store stays.

    Raises:
        StoreRefusedError: it is open elsewhere.
    """
    if users := store.others(INSTANCE, now_s):
        raise StoreRefusedError(
            f"{store.address} is open in {len(users)} coordinators: end their runs, or wait 10 minutes where "
            "they were killed; superdl store prune spares what they use"
        )
    removed = _dropped(store, store.packs())
    for name in store.segments():
        store.remove_segment(name)
        removed.segments += 1
    store.clear_marks()
    return removed
