"""The coordinator's side of the cache: budget, lock, upkeep and streams."""

from __future__ import annotations

from superdl.coordinator.cache.info import CacheInfo, combined

__all__ = ["CacheInfo", "combined"]
