"""Verification of a store, as readers read it."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.store import read_indexes, threads
from superdl.store.contents import collection_name
from superdl.super_wire.errors import RecordError, StoreError, StoreFormatError, StoreGoneError
from superdl.super_wire.store import check_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.store import PackIndex, Store

# Minimum number of records checked in each collection, however small the share.
LEAST = 16

_AT_A_TIME = 64  # records of one pack that are in memory at once


@dataclass(frozen=True, slots=True)
class Wrong:
    """A record unlike its description or, if ``sample`` is empty, an invalid pack."""

    pack: str
    sample: str
    why: str


@dataclass(slots=True)
class Verification:
    """Counts of packs, of records, and of checked records; and all faults."""

    packs: int = 0
    records: int = 0
    checked: int = 0
    wrong: list[Wrong] = field(default_factory=list)

    @property
    def wrong_packs(self) -> list[str]:
        """Return the packs with faults."""
        return sorted({fault.pack for fault in self.wrong})


def verify(
    store: Store, *, share: float = 0.01, note: Callable[[str], None] = lambda _: None
) -> Verification:
    """Check all packs' indexes, and a random ``share`` (0 to 1) of each collection's records."""
    packs = store.packs()
    verification = Verification(len(packs))
    collections: dict[str, dict[str, PackIndex]] = defaultdict(dict)
    for name, index in read_indexes(store, packs):
        if isinstance(index, StoreFormatError):
            verification.wrong.append(Wrong(name, "", str(index)))
        elif isinstance(index, StoreError):  # another user's, perhaps
            note(f"not verified: {index}")
        else:
            collections[collection_name(name)][name] = index
    note(f"{len(packs):,} indexes read")
    for indexes in collections.values():
        verification.records += sum(len(index.entries) for index in indexes.values())
        with threads(len(os.sched_getaffinity(0))) as pool:
            faults = pool.map(lambda item: _looked_at(store, *item), _drawn(indexes, share).items())
            for fault in chain.from_iterable(faults):
                verification.checked += 1
                verification.wrong += [fault] if fault else []
        note(f"{verification.checked:,} records checked")
    return verification


def _drawn(indexes: dict[str, PackIndex], share: float) -> dict[str, PackIndex]:
    """Return a random share of all records, as indexes of their packs."""
    counts = [len(index.entries) for index in indexes.values()]
    count = sum(counts)
    positions = np.random.default_rng().choice(
        count, min(count, max(LEAST, math.ceil(share * count))), replace=False
    )
    is_drawn = np.zeros(count, dtype=bool)
    is_drawn[positions] = True
    masks = np.split(is_drawn, np.cumsum(counts)[:-1])
    return {
        name: replace(index, entries=index.entries[mask])
        for (name, index), mask in zip(indexes.items(), masks, strict=True)
        if mask.any()
    }


def _looked_at(store: Store, name: str, index: PackIndex) -> list[Wrong | None]:
    entries = np.sort(index.entries, order="offset")
    faults: list[Wrong | None] = []
    for start in range(0, len(entries), _AT_A_TIME):
        chunk = entries[start : start + _AT_A_TIME]
        try:
            records = store.read_many(
                name, list(zip(chunk["offset"].tolist(), chunk["bytes"].tolist(), strict=True))
            )
        except StoreGoneError:
            break  # dropped meanwhile
        for sample, record in zip(map(bytes, chunk["id"].tolist()), records, strict=True):
            try:
                check_record(record, sample)
            except RecordError as error:
                faults.append(Wrong(name, sample.hex(), str(error)))
            else:
                faults.append(None)
    return faults
