"""The simulated cache and store: which records they hold, and what was lost or spoilt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, PacksLost, RecordsStored, footprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core import SetKey
    from superdl.experiments.simulator.world_model import WorldModel

    Indices = NDArray[np.int64]
    Mask = NDArray[np.bool_]

HEADROOM = 1.2  # the server's memory relative to the coordinator's budget


@dataclass
class _Rows:
    """The samples of one set. Arrays have shape [size]."""

    record_bytes: NDArray[np.int32]  # 0 for nothing, -1 for a tombstone
    taken_bytes: NDArray[np.int32]  # the memory that the record takes
    expires_s: dict[int, float] = field(default_factory=dict)  # rare states are kept separately
    corrupt: set[int] = field(default_factory=set)
    pointers: set[int] = field(default_factory=set)


class CacheModel:
    """A model of a Redis server. When full, it refuses writes or evicts at random, as configured."""

    def __init__(self, model: WorldModel, array_rng: np.random.Generator) -> None:
        self._datasets = model.datasets
        self._array_rng = array_rng
        self._sets: dict[SetKey, _Rows] = {}
        self.budget_bytes = model.settings.budget_bytes
        self.refuses = model.cache_refuses
        self.used_bytes = 0
        self.up = True
        self.evicted = False

    @property
    def keys(self) -> list[SetKey]:
        """The sets that have had an entry since the last flush."""
        return list(self._sets)

    def look(self, key: SetKey, indices: Indices, now: float) -> Indices:
        """Return each sample's record length, 0 for nothing, -1 for a tombstone."""
        rows = self._rows(key)
        for index in [index for index, until_s in rows.expires_s.items() if until_s <= now]:
            rows.record_bytes[index] = 0
            del rows.expires_s[index]
        return rows.record_bytes[indices].astype(np.int64)

    def spoilt(self, key: SetKey, indices: Indices) -> Mask:
        """Return a mask of the records that fail their check."""
        corrupt = self._rows(key).corrupt
        return np.isin(indices, list(corrupt)) if corrupt else np.zeros(indices.size, dtype=np.bool_)

    def audit(self, key: SetKey, indices: Indices, now: float, *, whole: bool) -> tuple[Indices, Mask]:
        """Return :meth:`look`, for intact records only if ``whole``, and a mask of pointers."""
        lengths, pointers = self.look(key, indices, now), self._rows(key).pointers
        if whole:
            lengths[self.spoilt(key, indices)] = 0
        return lengths, np.isin(indices, list(pointers)) & (lengths > 0)

    def read(self, key: SetKey, indices: Indices, now: float, placed: Mask) -> tuple[Mask, Mask, Mask]:
        """Read samples. Return masks of those delivered, those corrupt, and those delivered by a pointer."""
        lengths, pointed = self.audit(key, indices, now, whole=False)
        corrupt = self.spoilt(key, indices) & (lengths > 0)
        pointed &= ~corrupt
        # A pointer to a record that this reader cannot see counts as corrupt.
        corrupt |= pointed & ~placed
        return (lengths != 0) & ~corrupt, corrupt, pointed & ~corrupt

    def held_bytes(self, key: SetKey, held: Mask) -> int:
        """Return the memory taken by the samples for which ``held`` is true."""
        return int(self._rows(key).taken_bytes[held].sum(dtype=np.int64))

    def store(
        self,
        key: SetKey,
        indices: Indices,
        sizes: Indices,
        *,
        corrupt: Sequence[int] = (),
        pointers: Sequence[int] = (),
    ) -> None:
        """Write records, replacing any entries. Some (by index) are spoilt, or are pointers."""
        self._set(key, indices, sizes)
        self._rows(key).corrupt.update(corrupt)
        self._rows(key).pointers.update(pointers)

    def make_room(self) -> None:
        """Evict at random until memory suffices, unless the server refuses such writes."""
        while self.used_bytes > self.budget_bytes * HEADROOM and not self.refuses:
            if not self.evict(0.5):
                break

    def refused(self, sizes: Indices) -> Mask:
        """Return a mask of the new records for which a server without eviction has no memory."""
        refused: Mask = np.cumsum(footprint(sizes)) > self.budget_bytes * HEADROOM - self.used_bytes
        return refused & self.refuses

    def write_tombstones(self, key: SetKey, indices: Indices, now: float, *, ttl_s: float = np.inf) -> None:
        """Write tombstones. Those that expire are written only where there is no entry (NX)."""
        if ttl_s < np.inf:
            indices = indices[self.look(key, indices, now) == 0]
        self._set(key, indices, np.full(indices.size, -1))
        if ttl_s < np.inf:
            self._rows(key).expires_s.update(dict.fromkeys(indices.tolist(), now + ttl_s))

    def drop(self, key: SetKey, indices: Indices) -> None:
        """Delete the entries of these samples."""
        self._set(key, indices, np.zeros(indices.size, dtype=np.int64))

    def flush(self) -> None:
        """Delete everything."""
        self._sets.clear()
        self.used_bytes = 0

    def evict(self, share: float) -> int:
        """Evict a random share of the records, and return how many."""
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
            size = self._datasets[key.dataset].size
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


class StoreModel:
    """Packs of all datasets, which outlive cache and coordinator. Faults lose packs and spoil records."""

    def __init__(self, model: WorldModel, rng: np.random.Generator, now_s: Callable[[], float]) -> None:
        self._model, self._rng, self._now_s = model, rng, now_s
        self._faults = model.faults
        datasets = model.datasets.values()
        # The pack of each sample's newest record, 0 if never written, and whether the record is still good.
        self._packs = {data.name: np.zeros(data.size, dtype=np.uint32) for data in datasets}
        self._good = {data.name: np.zeros(data.size, dtype=np.bool_) for data in datasets}
        self._next = 1
        if model.settings.store and model.stored:
            self._fill()

    def _fill(self) -> None:
        """Write packs with some of the samples, as earlier coordinators left them."""
        model, rng = self._model, self._rng
        for data in model.datasets.values():
            if data.random:
                continue
            stored = rng.permutation(data.size)[: int(np.ceil(data.size * model.stored))]
            stored = np.setdiff1d(stored, list(data.undecodable | data.poisonous))
            for pack in np.array_split(stored, max(1, stored.size // model.settings.request_samples)):
                self.write(data.name, pack)

    def _is_within(self, spans: Sequence[tuple[float, float]]) -> bool:
        return any(start_s <= self._now_s() < end_s for start_s, end_s in spans)

    @property
    def answers(self) -> bool:
        """Whether the store can be read now."""
        return not self._is_within(self._faults.store_gone_s)

    @property
    def takes(self) -> bool:
        """Whether the store can be written now."""
        return self.answers and not self._is_within(self._faults.store_full_s)

    def write(self, dataset: bytes, indices: Indices) -> int:
        """Write a pack of these samples, and return its number, or 0 without samples."""
        if not indices.size:
            return 0
        pack, self._next = self._next, self._next + 1
        self._packs[dataset][indices] = pack
        self._good[dataset][indices] = self._rng.random(indices.size) >= self._faults.rots
        return pack

    def good(self, key: SetKey, indices: Indices) -> Mask:
        """Return a mask of the samples that can be read now."""
        good: Mask = self._good[key.dataset][indices] & (key.epoch == EVERY_EPOCH)
        return good & self.answers

    def packs_of(self, dataset: bytes, indices: Indices) -> int:
        """Count the packs that contain these samples."""
        return int(np.unique(self._packs[dataset][indices]).size)

    def scanned(self, dataset: bytes) -> RecordsStored:
        """Return the records that a scan of the store finds. A scan does not detect rot."""
        indices = np.flatnonzero(self._packs[dataset])
        return RecordsStored(dataset, indices, self._packs[dataset][indices])

    def lose(self, share: float) -> PacksLost:
        """Lose a share of all packs."""
        numbers = np.unique(np.concatenate(list(self._packs.values())))
        lost = numbers[(numbers > 0) & (self._rng.random(numbers.size) < share)]
        for name, packs in self._packs.items():
            gone = np.isin(packs, lost)
            packs[gone], self._good[name][gone] = 0, False
        return PacksLost(lost.astype(np.uint32))
