"""The cache of the simulated world: records and tombstones, their memory and loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import footprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core import SetKey

    Indices = NDArray[np.int64]

__all__ = ["HEADROOM", "CacheModel"]

HEADROOM = 1.2
"""The server's memory relative to the coordinator's budget."""


@dataclass
class _Rows:
    """The samples of one set.

    Arrays hold int32 ``[size]`` record lengths (0 for nothing, -1 for a tombstone) and the memory they take.
    Rare states are kept separately: expiry times of tombstones, spoilt records, pointers into the store.
    """

    record_bytes: NDArray[np.int32]
    taken_bytes: NDArray[np.int32]
    expires_s: dict[int, float] = field(default_factory=dict)
    corrupt: set[int] = field(default_factory=set)
    pointers: set[int] = field(default_factory=set)


class CacheModel:
    """A model of a Redis server.

    Args:
        size_of: returns the number of samples of a set.
        array_rng: decides which records are evicted.
        budget_bytes: the coordinator's budget, which is less than the server's memory.
        refuses: whether a full server refuses writes; otherwise it evicts at random.
    """

    def __init__(
        self,
        size_of: Callable[[SetKey], int],
        array_rng: np.random.Generator,
        *,
        budget_bytes: int,
        refuses: bool = False,
    ) -> None:
        self._size_of = size_of
        self._array_rng = array_rng
        self._sets: dict[SetKey, _Rows] = {}
        self.budget_bytes = budget_bytes
        self.refuses = refuses
        self.used_bytes = 0
        self.up = True
        self.evicted = False

    @property
    def keys(self) -> list[SetKey]:
        """The sets that ever had an entry since the last flush."""
        return list(self._sets)

    def look(self, key: SetKey, indices: Indices, now: float) -> Indices:
        """Return each sample's record length, 0 for nothing, -1 for a tombstone."""
        rows = self._rows(key)
        for index in [index for index, until_s in rows.expires_s.items() if until_s <= now]:
            rows.record_bytes[index] = 0
            del rows.expires_s[index]
        return rows.record_bytes[indices].astype(np.int64)

    def spoilt(self, key: SetKey, indices: Indices) -> NDArray[np.bool_]:
        """Return a mask of the records that fail their check."""
        corrupt = self._rows(key).corrupt
        return np.isin(indices, list(corrupt)) if corrupt else np.zeros(indices.size, dtype=np.bool_)

    def audit(
        self, key: SetKey, indices: Indices, now: float, *, whole: bool
    ) -> tuple[Indices, NDArray[np.bool_]]:
        """Return :meth:`look`, with ``whole`` for intact records only, and a pointer mask."""
        lengths, pointers = self.look(key, indices, now), self._rows(key).pointers
        if whole:
            lengths[self.spoilt(key, indices)] = 0
        return lengths, np.isin(indices, list(pointers)) & (lengths > 0)

    def read(
        self, key: SetKey, indices: Indices, now: float, placed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
        """Read samples; return masks of those delivered, corrupt, delivered by a pointer.

        A pointer to a record that is not ``placed`` for this reader counts as corrupt.
        """
        lengths, pointed = self.audit(key, indices, now, whole=False)
        corrupt = self.spoilt(key, indices) & (lengths > 0)
        pointed &= ~corrupt
        corrupt |= pointed & ~placed
        return (lengths != 0) & ~corrupt, corrupt, pointed & ~corrupt

    def held_bytes(self, key: SetKey, held: NDArray[np.bool_]) -> int:
        """Return the memory of the samples for which ``held`` is true."""
        return int(self._rows(key).taken_bytes[held].sum(dtype=np.int64))

    def store(
        self,
        key: SetKey,
        indices: Indices,
        sizes: Indices,
        *,
        corrupt: list[int],
        pointers: Sequence[int] = (),
    ) -> None:
        """Write records, replacing any entries; some (by index) are spoilt, or pointers."""
        self._set(key, indices, sizes)
        self._rows(key).corrupt.update(corrupt)
        self._rows(key).pointers.update(pointers)

    def make_room(self) -> None:
        """Evict at random until memory suffices, unless the server refuses such writes."""
        while self.used_bytes > self.budget_bytes * HEADROOM and not self.refuses:
            if not self.evict(0.5):
                break

    def refused(self, sizes: Indices) -> NDArray[np.bool_]:
        """Return a mask of new records that a server without eviction has no memory for."""
        refused: NDArray[np.bool_] = (
            np.cumsum(footprint(sizes)) > self.budget_bytes * HEADROOM - self.used_bytes
        )
        return refused & self.refuses

    def write_tombstones(self, key: SetKey, indices: Indices, now: float, *, ttl_s: float = np.inf) -> None:
        """Write tombstones; those that expire only where there is no entry (NX)."""
        if ttl_s < np.inf:
            indices = indices[self.look(key, indices, now) == 0]
        self._set(key, indices, np.full(indices.size, -1))
        if ttl_s < np.inf:
            self._rows(key).expires_s.update(dict.fromkeys(indices.tolist(), now + ttl_s))

    def drop(self, key: SetKey, indices: Indices) -> None:
        """Delete the entries of these samples."""
        self._set(key, indices, np.zeros(indices.size, dtype=np.int64))

    def flush(self) -> None:
        """Lose everything."""
        self._sets.clear()
        self.used_bytes = 0

    def evict(self, share: float) -> int:
        """Evict a share of the records, at random, and return their number."""
        self.evicted = True
        lost = 0
        for key, rows in self._sets.items():
            records = np.flatnonzero(rows.record_bytes > 0)
            chosen = self._array_rng.permutation(records)[: int(np.ceil(records.size * share))]
            self.drop(key, chosen)
            lost += chosen.size
        return lost

    def _rows(self, key: SetKey) -> _Rows:
        if key not in self._sets:
            size = self._size_of(key)
            self._sets[key] = _Rows(np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32))
        return self._sets[key]

    def _set(self, key: SetKey, indices: Indices, sizes: Indices) -> None:
        rows = self._rows(key)
        taken = np.where(sizes > 0, footprint(np.maximum(sizes, 1)), 0)
        self.used_bytes += int(taken.sum()) - int(rows.taken_bytes[indices].sum(dtype=np.int64))
        rows.taken_bytes[indices] = taken
        rows.record_bytes[indices] = sizes
        # Skip the loop in Python unless there are rare states.
        if rows.expires_s or rows.corrupt or rows.pointers:
            for index in indices.tolist():
                rows.expires_s.pop(index, None)
                rows.corrupt.discard(index)
                rows.pointers.discard(index)
