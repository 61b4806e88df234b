"""Plans for new jobs, and pages of plans and catalogs."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, cast

import numpy as np

from superdl.coordinator.core import Plan, SampleState
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.draws import NUMBERS_MAX, Draws, unpack_numbers
from superdl.super_wire.errors import ConfigError, PlanError, UnknownJobError
from superdl.super_wire.ids import ID_BYTES, batch_ids
from superdl.super_wire.labels import label_dtype_of
from superdl.super_wire.protocol import MAX_REPLY_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog
    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import BatchPlace, Core, Job
    from superdl.coordinator.executors.messages import RecordPlaces
    from superdl.coordinator.store.locations import Places

_PAGE_BYTES = MAX_REPLY_BYTES - 4096
_BATCH_BYTES = 96
_KEY_BYTES = 4
_PLACE_BYTES = 16
_REPETITION_BYTES = 4
_PACK_NAME_BYTES = 64  # longer than any name
_OCCURRENCES_MAX = 16
_KEYS_PER_PAGE, _SAMPLES_BYTES = 4096, 2**18  # unpacking keys takes milliseconds and blocks other calls
_EPOCH_MAX = 2**40
_BATCHES_MAX = 2**60  # of all epochs so far, which are counted in 64 bits
_JOB_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,256}")  # part of a Redis key: ASCII, no braces
_INDEX_BYTES = 8
_ORDERS_MAX = 32
_ORDERS_BYTES_MAX = 512 * 2**20


class Orders:
    """Orders received so far from users' own samplers. Drops the oldest beyond a limit. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], bytearray] = OrderedDict()

    def add(self, part: pb.OrderPart) -> int:
        """Store a part of an order, and return the number of indices received without a gap.

        A part at index 0 restarts the order. A part that would leave a gap is dropped. Raises
        ``ConfigError`` if the part is malformed or the order is too long.
        """
        indices, key = unpack_numbers(part.indices), (part.job, part.epoch)
        with self._lock:
            order = self._kept.pop(key, bytearray())
            if part.start * _INDEX_BYTES <= len(order):
                order[part.start * _INDEX_BYTES :] = indices
            if len(order) > NUMBERS_MAX * _INDEX_BYTES:
                raise ConfigError(f"the order of an epoch may contain at most {NUMBERS_MAX:,} indices")
            self._kept[key] = order
            while len(self._kept) > _ORDERS_MAX or sum(map(len, self._kept.values())) > _ORDERS_BYTES_MAX:
                self._kept.popitem(last=False)
            return len(order) // _INDEX_BYTES

    def plan_of(self, request: pb.OpenJobRequest, size: int) -> Plan:
        """Return a job's plan for a dataset of ``size`` samples. Many draws can take a second.

        Raises ``ConfigError`` or ``PlanError`` if the plan is invalid, and ``UnknownJobError`` if the order
        was dropped.
        """
        draws: Draws | None
        indices, weights = request.indices, request.weights
        if request.order_sent:
            draws = Draws(self._take(request), lengths=unpack_numbers(request.lengths))
        else:
            draws = Draws.unpacked(indices, weights, request.draws, request.repeats, request.lengths)
        return Plan(
            size=size,
            batch_size=request.batch_size,
            replicas=request.replicas,
            seed=request.seed,
            shuffle=request.shuffle,
            drop_last=request.drop_last,
            draws=draws,
            mix=tuple(request.mix),
            member=request.member,
            mix_run=request.mix_run or 1,
            only_epoch=request.epoch if request.lengths else None,
        )

    def _take(self, request: pb.OpenJobRequest) -> bytes:
        with self._lock:
            order = self._kept.pop((request.job, request.epoch), bytearray())
        if len(order) != request.order_sent * _INDEX_BYTES:
            raise UnknownJobError(f"there is no order of epoch {request.epoch} of job {request.job!r}")
        return bytes(order)


def check_job_id(name: str) -> None:
    """Raise ``ConfigError`` unless ``name`` is a valid job id."""
    if not _JOB_ID.fullmatch(name):
        raise ConfigError(
            f"a job id must be 1 to 256 characters (letters, digits and . _ : @ / + = -), not {name[:80]!r}"
        )


def check_position(plan: Plan, epoch: int, position: int) -> None:
    """Raise ``PlanError`` for a position outside the plan, or ``UnknownJobError`` for an unknown order."""
    if epoch > _EPOCH_MAX:
        raise PlanError(f"epoch must be from 0 to {_EPOCH_MAX}, not {epoch}")
    if not plan.covers(epoch):
        raise UnknownJobError(f"the order of epoch {epoch} is not known, only of epoch {plan.only_epoch}")
    if position > plan.batches_per_epoch:
        raise PlanError(
            f"an epoch has {plan.batches_per_epoch} batches, so position {position} does not exist"
        )
    if epoch * plan.batches_per_epoch + position > _BATCHES_MAX:
        raise PlanError(f"epoch {epoch} of {plan.batches_per_epoch} batches each is too far from the first")


class PlannedBatches:
    """The most recently planned batches by id, with their latest occurrences."""

    def __init__(self, capacity: int = 65_536) -> None:
        self._capacity = capacity
        self._occurrences: OrderedDict[bytes, dict[BatchPlace, None]] = OrderedDict()

    def add(self, batch: bytes, occurrence: BatchPlace) -> None:
        """Add the latest occurrence of a batch."""
        known = self._occurrences.setdefault(batch, {})
        known.pop(occurrence, None)
        known[occurrence] = None
        if len(known) > _OCCURRENCES_MAX:  # without shuffling, it occurs in every epoch
            del known[next(iter(known))]
        self._occurrences.move_to_end(batch)
        while len(self._occurrences) > self._capacity:
            self._occurrences.popitem(last=False)

    def find(self, batch: bytes) -> list[BatchPlace]:
        """Return a batch's occurrences, oldest first. The list is empty if it was not planned recently."""
        return list(self._occurrences.get(batch, ()))


def locations_fit(plan: Plan, dataset: Dataset) -> bool:
    """Return whether a batch's locations fit in a page even if every record is in a different pack."""
    sample_bytes = ID_BYTES + dataset.catalog.label_bytes + 1 + _PLACE_BYTES + _PACK_NAME_BYTES
    sample_bytes += _REPETITION_BYTES if plan.draws else 0
    return bool(plan.batch_size * sample_bytes + _BATCH_BYTES <= _PAGE_BYTES)


def _location_fields(located: RecordPlaces, first: int, end: int) -> dict[str, bytes]:
    """Return the fields that hold the locations of a batch's samples, or none if no location is known."""
    if not located.pack_of[first:end].any():
        return {}
    return {
        name: getattr(located, name)[first:end].astype(dtype).tobytes()
        for name, dtype in (("pack_of", "<u4"), ("offsets", "<u8"), ("lengths", "<u4"))
    }


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
    places: Places | None = None,
) -> pb.Page:
    """Return one to ``count`` batches for a rank, beginning at ``start``, or none at the end of an epoch.

    A page stays below MAX_REPLY_BYTES. Keys are left out if they do not fit. ``places`` adds the locations
    of the records for readers that can access the store.
    """
    catalog = dataset.catalog
    sample_bytes = ID_BYTES + catalog.label_bytes + (_PLACE_BYTES if places else 0)
    sample_bytes += _REPETITION_BYTES if job.plan.draws else 0
    # A full batch's size without keys is known before any id is derived.
    fitting = max(1, _PAGE_BYTES // (job.plan.batch_size * sample_bytes + _BATCH_BYTES))
    stop = min(start + min(count, fitting), job.plan.batches_per_epoch)
    span = job.plan.span(epoch, start, stop, rank)
    offsets: list[int] = span.offsets.tolist()
    ids = dataset.ids(span.indices, epoch)
    states = core.state.states(job.samples_of(epoch), span.indices)
    page, size, packs = pb.Page(), 0, 0
    located = places.of(dataset.content, span.indices) if places else None
    states = states if located is None else np.where(located.pack_of > 0, SampleState.RESIDENT, states)
    resident, failed = (
        _counts(states == state, span.offsets) for state in (SampleState.RESIDENT, SampleState.FAILED)
    )
    for number, batch in enumerate(batch_ids(ids, offsets)):
        first, end = offsets[number], offsets[number + 1]
        padding = span.padding[first:end]
        keys = catalog.names_at(span.indices[first:end]) if with_keys else []
        key_bytes = len(b"".join(keys)) + _KEY_BYTES * len(keys)
        padding_bytes = padding.astype(np.uint8).tobytes() if padding.any() else b""
        again = None if span.repetitions is None else span.repetitions[first:end]
        # Packs are numbered by their first samples, so the batches up to this one need no others.
        needed = max(packs, int(located.pack_of[first:end].max(initial=0))) if located else 0
        labels = catalog.labels_at(span.indices[first:end])
        batch_bytes = (end - first) * (sample_bytes - catalog.label_bytes) + len(labels)
        batch_bytes += len(padding_bytes) + _BATCH_BYTES
        batch_bytes += (needed - packs) * _PACK_NAME_BYTES
        if number and size + batch_bytes + key_bytes > _PAGE_BYTES:
            break
        if batch_bytes + key_bytes > _PAGE_BYTES:
            keys, key_bytes = [], 0
        size, packs = size + batch_bytes + key_bytes, needed
        page.batches.add(
            position=start + number,
            batch_id=batch,
            sample_ids=ids[first * ID_BYTES : end * ID_BYTES],
            labels=labels,
            padding=padding_bytes,
            keys=cast("list[str]", keys),  # protobuf accepts UTF-8
            resident=resident[number],
            failed=failed[number],
            repetitions=b"" if again is None or not again.any() else again.astype("<u4").tobytes(),
            **(_location_fields(located, first, end) if located else {}),
        )
    page.packs.extend(located.packs[:packs] if located else ())
    return page


def samples_from(catalog: Catalog, start: int, *, with_keys: bool) -> pb.Samples:
    """Return labels beginning at ``start``, as many as fit in a reply, with keys if requested.

    The result is empty only at the end of the catalog. Raises ``PlanError`` if ``start`` is beyond it.
    """
    if start > len(catalog):
        raise PlanError(f"the dataset has {len(catalog)} samples, so index {start} does not exist")
    least_bytes = label_dtype_of(catalog.label_dtype).itemsize
    indices = np.arange(start, min(len(catalog), start + max(1, _PAGE_BYTES // least_bytes)))
    ends = np.cumsum(catalog.label_sizes(indices))
    stop = start + min(len(indices), max(1, int(np.searchsorted(ends, _PAGE_BYTES, side="right"))))
    keys = list[bytes]()
    if with_keys:
        some = indices[: min(stop - start, _KEYS_PER_PAGE)]
        names = catalog.names_at(some)
        ends = np.cumsum(catalog.label_sizes(some) + [len(name) + _KEY_BYTES for name in names])
        keys = names[: max(1, int(np.searchsorted(ends, _SAMPLES_BYTES, side="right")))]
        stop = start + len(keys)
    return pb.Samples(
        labels=catalog.labels_at(np.arange(start, stop)),
        bucket=catalog.bucket,
        keys=b"".join(keys),
        key_lengths=np.fromiter(map(len, keys), dtype="<u4", count=len(keys)).tobytes(),
        fingerprint=catalog.fingerprint,
    )


def _counts(flags: NDArray[np.bool_], offsets: NDArray[np.int64]) -> list[int]:
    before = np.zeros(flags.size + 1, dtype=np.int64)
    np.cumsum(flags, out=before[1:])
    counts: list[int] = np.diff(before[offsets]).tolist()
    return counts
