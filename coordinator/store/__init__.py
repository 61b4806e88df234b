"""The coordinator's side of the store: choosing it, locating records and limiting its size."""

from __future__ import annotations

from superdl.coordinator.store.index import AT_ONCE, read_indexes, read_segments, threads
from superdl.coordinator.store.opening import AUTO, NONE, chosen_store
from superdl.coordinator.store.space import StoredPack, to_prune

__all__ = [
    "AT_ONCE",
    "AUTO",
    "NONE",
    "StoredPack",
    "chosen_store",
    "read_indexes",
    "read_segments",
    "threads",
    "to_prune",
]
