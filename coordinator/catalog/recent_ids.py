"""The ids of a random recipe's samples that were derived last."""

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
    """A direct-mapped cache of up to 131,072 ids of a random recipe, 3 MB once it is used.

    Each id is wanted twice: when functions are asked for the sample, and when a sampler asks for its batch.
    """

    def __init__(self) -> None:
        self._tags: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._ids: NDArray[np.uint8] = np.empty((0, ID_BYTES), dtype=np.uint8)

    def ids(
        self, indices: NDArray[np.int64], epoch: int, derive: Callable[[NDArray[np.int64]], bytes]
    ) -> bytes:
        """The ids of ``indices`` in ``epoch``, concatenated; ``derive`` gives those that are not here."""
        if not 0 <= epoch < _EPOCHS:
            return derive(indices)
        if not self._tags.size:
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
