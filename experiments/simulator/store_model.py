"""The store of the simulated world: packs of records, and their faults.

It outlives the cache and the coordinator. Packs vanish, records in them rot, and for a while the store does
not answer or is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, PacksLost, RecordsStored

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from superdl.coordinator.core import SetKey
    from superdl.experiments.simulator.world_model import WorldModel

    Indices = NDArray[np.int64]

__all__ = ["StoreModel"]


class StoreModel:
    """Packs of all datasets.

    Args:
        model: the parts of the world.
        array_rng: decides which records are lost or rot.
        now_s: returns the time.
    """

    def __init__(self, model: WorldModel, array_rng: np.random.Generator, now_s: Callable[[], float]) -> None:
        self._model = model
        self._array_rng = array_rng
        self._now_s = now_s
        self._packs: dict[bytes, NDArray[np.uint32]] = {
            data.name: np.zeros(data.size, dtype=np.uint32) for data in model.datasets.values()
        }
        """The pack of each sample's newest record, 0 if never written."""
        self._good: dict[bytes, NDArray[np.bool_]] = {
            data.name: np.zeros(data.size, dtype=np.bool_) for data in model.datasets.values()
        }
        """True for records that are still there and complete."""
        self._next = 1
        if model.settings.store and model.stored:
            self._fill()

    def _fill(self) -> None:
        """Write packs of some of the samples, as left by earlier coordinators."""
        for data in self._model.datasets.values():
            if data.random:
                continue
            stored = self._array_rng.permutation(data.size)[: int(np.ceil(data.size * self._model.stored))]
            stored = np.setdiff1d(stored, list(data.undecodable | data.poisonous))
            for pack in np.array_split(stored, max(1, stored.size // self._model.settings.request_samples)):
                self.write(data.name, pack)

    @property
    def answers(self) -> bool:
        """True if the store can be read now."""
        return not any(start_s <= self._now_s() < end_s for start_s, end_s in self._model.faults.store_gone_s)

    @property
    def takes(self) -> bool:
        """True if the store can be written now."""
        full = any(start_s <= self._now_s() < end_s for start_s, end_s in self._model.faults.store_full_s)
        return self.answers and not full

    def write(self, dataset: bytes, indices: Indices) -> int:
        """Write a pack of these samples and return its number; 0 without samples."""
        if not indices.size:
            return 0
        pack, self._next = self._next, self._next + 1
        self._packs[dataset][indices] = pack
        self._good[dataset][indices] = self._array_rng.random(indices.size) >= self._model.faults.rots
        return pack

    def good(self, key: SetKey, indices: Indices) -> NDArray[np.bool_]:
        """Return a mask of the samples that can be read now."""
        good: NDArray[np.bool_] = self._good[key.dataset][indices] & (key.epoch == EVERY_EPOCH)
        return good & self.answers

    def packs_of(self, dataset: bytes, indices: Indices) -> int:
        """Count the packs that hold these samples."""
        return int(np.unique(self._packs[dataset][indices]).size)

    def scanned(self, dataset: bytes) -> RecordsStored:
        """Return the records that a scan of the store finds; it does not detect rot."""
        indices = np.flatnonzero(self._packs[dataset])
        return RecordsStored(dataset, indices, self._packs[dataset][indices])

    def lose(self, share: float) -> PacksLost:
        """Lose a share of all packs."""
        numbers = np.unique(np.concatenate(list(self._packs.values())))
        lost = numbers[(numbers > 0) & (self._array_rng.random(numbers.size) < share)]
        for name, packs in self._packs.items():
            gone = np.isin(packs, lost)
            packs[gone], self._good[name][gone] = 0, False
        return PacksLost(lost.astype(np.uint32))
