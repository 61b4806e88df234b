"""The coordinator's side of the cache: its budget and lock, its upkeep, and the streams that come back
through it.
"""

from __future__ import annotations

from superdl.coordinator.cache.info import CacheInfo, combined

__all__ = ["CacheInfo", "combined"]
