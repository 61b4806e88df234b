"""Which of many samples are in the cache now, by their records' headers: what was seen there may be gone.

It takes no job, so nothing is produced or dropped for it. Where no job has told the samples' ids, they are
derived from a listing made here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import CacheUnreachableError, SuperError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from superdl.super_dataset import SuperDataset
    from superdl.warm.estimate import Estimate
    from superdl.warm.headers import HeaderLink

__all__ = ["There", "ids_listed_here", "recount"]

_AT_ONCE = 1024
_AGAIN_S = 0.1


@dataclass(slots=True)
class There:
    """Samples that are in the cache, and what their records take."""

    samples: int = 0
    record_bytes: int = 0


def recount(link: HeaderLink, ids: bytes, patience_s: float) -> There:
    """Look at all of the concatenated ``ids`` once.

    Raises:
        CacheUnreachableError: some could not be asked for, for so long.
        CacheError: the cache refuses.
    """
    there = There()
    for start in range(0, len(ids), _AT_ONCE * ID_BYTES):
        some = ids[start : start + _AT_ONCE * ID_BYTES]
        missing, until_s = list(range(len(some) // ID_BYTES)), time.monotonic() + patience_s
        while missing:
            seen = link.look(some, missing)
            there.samples += len(seen.present)
            there.record_bytes += sum(seen.present.values())
            answered = {*seen.present, *seen.tombstones, *seen.absent}
            missing = [offset for offset in missing if offset not in answered]
            if missing and time.monotonic() > until_s:
                raise CacheUnreachableError(f"the cache does not answer: {seen.trouble}")
            if missing:
                time.sleep(_AGAIN_S)
    return there


def ids_listed_here(dataset: SuperDataset, estimate: Estimate) -> bytes | str:
    """The ids of all samples by a listing made here, or why there is none that equals the coordinator's."""
    from superdl.coordinator.catalog import list_source  # only a cache without room needs it

    try:
        catalog = list_source(dataset.source, dataset.key_list)
    except SuperError as error:
        return f"the source cannot be listed here ({error})"
    if not estimate.cache or catalog.fingerprint != estimate.fingerprint:
        return "the source lists otherwise here than at the coordinator"
    return catalog.sample_ids(dataset.recipe.digest)
