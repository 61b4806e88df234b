"""The cache of the simulated world: records and tombstones by sample, their memory, and their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.samples import footprint

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from coordinator.core import SetKey

__all__ = ["CacheModel"]


class CacheModel:
    """Parallel arrays for each sample set; record lengths are 0 for nothing and -1 for a tombstone."""

    def __init__(self, size_of: Callable[[SetKey], int]) -> None:
        self._size_of = size_of
        self.record_bytes: dict[SetKey, np.ndarray] = {}
        self.taken_bytes: dict[SetKey, np.ndarray] = {}
        self.corrupt: dict[SetKey, np.ndarray] = {}
        self.expires_s: dict[SetKey, np.ndarray] = {}
        self.used_bytes = 0
        self.up = True

    def rows(self, key: SetKey) -> np.ndarray:
        """Record lengths of one set."""
        if key not in self.record_bytes:
            size = self._size_of(key)
            self.record_bytes[key] = np.zeros(size, dtype=np.int64)
            self.taken_bytes[key] = np.zeros(size, dtype=np.int64)
            self.corrupt[key] = np.zeros(size, dtype=np.bool_)
            self.expires_s[key] = np.full(size, np.inf)
        return self.record_bytes[key]

    def look(self, key: SetKey, indices: np.ndarray, now: float) -> np.ndarray:
        """What a GET of each sample finds: record length, 0 for nothing, -1 for a tombstone."""
        rows = self.rows(key)
        gone = indices[self.expires_s[key][indices] <= now]
        rows[gone] = 0
        self.expires_s[key][gone] = np.inf
        found: np.ndarray = rows[indices]
        return found

    def store(self, key: SetKey, index: int, size_bytes: int, *, corrupt: bool = False) -> None:
        """Write a record over whatever is there."""
        self._set(key, index, size_bytes)
        self.corrupt[key][index] = corrupt

    def bury(self, key: SetKey, index: int, now: float, *, ttl_s: float = np.inf) -> None:
        """Write a tombstone; one that expires only where there is nothing (NX)."""
        if ttl_s == np.inf or not self.look(key, np.array([index]), now)[0]:
            self._set(key, index, -1)
            self.expires_s[key][index] = now + ttl_s

    def drop(self, key: SetKey, indices: np.ndarray) -> None:
        """Delete whatever is there."""
        for index in indices.tolist():
            self._set(key, index, 0)

    def flush(self) -> None:
        """Lose everything."""
        self.record_bytes.clear()
        self.taken_bytes.clear()
        self.used_bytes = 0

    def evict(self, rng: random.Random, share: float) -> list[tuple[SetKey, int]]:
        """Lose a share of the records, at random."""
        records = [
            (key, index)
            for key, rows in self.record_bytes.items()
            for index in np.flatnonzero(rows > 0).tolist()
        ]
        lost = rng.sample(records, int(len(records) * share))
        for key, index in lost:
            self._set(key, index, 0)
        return lost

    def _set(self, key: SetKey, index: int, size_bytes: int) -> None:
        rows = self.rows(key)
        taken = int(footprint(np.array([size_bytes]))[0]) if size_bytes > 0 else 0
        self.used_bytes += taken - int(self.taken_bytes[key][index])
        self.taken_bytes[key][index] = taken
        rows[index] = size_bytes
        self.expires_s[key][index] = np.inf
        self.corrupt[key][index] = False
