"""The coordinator's side of the store: which one there is, what it holds and where, and the room in it."""

from __future__ import annotations

from superdl.coordinator.store.opening import AUTO, StoreChoice, chosen_store, default_store, open_store

__all__ = ["AUTO", "StoreChoice", "chosen_store", "default_store", "open_store"]
