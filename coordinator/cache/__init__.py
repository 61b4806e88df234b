"""The coordinator's side of the cache: memory, lock, sweeping and read reports."""

from __future__ import annotations

from superdl.coordinator.cache.info import CacheInfo, combined

__all__ = ["CacheInfo", "combined"]
