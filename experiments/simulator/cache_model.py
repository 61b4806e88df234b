"""A simulated cache and store, which track records without holding their content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, RecordsStored, footprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core import SetKey
    from superdl.experiments.simulator.world_model import WorldModel

    Indices = NDArray[np.int64]
    Mask = NDArray[np.bool_]

HEADROOM = 1.2  # the server's memory, relative to the coordinator's budget


@dataclass
class Rows:
    """The cache entries of one set. Arrays have shape [size]."""

    record_bytes: NDArray[np.int32]  # 0 if absent, -1 for a tombstone
    taken_bytes: NDArray[np.int32]  # memory use
    expires_s: dict[int, float] = field(default_factory=dict)  # rare states, by sample
    pointers: set[int] = field(default_factory=set)


class CacheModel:
    """A model of a Redis server that evicts at random when full."""

    def __init__(self, model: WorldModel, array_rng: np.random.Generator) -> None:
        self._datasets = model.datasets
        self._array_rng = array_rng
        self.sets: dict[SetKey, Rows] = {}
        self.budget_bytes = model.settings.budget_bytes
        self.used_bytes = 0
        self.evicted = False

    def look(self, key: SetKey, indices: Indices, now: float) -> Indices:
        """Return the length of each sample's record, 0 if it is absent, or -1 if it is a tombstone."""
        rows = self.rows(key)
        for index in [index for index, until_s in rows.expires_s.items() if until_s <= now]:
            rows.record_bytes[index] = 0
            del rows.expires_s[index]
        return rows.record_bytes[indices].astype(np.int64)

    def audit(self, key: SetKey, indices: Indices, now: float) -> tuple[Indices, Mask]:
        """Return the result of `look`, and a mask of samples that are pointers."""
        lengths, pointers = self.look(key, indices, now), self.rows(key).pointers
        return lengths, np.isin(indices, list(pointers)) & (lengths > 0)

    def read(self, key: SetKey, indices: Indices, now: float, placed: Mask) -> tuple[Mask, Mask, Mask]:
        """Read samples. Return masks of those delivered, those corrupt, and those read via a pointer."""
        lengths, pointed = self.audit(key, indices, now)
        # A pointer to a record that this reader cannot read counts as corrupt.
        corrupt = pointed & ~placed
        return (lengths != 0) & ~corrupt, corrupt, pointed & ~corrupt

    def store(self, key: SetKey, indices: Indices, sizes: Indices, pointers: Indices | None = None) -> None:
        """Write records, or pointers for samples in ``pointers``, replacing existing entries."""
        self.replace(key, indices, sizes)
        if pointers is not None:
            self.rows(key).pointers.update(pointers.tolist())

    def make_room(self) -> None:
        """Evict at random until the memory limit is met."""
        while self.used_bytes > self.budget_bytes * HEADROOM:
            if not self.evict(0.5):
                break

    def write_tombstones(self, key: SetKey, indices: Indices, now: float, *, ttl_s: float = np.inf) -> None:
        """Write tombstones. Those that expire do not replace existing entries (NX)."""
        if ttl_s < np.inf:
            indices = indices[self.look(key, indices, now) == 0]
        self.replace(key, indices, np.full(indices.size, -1))
        if ttl_s < np.inf:
            self.rows(key).expires_s.update(dict.fromkeys(indices.tolist(), now + ttl_s))

    def drop(self, key: SetKey, indices: Indices) -> None:
        """Delete the entries of these samples."""
        self.replace(key, indices, np.zeros(indices.size, dtype=np.int64))

    def evict(self, share: float) -> int:
        """Evict a random share of all records, and return the number evicted."""
        self.evicted = True
        lost = 0
        for key, rows in self.sets.items():
            records = np.flatnonzero(rows.record_bytes > 0)
            chosen = self._array_rng.permutation(records)[: int(np.ceil(records.size * share))]
            self.drop(key, chosen)
            lost += chosen.size
        return lost

    def rows(self, key: SetKey) -> Rows:
        """Return the entries of a set."""
        if key not in self.sets:
            size = self._datasets[key.dataset].size
            self.sets[key] = Rows(np.zeros(size, dtype=np.int32), np.zeros(size, dtype=np.int32))
        return self.sets[key]

    def replace(self, key: SetKey, indices: Indices, sizes: Indices) -> None:
        """Replace the entries of these samples. A size of 0 means no entry, and -1 a tombstone."""
        rows = self.rows(key)
        taken = np.where(sizes > 0, footprint(np.maximum(sizes, 1)), 0)
        self.used_bytes += int(taken.sum()) - int(rows.taken_bytes[indices].sum(dtype=np.int64))
        rows.taken_bytes[indices] = taken
        rows.record_bytes[indices] = sizes
        # A Python loop, which is slow.
        if rows.expires_s or rows.pointers:
            for index in indices.tolist():
                rows.expires_s.pop(index, None)
                rows.pointers.discard(index)


class StoreModel:
    """The packs of all datasets, which outlive the cache and the coordinator."""

    def __init__(self, model: WorldModel, rng: np.random.Generator) -> None:
        # For each sample, the pack with its newest record, or 0.
        self.packs = {data.name: np.zeros(data.size, dtype=np.uint32) for data in model.datasets.values()}
        self._next = 1
        if model.settings.store and model.stored:
            self._fill(model, rng)

    def _fill(self, model: WorldModel, rng: np.random.Generator) -> None:
        for data in model.datasets.values():
            if data.random:
                continue
            stored = np.sort(rng.permutation(data.size)[: int(np.ceil(data.size * model.stored))])
            for pack in np.array_split(stored, max(1, stored.size // model.settings.request_samples)):
                self.write(data.name, pack)

    def write(self, dataset: bytes, indices: Indices) -> int:
        """Write a pack of these samples, and return its number, or 0 if there are no samples."""
        if not indices.size:
            return 0
        pack, self._next = self._next, self._next + 1
        self.packs[dataset][indices] = pack
        return pack

    def good(self, key: SetKey, indices: Indices) -> Mask:
        """Return a mask of the samples that can be read from the store."""
        return (self.packs[key.dataset][indices] > 0) & (key.epoch == EVERY_EPOCH)

    def packs_of(self, dataset: bytes, indices: Indices) -> int:
        """Return the number of packs that contain these samples."""
        return int(np.unique(self.packs[dataset][indices]).size)

    def scanned(self, dataset: bytes) -> RecordsStored:
        """Return the event that reports a finished scan of the store."""
        indices = np.flatnonzero(self.packs[dataset])
        return RecordsStored(dataset, indices, self.packs[dataset][indices])
