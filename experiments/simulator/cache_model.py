"""The cache of the simulated world: records and tombstones by sample, their memory, and their loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import footprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from superdl.coordinator.core import SetKey

__all__ = ["CacheModel"]


@dataclass
class _Rows:
    """The samples of one set: int32 ``[size]`` record lengths (0 for nothing, -1 for a tombstone) and the
    memory they take. What is rare is kept apart: when tombstones expire, and which records are spoilt.
    """

    record_bytes: NDArray[np.int32]
    taken_bytes: NDArray[np.int32]
    expires_s: dict[int, float]
    corrupt: set[int]


class CacheModel:
    """What a Redis would hold. ``size_of`` says how many samples a set has."""

    def __init__(self, size_of: Callable[[SetKey], int]) -> None:
        self._size_of = size_of
        self._sets: dict[SetKey, _Rows] = {}
        self.used_bytes = 0
        self.up = True

    def look(self, key: SetKey, indices: NDArray[np.int64], now: float) -> NDArray[np.int64]:
        """What a GET of each sample finds: record length, 0 for nothing, -1 for a tombstone."""
        rows = self._rows(key)
        if rows.expires_s:
            for index in [index for index, until_s in rows.expires_s.items() if until_s <= now]:
                rows.record_bytes[index] = 0
                del rows.expires_s[index]
        return rows.record_bytes[indices].astype(np.int64)

    def spoilt(self, key: SetKey, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the records fail their check."""
        corrupt = self._rows(key).corrupt
        return (
            np.array([index in corrupt for index in indices.tolist()], dtype=np.bool_)
            if corrupt
            else (np.zeros(indices.size, dtype=np.bool_))
        )

    def held_bytes(self, key: SetKey, held: NDArray[np.bool_]) -> int:
        """Memory that the samples take for which ``held`` is true."""
        return int(self._rows(key).taken_bytes[held].sum(dtype=np.int64))

    @property
    def keys(self) -> list[SetKey]:
        """The sets of which there ever was something since the last loss of everything."""
        return list(self._sets)

    def store(
        self, key: SetKey, indices: NDArray[np.int64], sizes: NDArray[np.int64], *, corrupt: list[int]
    ) -> None:
        """Write records over whatever is there; ``corrupt`` says which of them (by index) are spoilt."""
        self._set(key, indices, sizes)
        self._rows(key).corrupt.update(corrupt)

    def write_tombstones(
        self, key: SetKey, indices: NDArray[np.int64], now: float, *, ttl_s: float = np.inf
    ) -> None:
        """Write tombstones; those that expire only where there is nothing (NX)."""
        if ttl_s < np.inf:
            indices = indices[self.look(key, indices, now) == 0]
        self._set(key, indices, np.full(indices.size, -1))
        if ttl_s < np.inf:
            self._rows(key).expires_s.update(dict.fromkeys(indices.tolist(), now + ttl_s))

    def drop(self, key: SetKey, indices: NDArray[np.int64]) -> None:
        """Delete whatever is there."""
        self._set(key, indices, np.zeros(indices.size, dtype=np.int64))

    def flush(self) -> None:
        """Lose everything."""
        self._sets.clear()
        self.used_bytes = 0

    def evict(self, array_rng: np.random.Generator, share: float) -> int:
        """Lose a share of the records, at random; returns how many."""
        lost = 0
        for key, rows in self._sets.items():
            records = np.flatnonzero(rows.record_bytes > 0)
            chosen = array_rng.permutation(records)[: int(np.ceil(records.size * share))]
            self.drop(key, chosen)
            lost += chosen.size
        return lost

    def _rows(self, key: SetKey) -> _Rows:
        rows = self._sets.get(key)
        if rows is None:
            size = self._size_of(key)
            rows = self._sets[key] = _Rows(
                np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32), {}, set()
            )
        return rows

    def _set(self, key: SetKey, indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        rows = self._rows(key)
        taken = np.where(sizes > 0, footprint(np.maximum(sizes, 1)), 0)
        self.used_bytes += int(taken.sum()) - int(rows.taken_bytes[indices].sum(dtype=np.int64))
        rows.taken_bytes[indices] = taken
        rows.record_bytes[indices] = sizes
        if rows.expires_s or rows.corrupt:
            for index in indices.tolist():
                rows.expires_s.pop(index, None)
                rows.corrupt.discard(index)
