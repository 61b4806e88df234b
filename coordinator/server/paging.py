"""Pages of a plan: batches with ids, labels and status, as ``NextBatches`` answers them.

A page stays below :data:`~superdl.super_wire.protocol.MAX_REPLY_BYTES`; keys come along where they fit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from superdl.coordinator.core import SampleState
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.ids import ID_BYTES, batch_ids
from superdl.super_wire.protocol import MAX_REPLY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.datasets import Dataset
    from superdl.coordinator.core import Core, Job

__all__ = ["Occurrence", "PlannedBatches", "page_of"]

_PAGE_BYTES = MAX_REPLY_BYTES - 4096
_BATCH_BYTES = 96
_KEY_BYTES = 4
_OCCURRENCES_MAX = 16
_TOLD = (SampleState.RESIDENT, SampleState.FAILED)


class Occurrence(NamedTuple):
    """Where a batch stands in a plan."""

    job: str
    rank: int
    epoch: int
    position: int


class PlannedBatches:
    """Which batches have been planned lately, by batch id, and of each the newest occurrences."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._occurrences: OrderedDict[bytes, dict[Occurrence, None]] = OrderedDict()

    def add(self, batch: bytes, occurrence: Occurrence) -> None:
        """Remember an occurrence of a batch."""
        places = self._occurrences.setdefault(batch, {})
        places.pop(occurrence, None)
        places[occurrence] = None
        if len(places) > _OCCURRENCES_MAX:  # without shuffle a batch occurs in every epoch
            del places[next(iter(places))]
        self._occurrences.move_to_end(batch)
        while len(self._occurrences) > self._capacity:
            self._occurrences.popitem(last=False)

    def find(self, batch: bytes) -> list[Occurrence]:
        """Its occurrences, oldest first; none if it has not been planned lately."""
        return list(self._occurrences.get(batch, ()))


def page_of(
    core: Core,
    job: Job,
    dataset: Dataset,
    *,
    rank: int,
    epoch: int,
    start: int,
    count: int,
    with_keys: bool,
) -> pb.Page:
    """Up to ``count`` batches of one rank from ``start`` on: at least one, unless the epoch ends there."""
    catalog = dataset.catalog
    # What a full batch takes without keys is known before any id is derived.
    fitting = max(1, _PAGE_BYTES // (job.plan.batch_size * (ID_BYTES + catalog.label_bytes) + _BATCH_BYTES))
    stop = min(start + min(count, fitting), job.plan.batches_per_epoch)
    span = job.plan.span(epoch, start, stop, rank)
    offsets: list[int] = span.offsets.tolist()
    ids = dataset.ids(span.indices, epoch)
    labels, label_bytes = catalog.labels_at(span.indices).tobytes(), catalog.label_bytes
    states = core.states(job.samples_of(epoch), span.indices)
    resident, failed = (_counts(states == state, span.offsets) for state in _TOLD)
    page, size = pb.Page(), 0
    for number, batch in enumerate(batch_ids(ids, offsets)):
        first, end = offsets[number], offsets[number + 1]
        padding = span.padding[first:end]
        keys = catalog.keys.take(span.indices[first:end]) if with_keys else []
        key_bytes = len(b"".join(keys)) + _KEY_BYTES * len(keys)
        padding_bytes = padding.astype(np.uint8).tobytes() if padding.any() else b""
        batch_bytes = (end - first) * (ID_BYTES + label_bytes) + len(padding_bytes) + _BATCH_BYTES
        if number and size + batch_bytes + key_bytes > _PAGE_BYTES:
            break
        if batch_bytes + key_bytes > _PAGE_BYTES:
            keys, key_bytes = [], 0
        size += batch_bytes + key_bytes
        page.batches.add(
            position=start + number,
            batch_id=batch,
            sample_ids=ids[first * ID_BYTES : end * ID_BYTES],
            labels=labels[first * label_bytes : end * label_bytes],
            padding=padding_bytes,
            keys=cast("list[str]", keys),  # protobuf takes UTF-8 as it is
            resident=resident[number],
            failed=failed[number],
        )
    return page


def _counts(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> list[int]:
    """How many flags are set in each batch."""
    before = np.zeros(flags.size + 1, dtype=np.int64)
    np.cumsum(flags, out=before[1:])
    counts: list[int] = np.diff(before[offsets]).tolist()
    return counts
