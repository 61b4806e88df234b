"""Deletes what an earlier coordinator left in the cache and nobody accounts for now, in small steps.

Records carry no name of their dataset: one is a stranger's if no dataset that was registered or opened since
this coordinator's start has its id. A stranger's record may be what somebody warmed before a restart, so it
goes only for room that is needed: :mod:`superdl.coordinator.server.upkeep` says when. What we account for is
dropped by :mod:`superdl.coordinator.core` alone.
"""

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

__all__ = ["HeldIds", "Ids", "Sweep", "known_ids", "strangers_among"]

_log = logging.getLogger(__name__)

_KEYS_PER_STEP = 2000
_KEYS_AT_ONCE = 20_000  # compared at once, since going through all that is known is what it costs
_DELETED_PER_STEP = 1000
_PAUSE_S = 600.0
_YOUNG_S = 600.0
_ROWS = 2**18


class Sweep:
    """One pass after another over the cache's records, a step at a time.

    Args:
        cache: where the records are.
        known: ids of all samples that are accounted for, arrays of shape (samples, 16) or what gives them;
            ``None`` while that cannot be told, and then nothing is deleted.
    """

    def __init__(self, cache: Cache, known: Callable[[], Sequence[Ids] | None]) -> None:
        self._cache = cache
        self._known = known
        self._cursor = 0
        self._found = b""
        self._strangers_left = False
        self._resume_at_s = 0.0

    async def step(self, now_s: float, most: int = _DELETED_PER_STEP) -> None:
        """Look at a few thousand records; now and then delete strangers' among those that were seen. The
        others stay for the steps that follow.

        After a pass that found none, nothing is done for ten minutes. A dataset that comes while ids are
        compared ends that; one that comes while records are being deleted finds them missing, which heals.

        Args:
            now_s: on any monotonic clock.
            most: so many records are deleted at most.

        Raises:
            CacheError: the cache refuses, or does not answer.
        """
        if self._known() is None or now_s < self._resume_at_s:
            return
        if not self._strangers_left:
            self._cursor, found = await self._cache.scan_records(self._cursor, count=_KEYS_PER_STEP)
            self._found += found
            if self._cursor and len(self._found) < _KEYS_AT_ONCE * ID_BYTES:
                return
        found, self._found, self._strangers_left = self._found, b"", False
        known = self._known()  # as of now, which is after what was found was written
        if known is None:
            return
        strangers = await asyncio.to_thread(strangers_among, found, known)
        now_known = self._known()
        if now_known is None or _whole(now_known) != _whole(known):
            return  # the next pass finds them again
        end = min(most, _DELETED_PER_STEP) * ID_BYTES
        gone, self._found = strangers[:end], strangers[end:]
        self._strangers_left = bool(self._found)
        if gone:
            await self._cache.drop(gone)
            _log.warning(
                "deleted %d records that no dataset here accounts for: jobs need their room",
                len(gone) // ID_BYTES,
            )
        elif self._cursor == 0:
            self._resume_at_s = now_s + _PAUSE_S


def known_ids(
    datasets: Iterable[Dataset],
    *,
    wanted: Callable[[bytes], bool],
    held: Callable[[bytes], Iterable[tuple[int, NDArray[np.int64]]]],
    now_s: float,
) -> list[Ids] | None:
    """The ids that are accounted for; ``None`` while a dataset is being listed.

    Of a dataset that a job reads, or that was listed lately, all are. Of others, and of random recipes, whose
    ranks have looked at what they may find long before a sweep begins, those that are held.

    Args:
        datasets: all that were registered or opened.
        wanted: whether a job reads a dataset, by its content.
        held: epochs and samples of a dataset that the core has in the cache or on the way there.
        now_s: on the clock of the listings.
    """
    known: dict[int, Ids] = {}
    for dataset in datasets:
        if dataset.listing.error is not None:
            continue
        if not dataset.ready:
            return None
        young = now_s - dataset.listing.ended_at_s < _YOUNG_S
        if dataset.all_ids is not None and (young or wanted(dataset.content)):
            known[id(dataset.all_ids)] = dataset.all_ids
            continue
        for epoch, indices in held(dataset.content):
            known[hash((dataset.content, epoch))] = HeldIds(dataset, epoch, indices)
    return list(known.values())


def _whole(known: Sequence[Ids]) -> list[int]:
    """The datasets of which all is accounted for."""
    return [id(entry) for entry in known if not isinstance(entry, HeldIds)]


class HeldIds(NamedTuple):
    """The ids of some samples of a dataset, which take a while to derive."""

    dataset: Dataset
    epoch: int
    indices: NDArray[np.int64]

    def rows(self) -> NDArray[np.uint8]:
        """As an array of shape (samples, 16)."""
        recipe = self.dataset.recipe
        randomness = (recipe.augment_seed, self.epoch) if recipe.random else None
        ids = self.dataset.catalog.sample_ids(recipe.digest, randomness, self.indices, recipe.beside)
        return np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)


Ids: TypeAlias = "NDArray[np.uint8] | HeldIds"


def strangers_among(found: bytes, known: Sequence[Ids]) -> bytes:
    """Those of the concatenated ids ``found`` that no array of ``known`` holds, each once or more often.

    Compared by their first eight bytes: a chance equality, which is as good as impossible, keeps a record.
    """
    ids = np.frombuffer(found, dtype="<u8").reshape(-1, 2)
    ids = ids[np.argsort(ids[:, 0])]
    sought = np.ascontiguousarray(ids[:, 0])
    kept = np.zeros(len(sought), dtype=np.bool_)
    if not len(sought):
        return b""
    for entry in known:
        rows = entry.rows() if isinstance(entry, HeldIds) else entry
        for start in range(0, len(rows), _ROWS):
            held = np.ascontiguousarray(rows[start : start + _ROWS]).view("<u8")[:, 0]
            places = np.minimum(np.searchsorted(sought, held), len(sought) - 1)
            kept[places[sought[places] == held]] = True
    kept = kept[np.searchsorted(sought, sought)]  # SCAN may tell of a key twice
    return ids[~kept].tobytes()
