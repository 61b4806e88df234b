"""What readers wait for right now, as they said last: not to be dropped before they can have fetched it.

A reader keeps what it has got, and repeats what it misses at least every second. So of a batch that a reader
works on, only what it misses is needed; and what a reader has not repeated for some seconds it has got, or
has given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.demands import BatchPlace
    from superdl.coordinator.core.samples import SetKey

__all__ = ["AwaitedSamples"]

_BELIEVED_S = 3.0


class _Awaited(NamedTuple):
    until_s: float
    samples: SetKey
    indices: NDArray[np.int64]


class AwaitedSamples:
    """The misses that readers reported last, by batch, the oldest first."""

    def __init__(self) -> None:
        self._by_batch: dict[BatchPlace, _Awaited] = {}

    def __len__(self) -> int:
        return len(self._by_batch)

    def report(self, place: BatchPlace, samples: SetKey, indices: NDArray[np.int64], now: float) -> None:
        """A reader says what it misses of a batch."""
        self._by_batch.pop(place, None)
        self._by_batch[place] = _Awaited(now + _BELIEVED_S, samples, indices)
        self._expire(now)

    def discard(self, place: BatchPlace) -> None:
        """A batch was read."""
        self._by_batch.pop(place, None)

    def by_set(self, now: float) -> dict[SetKey, NDArray[np.int64]]:
        """All that is awaited, by sample set; with duplicates, where several readers wait."""
        self._expire(now)
        collected: dict[SetKey, list[NDArray[np.int64]]] = {}
        for awaited in self._by_batch.values():
            collected.setdefault(awaited.samples, []).append(awaited.indices)
        return {key: np.concatenate(parts) for key, parts in collected.items()}

    def next_expiry_s(self, now: float) -> float | None:
        """When the next report is too old to be believed; ``None`` if there is none."""
        self._expire(now)
        return next((awaited.until_s for awaited in self._by_batch.values()), None)

    def _expire(self, now: float) -> None:
        while self._by_batch:
            place, awaited = next(iter(self._by_batch.items()))
            if awaited.until_s > now:
                return
            del self._by_batch[place]
