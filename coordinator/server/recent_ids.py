"""The sample ids of a random recipe that were derived lately: each is wanted twice, when functions are asked
for its sample and when the sampler is told of its batch.

A direct-mapped cache in arrays, so that a page is looked up at once and memory is bounded. How ids are
derived is :mod:`superdl.super_wire.ids`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["RecentIds"]

_SLOTS = 2**17
_EPOCH_SHIFT = np.int64(40)  # an index has fewer bits (SIZE_MAX of the plan)
_EPOCHS = 2**22
_NONE = np.int64(-1)


class RecentIds:
    """Up to 131,072 ids, 3 MB once it is used; what takes the same slot puts another out."""

    def __init__(self) -> None:
        self._tags: NDArray[np.int64] | None = None
        self._ids: NDArray[np.uint8] = np.empty((0, ID_BYTES), dtype=np.uint8)

    def ids(
        self, indices: NDArray[np.int64], epoch: int, derive: Callable[[NDArray[np.int64]], bytes]
    ) -> bytes:
        """The ids of ``indices`` in ``epoch``, concatenated; ``derive`` gives those that are not here."""
        if not 0 <= epoch < _EPOCHS:
            return derive(indices)
        if self._tags is None:
            self._tags = np.full(_SLOTS, _NONE, dtype=np.int64)
            self._ids = np.empty((_SLOTS, ID_BYTES), dtype=np.uint8)
        slots = indices & np.int64(_SLOTS - 1)
        wanted = indices | (np.int64(epoch) << _EPOCH_SHIFT)
        found = self._ids[slots]
        missing = np.flatnonzero(self._tags[slots] != wanted)
        if missing.size:
            derived = np.frombuffer(derive(indices[missing]), dtype=np.uint8).reshape(-1, ID_BYTES)
            found[missing] = derived
            self._ids[slots[missing]] = derived
            self._tags[slots[missing]] = wanted[missing]
        return bytes(found)
