"""Locations of records in the store: pack numbers, and 16 bytes per sample of each open dataset."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.coordinator.executors.messages import RecordPlaces
from superdl.coordinator.store.index import read_indexes
from superdl.super_wire.errors import StoreError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.store import DATA_KINDS, ENTRY_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.store.index import IndexedPack
    from superdl.super_wire.store import Store

_COLLECTIONS_MAX = 64
_IDS_MAX = 10**7  # deriving them takes seconds
_DIRECTORY = "file://"

# Flag in a pack's number that marks a damaged record. Earlier requests may still refer to the record.
_DAMAGED = np.uint32(2**31)


class Joined(NamedTuple):
    """Catalog indices and the locations of their records."""

    indices: NDArray[np.int64]
    packs: NDArray[np.uint32]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint32]


@dataclass(slots=True)
class _Columns:
    pack: NDArray[np.uint32]
    offset: NDArray[np.uint64]
    length: NDArray[np.uint32]


class Places:
    """The locations of open datasets' records. Only :meth:`number` is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._names = [""]
        self._gone = np.zeros(1024, dtype=np.bool_)
        self._columns: dict[bytes, _Columns] = {}

    def number(self, pack: str) -> int:
        """Return a pack's number, which is at least 1 and never reused. A lost pack is marked as present."""
        with self._lock:
            number = self._numbers.get(pack)
            if number is None:
                number = self._numbers[pack] = len(self._names)
                self._names.append(pack)
                if number >= self._gone.size:
                    self._gone = np.concatenate([self._gone, np.zeros_like(self._gone)])
            self._gone[number] = False
            return number

    def join(self, ids: NDArray[np.uint8], packs: Sequence[IndexedPack]) -> Joined:
        """Find ids of shape (samples, 16) in packs' indexes. The last entry for an id takes precedence."""
        entries = [pack.index.entries for pack in packs]
        numbers = np.array([self.number(pack.name) for pack in packs], dtype=np.uint32)
        of_entries = np.repeat(numbers, [len(part) for part in entries])
        return join(ids, np.concatenate([np.empty(0, ENTRY_DTYPE), *entries]), of_entries)

    def open(self, content: bytes, size: int) -> None:
        """Allocate locations for a dataset of ``size`` samples, unless it already has them."""
        if content not in self._columns:
            pack, length = np.zeros((2, size), dtype=np.uint32)
            self._columns[content] = _Columns(pack, np.zeros(size, dtype=np.uint64), length)

    def close_unknown(self, opened: Iterable[bytes]) -> list[bytes]:
        """Drop the datasets that are not in ``opened``, and return their content digests."""
        closed = [content for content in self._columns if content not in opened]
        for content in closed:
            del self._columns[content]
        return closed

    def put(self, content: bytes, joined: Joined) -> None:
        """Record locations, unless the dataset has been closed in the meantime."""
        columns = self._columns.get(content)
        if columns is not None:
            columns.pack[joined.indices] = joined.packs
            columns.offset[joined.indices] = joined.offsets
            columns.length[joined.indices] = joined.lengths

    def put_pack(self, content: bytes, pack: IndexedPack, indices: NDArray[np.int64]) -> int:
        """Record that a new pack contains the samples at ``indices``. Return the pack's number."""
        entries, number = pack.index.entries, self.number(pack.name)
        numbers = np.full(indices.size, number, dtype=np.uint32)
        self.put(content, Joined(indices, numbers, entries["offset"], entries["bytes"]))
        return number

    def forget(self, content: bytes, indices: NDArray[np.int64]) -> None:
        """Mark records as damaged."""
        columns = self._columns.get(content)
        if columns is not None:
            columns.pack[indices] |= _DAMAGED * (columns.pack[indices] > 0)

    def mark_lost(self, packs: Iterable[str]) -> NDArray[np.uint32]:
        """Mark packs as lost. Return the numbers of those that are known."""
        with self._lock:
            numbers = [self._numbers[pack] for pack in packs if pack in self._numbers]
            lost = np.array(numbers, dtype=np.uint32)
            self._gone[lost] = True
        return lost

    def known(self, content: bytes) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return a dataset's samples with known locations, and the numbers of their packs."""
        columns = self._columns.get(content)
        if columns is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint32)
        packs = self._valid(columns.pack)
        indices = np.flatnonzero(packs)
        return indices, packs[indices]

    def live(self) -> dict[str, int]:
        """Return the number of samples from open datasets in each pack, omitting packs without any."""
        counts = np.zeros(len(self._names), dtype=np.int64)
        for columns in self._columns.values():
            counts += np.bincount(self._valid(columns.pack), minlength=counts.size)[: counts.size]
        counts[0] = 0  # no pack
        return {self._names[number]: int(counts[number]) for number in np.flatnonzero(counts).tolist()}

    def of(
        self, content: bytes, indices: NDArray[np.int64], *, with_gone: bool = False
    ) -> RecordPlaces | None:
        """Return the locations of samples, or ``None`` if no location is known.

        ``with_gone`` includes lost packs and damaged records, for an earlier request that will report
        them.
        """
        columns = self._columns.get(content)
        if columns is None:
            return None
        numbers = columns.pack[indices]
        numbers = numbers & ~_DAMAGED if with_gone else self._valid(numbers)
        distinct, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        known = np.flatnonzero(distinct)
        if not known.size:
            return None
        by_first = known[np.argsort(first[known])]
        pack_of = np.zeros(distinct.size, dtype=np.uint32)
        pack_of[by_first] = np.arange(1, known.size + 1)
        return RecordPlaces(
            tuple(self._names[number] for number in distinct[by_first].tolist()),
            pack_of[which],
            columns.offset[indices],
            columns.length[indices],
        )

    def _valid(self, numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the pack numbers, with 0 for lost packs and damaged records."""
        bad = (numbers >= _DAMAGED) | self._gone[numbers & ~_DAMAGED]
        usable: NDArray[np.uint32] = np.where(bad, np.uint32(0), numbers)
        return usable


def join(ids: NDArray[np.uint8], entries: NDArray[Any], packs: NDArray[np.uint32]) -> Joined:
    """Find a dataset's samples among the packs' entries. The last entry for an id takes precedence.

    Args:
        ids: the samples' ids, in catalog order, of shape (samples, 16).
        entries: entries of the packs' indexes. Only data entries are used.
        packs: each entry's pack number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def packed(rows: NDArray[Any]) -> Any:
        buffer = pa.py_buffer(np.ascontiguousarray(rows))
        return pa.Array.from_buffers(pa.binary(ID_BYTES), len(rows), [None, buffer])

    data = np.flatnonzero(np.isin(entries["kind"], list(DATA_KINDS)))[::-1]  # the last one first
    matches = pc.index_in(packed(ids), value_set=packed(entries["id"][data])).fill_null(-1).to_numpy()
    indices = np.flatnonzero(matches >= 0)
    entry = data[matches[indices]]
    return Joined(indices, packs[entry], entries["offset"][entry], entries["bytes"][entry])


def moved_warning(store: Store, dataset: Dataset) -> str:
    """Return a warning if the store has the samples under a different path, otherwise an empty string.

    May raise ``StoreError``.
    """
    catalog, recipe = dataset.catalog, dataset.recipe
    if not catalog.whole_bucket:
        return ""
    packs = store.packs()
    pack_of = {name.partition("-")[0]: name for name in packs}
    used = store.used()
    # Check one pack of each recently used collection, for a few seconds at most.
    newest = sorted(pack_of, key=lambda collection: -used.get(collection, 0.0))[:_COLLECTIONS_MAX]
    derived = 0
    for _, index in read_indexes(store, {pack_of[name]: packs[pack_of[name]] for name in newest}):
        if isinstance(index, StoreError) or index.meta.recipe != recipe.json:
            continue
        bucket = index.meta.bucket
        if bucket == catalog.bucket or not bucket.startswith(_DIRECTORY):
            continue
        derived += len(catalog)
        if derived > _IDS_MAX:
            break
        # The ids that the samples have in the other directory.
        ids = replace(catalog, bucket=bucket).sample_ids(recipe.digest, fields=recipe.beside)
        by_sample = np.frombuffer(ids, dtype=np.uint8).reshape(-1, ID_BYTES)
        if join(by_sample, index.entries, np.ones(len(index.entries), dtype=np.uint32)).indices.size:
            return (
                f"{dataset.listing.source} has files of {bucket} that the store already contains decoded. "
                "It was moved or copied, so it is decoded again: samples are identified by their directory. "
                'SuperDataset(..., alias="a-name") identifies them by a name instead (docs/store.md)'
            )
    return ""
