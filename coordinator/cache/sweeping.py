"""Delete records that an earlier coordinator wrote for datasets that no job has opened since."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.cache.cache import Cache
    from superdl.coordinator.catalog.dataset import Dataset

_log = logging.getLogger(__name__)

_KEYS_PER_STEP = 2000
_KEYS_AT_ONCE = 20_000  # per comparison, because each reads all known ids
_DELETED_PER_STEP = 1000
_PAUSE_S = 600.0
_YOUNG_S = 600.0
_ROWS = 2**18


class Sweep:
    """Repeated passes over the cache's records, one step at a time.

    ``known`` returns the ids of all known samples. Nothing is deleted while it returns ``None``.
    """

    def __init__(self, cache: Cache, known: Callable[[], Sequence[Ids] | None]) -> None:
        self._cache = cache
        self._known = known
        self._cursor = 0
        self._scanned = b""
        self._has_unknown = False
        self._resume_at_s = 0.0

    async def step(self, now_s: float, most: int = _DELETED_PER_STEP) -> None:
        """Scan some records, and delete up to ``most`` unknown ones once enough have been scanned.

        ``now_s`` is monotonic time. Raises ``CacheError``.
        """
        if self._known() is None or now_s < self._resume_at_s:
            return
        if not self._has_unknown:
            self._cursor, scanned = await self._cache.scan_records(self._cursor, count=_KEYS_PER_STEP)
            self._scanned += scanned
            if self._cursor and len(self._scanned) < _KEYS_AT_ONCE * ID_BYTES:
                return
        scanned, self._scanned, self._has_unknown = self._scanned, b"", False
        known = self._known()  # after the scanned records were written
        if known is None:
            return
        unknown = await asyncio.to_thread(unknown_among, scanned, known)
        now_known = self._known()
        # A new dataset may own some of the unknown records. The next pass finds the others again.
        if now_known is None or _whole(now_known) != _whole(known):
            return
        end = min(most, _DELETED_PER_STEP) * ID_BYTES
        deleted, self._scanned = unknown[:end], unknown[end:]
        self._has_unknown = bool(self._scanned)
        if deleted:
            # If a dataset is opened now, its deleted records are produced again.
            await self._cache.drop(deleted)
            _log.warning(
                "deleted %d records that belong to no known dataset, because jobs need the space",
                len(deleted) // ID_BYTES,
            )
        elif self._cursor == 0:
            # The pass found no unknown records.
            self._resume_at_s = now_s + _PAUSE_S


def known_ids(
    datasets: Iterable[Dataset],
    *,
    is_read: Callable[[bytes], bool],
    held: Callable[[bytes], Iterable[tuple[int, NDArray[np.int64]]]],
    now_s: float,
) -> list[Ids] | None:
    """Return the known ids, or ``None`` while a dataset is being listed."""
    known: dict[int, Ids] = {}
    for dataset in datasets:
        if dataset.listing.error is not None:
            continue
        if not dataset.ready:
            return None  # any record could belong to it
        young = now_s - dataset.listing.ended_at_s < _YOUNG_S
        # Without a reader or a recent listing, only use the ids that the core holds, because ranks audit
        # their records long before a sweep begins.
        if dataset.all_ids is not None and (young or is_read(dataset.content)):
            known[id(dataset.all_ids)] = dataset.all_ids
            continue
        for epoch, indices in held(dataset.content):
            known[hash((dataset.content, epoch))] = HeldIds(dataset, epoch, indices)
    return list(known.values())


def _whole(known: Sequence[Ids]) -> list[int]:
    return [id(entry) for entry in known if not isinstance(entry, HeldIds)]


class HeldIds(NamedTuple):
    """Ids of a subset of a dataset's samples, computed on demand."""

    dataset: Dataset
    epoch: int
    indices: NDArray[np.int64]

    def rows(self) -> NDArray[np.uint8]:
        """Return the ids as an array of shape (samples, 16)."""
        recipe = self.dataset.recipe
        randomness = (recipe.augment_seed, self.epoch) if recipe.random else None
        ids = self.dataset.catalog.sample_ids(recipe.digest, randomness, self.indices, recipe.beside)
        return np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)


Ids: TypeAlias = "NDArray[np.uint8] | HeldIds"


def unknown_among(scanned: bytes, known: Sequence[Ids]) -> bytes:
    """Return the scanned ids that are not known, concatenated, possibly with repeats."""
    ids = np.frombuffer(scanned, dtype="<u8").reshape(-1, 2)
    ids = ids[np.argsort(ids[:, 0])]
    # Compare the first eight bytes. A collision only keeps a record.
    sought = np.ascontiguousarray(ids[:, 0])
    kept = np.zeros(len(sought), dtype=np.bool_)
    if not len(sought):
        return b""
    for entry in known:
        rows = entry.rows() if isinstance(entry, HeldIds) else entry
        for start in range(0, len(rows), _ROWS):
            held = np.ascontiguousarray(rows[start : start + _ROWS]).view("<u8")[:, 0]
            positions = np.minimum(np.searchsorted(sought, held), len(sought) - 1)
            kept[positions[sought[positions] == held]] = True
    kept = kept[np.searchsorted(sought, sought)]  # SCAN may return a key twice
    return ids[~kept].tobytes()
