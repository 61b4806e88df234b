"""Deletes what an earlier coordinator left in the cache and nobody accounts for now, in small steps.

Records carry no name of their dataset: one is a stranger's if no dataset that was registered or opened since
this coordinator's start has its id. When a step is worth while is :mod:`coordinator.upkeep`'s to say; what we
account for is dropped by :mod:`coordinator.core` alone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import numpy as np

from super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from coordinator.cache import Cache
    from coordinator.datasets import Dataset

__all__ = ["Sweep", "known_ids", "strangers_among"]

_log = logging.getLogger(__name__)

_KEYS_PER_STEP = 2000
_KEYS_AT_ONCE = 20_000  # compared at once, since going through all that is known is what it costs
_PAUSE_S = 600.0
_ROWS = 2**18


class Sweep:
    """One pass after another over the cache's records, a step at a time.

    Args:
        cache: where the records are.
        known: ids of all samples that are accounted for, arrays of shape (samples, 16); ``None`` while that
            cannot be told, and then nothing is deleted.
    """

    def __init__(self, cache: Cache, known: Callable[[], Sequence[NDArray[np.uint8]] | None]) -> None:
        self._cache = cache
        self._known = known
        self._cursor = 0
        self._found = b""
        self._deleted = 0
        self._resume_at_s = 0.0

    async def step(self, now_s: float) -> None:
        """Look at a few thousand records; now and then delete the strangers' among those that were seen.

        After a pass that found none, nothing is done for ten minutes. A dataset that comes while ids are
        compared ends that; one that comes while records are being deleted finds them missing, which heals.

        Args:
            now_s: on any monotonic clock.

        Raises:
            CacheError: the cache refuses, or does not answer.
        """
        known = self._known()
        if known is None or now_s < self._resume_at_s:
            return
        self._cursor, found = await self._cache.scan_records(self._cursor, count=_KEYS_PER_STEP)
        self._found += found
        if self._cursor and len(self._found) < _KEYS_AT_ONCE * ID_BYTES:
            return
        found, self._found = self._found, b""
        strangers = await asyncio.to_thread(strangers_among, found, known)
        now_known = self._known()
        if now_known is None or list(map(id, now_known)) != list(map(id, known)):
            return  # the next pass finds them again
        await self._cache.drop(strangers)
        self._deleted += len(strangers) // ID_BYTES
        if self._cursor == 0:
            if self._deleted:
                _log.warning("deleted %d records that no dataset here accounts for", self._deleted)
            else:
                self._resume_at_s = now_s + _PAUSE_S
            self._deleted = 0


def known_ids(datasets: Iterable[Dataset]) -> list[NDArray[np.uint8]] | None:
    """The ids of all samples of datasets; ``None`` if one is still being listed, or if one is random: ids of
    its epochs are known to nobody at once.
    """
    known = {}
    for dataset in datasets:
        if dataset.listing.error is not None:
            continue
        if dataset.all_ids is None:
            return None
        known[id(dataset.all_ids)] = dataset.all_ids
    return list(known.values())


def strangers_among(found: bytes, known: Sequence[NDArray[np.uint8]]) -> bytes:
    """Those of the concatenated ids ``found`` that no array of ``known`` holds, each once or more often.

    Compared by their first eight bytes: a chance equality, which is as good as impossible, keeps a record.
    """
    ids = np.frombuffer(found, dtype="<u8").reshape(-1, 2)
    ids = ids[np.argsort(ids[:, 0])]
    sought = np.ascontiguousarray(ids[:, 0])
    kept = np.zeros(len(sought), dtype=np.bool_)
    if not len(sought):
        return b""
    for rows in known:
        for start in range(0, len(rows), _ROWS):
            held = np.ascontiguousarray(rows[start : start + _ROWS]).view("<u8")[:, 0]
            places = np.minimum(np.searchsorted(sought, held), len(sought) - 1)
            kept[places[sought[places] == held]] = True
    kept = kept[np.searchsorted(sought, sought)]  # SCAN may tell of a key twice
    return ids[~kept].tobytes()
