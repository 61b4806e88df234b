"""A batch being read: its record checks, read report and errors."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_wire.cache.resp import is_passing, refusal, wants_credentials
from superdl.super_wire.display import shown
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    CacheUnreachableError,
    ReadTimeoutError,
    RecordError,
    RecordIdError,
    SpendingCapError,
)
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.record import (
    CHANGED_SINCE,
    HEADER_BYTES,
    SPENDING_CAP,
    Header,
    RecordKind,
    Tombstone,
    id_prefixes,
    parse_header,
    read_tombstone,
    verify_payload,
)
from superdl.super_wire.record_kinds import Pointer, array_locations, read_pointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from superdl.super_dataset.reading.buffer import BatchBuffer, SeenRecords
    from superdl.super_wire.batch_ref import BatchRef

# A reply other than a good record.
Other: TypeAlias = Tombstone | Pointer | RecordError

_RECORD, _NIL = int(ReplyKind.RECORD), int(ReplyKind.NIL)
_LISTED_IN_ERRORS = 3
_RELIST = (
    "They were rewritten after they had been listed. Create a new sampler, which lists them again. For "
    "shards, run superdl index again"
)
_REMEDY = 'Repair or remove these objects, or pass on_bad_sample="skip" or "replace" to SuperDataset'
_REASON_CHARACTERS = 600  # a custom step's exception may contain its whole input

# Header bytes that are the same for all samples of one layout: magic to payload length, and shape.
LAYOUT = np.r_[0:16, 24:48]


@dataclass(slots=True)
class Batch:
    """A batch while it is being read, and the result.

    Once ``missing`` is empty, every sample is either in ``buffer`` or, with a reason, in ``bad``.
    """

    ref: BatchRef
    buffer: BatchBuffer
    # Records that this process has hashed before, or None to hash all payloads.
    seen: SeenRecords | None = None
    clock: Callable[[], float] = time.monotonic
    # When to give up, by clock.
    deadline_s: float = math.inf
    # Limit on bytes requested but not received.
    in_flight_bytes: int = 2**24
    # The expected length of a record, if known.
    record_bytes: int | None = None
    # Offsets of the samples to request, ascending.
    missing: list[int] = field(init=False)
    bad: dict[int, str] = field(default_factory=dict)
    # Reasons why the last attempt's records of missing samples failed their checks.
    corrupt: dict[int, str] = field(default_factory=dict)
    # Samples that an answered GET did not find, or found corrupt.
    not_hit: set[int] = field(default_factory=set)
    # Evidence that the last attempt's replies and requests were out of sync, if any.
    astray: str = ""
    # The error that left the last attempt incomplete.
    error: CacheError | None = None
    # Whether the cache rejected the last report for lack of memory.
    out_of_memory: bool = False
    # The last attempt's pointers to missing samples, until they are followed.
    pointers: dict[int, Pointer] = field(default_factory=dict)
    # Samples read from packs, by the plan's locations or by pointers from the first GET.
    straight: int = 0
    straight_bytes: int = 0
    attempts: int = 0
    read_s: float = 0.0
    check_s: float = 0.0
    wait_s: float = 0.0
    size_bytes: int = 0

    def __post_init__(self) -> None:
        self.missing = list(range(self.buffer.size))

    @property
    def hits(self) -> int:
        """Return the number of samples found by the first answered GET."""
        return self.buffer.size - self.straight - len(self.not_hit.union(self.missing))

    def sort_straight(self, done: list[int]) -> dict[int, str]:
        """Check records read from packs. Return the reasons for those that failed, to request them again."""
        buffer = self.buffer
        failed = {
            offset: str(other)
            if isinstance(other, RecordError)
            else f"found a {type(other).__name__.lower()}"
            # All payloads were hashed as they were read.
            for offset, other in check_records(
                buffer, self.ref.sample_ids, np.array(done, dtype=np.intp), None
            ).items()
        }
        for offset in failed:
            buffer.take_back(offset)
        good = [offset for offset in done if offset not in failed] if failed else done
        self.straight += len(good) - len(self.not_hit.intersection(good))
        self.straight_bytes += int(buffer.record_bytes[good].sum())
        whole = len(good) == buffer.size
        self.missing = [] if whole else sorted(set(self.missing).difference(good))
        return failed

    def sort_pointed(self, done: list[int], failed: dict[int, str]) -> dict[int, str]:
        """Check records read by pointers. Return the reasons for those that failed, to produce them again."""
        for offset in self.pointers.keys() - done:
            self.buffer.take_back(offset)
        failed |= self.sort_straight(done)
        pointers = self.pointers
        notes = {
            at: f"the cache points to a record in {pointers[at].pack}: {why}" for at, why in failed.items()
        }
        self.corrupt |= notes
        self.not_hit.update(notes)
        self.pointers = {}
        return notes

    def sort(self) -> None:
        """Sort the missing samples according to the replies to the last attempt.

        Raises:
            CacheError: the cache rejected a request.
            SpendingCapError: a sample would have to be produced, which the spending cap forbids.
        """
        requested, buffer = self.missing, self.buffer
        offsets = np.array(requested, dtype=np.intp)
        replies = buffer.replies[offsets]
        records = offsets[replies == _RECORD]
        whole = len(records) == len(requested)
        self.size_bytes += int(buffer.record_bytes[records].sum())
        self.corrupt, self.pointers, self.astray = {}, {}, ""
        for offset, other in check_records(buffer, self.ref.sample_ids, records, self.seen).items():
            if isinstance(other, Pointer):
                self.pointers[offset] = other
            elif isinstance(other, RecordError):
                self.corrupt[offset] = str(other)
                # Another sample's record means that replies are out of sync.
                self.astray = self.astray or (str(other) if isinstance(other, RecordIdError) else "")
            elif other.reason == SPENDING_CAP:  # no policy applies, since the sample itself is not bad
                raise SpendingCapError(f"{batch_name(self.ref)} is not in the cache: {other.message}")
            else:
                self.bad[offset] = shown(f"{other.reason}: {other.message}", _REASON_CHARACTERS)
        for offset in requested if buffer.errors else ():
            if offset in buffer.errors:
                self._sort_error(offset, buffer.errors.pop(offset))
        if whole and not self.corrupt and not self.pointers:
            self.missing = []
            return
        good = set(records.tolist()).difference(self.corrupt, self.pointers)
        self.missing = [offset for offset in requested if offset not in good]
        self.not_hit.update(offsets[replies == _NIL].tolist(), self.corrupt)

    def _sort_error(self, offset: int, text: str) -> None:
        # A GET never causes such a reply, so something was corrupted or out of sync.
        is_astray = text.startswith("ERR ") and not (is_passing(text) or wants_credentials(text))
        if text.startswith("WRONGTYPE"):
            self.corrupt[offset] = f"the value under this key is not a record: {text}"
        elif is_passing(text) or is_astray:
            self.error = CacheError(f"the cache at {self.ref.cache} replied: {text}")
            self.astray = text if is_astray else self.astray
        else:
            raise refusal(self.ref.cache, text)

    def report(self, *, done: bool) -> ReadReport:
        """Return the read report. Only samples that the cache reported as absent count as misses."""
        ref = self.ref
        return ReadReport(
            rank=ref.rank,
            epoch=ref.epoch,
            position=ref.position,
            samples=self.buffer.size,
            hits=self.hits + self.straight,
            wait_us=int(self.wait_s * 1e6),
            read_us=int(self.read_s * 1e6),
            check_us=int(self.check_s * 1e6),
            size_bytes=self.size_bytes,
            straight=self.straight,
            attempt=self.attempts,
            done=int(done),
            missed=tuple(sorted(self.not_hit.intersection(self.missing))),
            corrupt=tuple(sorted(self.corrupt)),
        )

    def timeout_error(self, waited_s: float, source_reason: str = "") -> CacheError | ReadTimeoutError:
        """Return the error for a timeout. ``source_reason`` explains why the source provides no samples."""
        ref, missing = self.ref, self.missing
        text = (
            f"{batch_name(ref)}: {len(missing)} of {len(ref)} samples are still missing after "
            f"{self.attempts} attempts in {waited_s:.1f} s: {_listed(map(ref.name_of, missing))}. "
        )
        if self.error:
            text += f"The last attempt failed: {self.error}. Check that the cache at {ref.cache} is reachable"
        elif self.corrupt:
            reasons = _listed(sorted(set(self.corrupt.values())))
            text += (
                f"The cache at {ref.cache} contains corrupt records: {reasons}. Check that trainer and "
                "functions have the same SUPER version, and that nothing else writes to this cache"
            )
        elif source_reason:
            text += f"The source does not provide them: {source_reason}. Raise read_timeout to wait longer"
        elif self.out_of_memory:
            text += (
                f"The cache at {ref.cache} is out of memory and rejects writes (OOM). Raise its maxmemory "
                "or remove other data. superdl stats shows how much memory is for records"
            )
        else:
            text += (
                f"The cache at {ref.cache} answers but does not contain them. Check that the coordinator is "
                "running, that functions keep up with the trainer (superdl stats), and that the cache has "
                "room for the batches in flight. Raise read_timeout to wait longer"
            )
        if isinstance(self.error, CacheUnreachableError):
            return CacheUnreachableError(text)
        return CacheError(text) if self.error else ReadTimeoutError(text)


def batch_name(ref: BatchRef) -> str:
    """Return a description of a batch for messages."""
    position = f"position {ref.position} of epoch {ref.epoch}, rank {ref.rank}, job {ref.job}"
    return f"batch {ref.batch_id.hex()} ({position})"


def bad_sample_error(ref: BatchRef, bad: Mapping[int, str], remedy: str = "") -> BadSampleError:
    """Return an error that names the batch and lists its bad samples with their keys and reasons."""
    remedy = remedy or (_RELIST if all(CHANGED_SINCE in reason for reason in bad.values()) else _REMEDY)
    named = _listed(f"{ref.name_of(offset)} ({bad[offset]})" for offset in sorted(bad))
    return BadSampleError(
        f"{batch_name(ref)}: {len(bad)} of {len(ref)} samples cannot be produced: {named}. {remedy}"
    )


def _listed(names: Iterable[str]) -> str:
    all_names = list(names)
    more = len(all_names) - _LISTED_IN_ERRORS
    return ", ".join(all_names[:_LISTED_IN_ERRORS]) + (f" and {more} more" if more > 0 else "")


def check_records(
    buffer: BatchBuffer, sample_ids: bytes, offsets: NDArray[np.intp], seen: SeenRecords | None
) -> dict[int, Other]:
    """Check the records at ``offsets``. Return what arrived in place of good records, by offset.

    ``sample_ids`` are those of all samples in the batch. If ``seen`` is ``None``, all payloads are hashed.
    """
    if not len(offsets):
        return {}
    first = _parsed(buffer, sample_ids, int(offsets[0]))
    unlike = offsets
    if isinstance(first, Header) and first.kind is not RecordKind.ARRAYS:  # their layout is in the payload
        # Compare all headers at once with the first good one, and parse only those that differ.
        layout = buffer.raw_headers[offsets][:, LAYOUT]
        lengths = buffer.record_bytes[offsets]
        alike = (layout == layout[0]).all(axis=1) & (lengths == lengths[0])
        alike &= buffer.headers["id_prefix"][offsets] == id_prefixes(sample_ids)[offsets]
        unlike = offsets[~alike]
    others: dict[int, Other] = {}
    for offset in unlike.tolist():
        parsed = _parsed(buffer, sample_ids, offset)
        if not isinstance(parsed, Header):
            others[offset] = parsed
    if others:
        offsets = np.setdiff1d(offsets, [*others], assume_unique=True)
    return others | _bad_payloads(buffer, sample_ids, offsets, seen)


def _parsed(buffer: BatchBuffer, sample_ids: bytes, offset: int) -> Header | Other:
    """Return the header of a good record, or whatever was received instead."""
    record_bytes = int(buffer.record_bytes[offset])
    sample_id = sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES]
    payload, raw_header = buffer.payload(offset), bytes(buffer.raw_headers[offset])
    try:
        if record_bytes < HEADER_BYTES:
            parse_header(payload)  # raises, since the header is incomplete
        header = parse_header(raw_header, record_bytes=record_bytes, sample_id=sample_id)
        if header.kind is RecordKind.TOMBSTONE:
            return read_tombstone(raw_header + bytes(payload))
        if header.kind is RecordKind.POINTER:
            return read_pointer(raw_header + bytes(payload), sample_id=sample_id)
        if header.kind is RecordKind.ARRAYS:
            array_locations(payload)
    except RecordError as error:
        return error
    return header


def _bad_payloads(
    buffer: BatchBuffer, sample_ids: bytes, offsets: NDArray[np.intp], seen: SeenRecords | None
) -> dict[int, Other]:
    # New payloads and those that are due were hashed on arrival.
    to_hash = buffer.to_hash[offsets]
    hashed, late = offsets[to_hash], offsets[~to_hash]
    if seen is not None and len(late):
        late = seen.unlike(sample_ids, buffer, late)
    differing = hashed[buffer.digests[hashed] != buffer.headers["payload_hash"][hashed]]
    bad: dict[int, Other] = {}
    for offset in (*late.tolist(), *differing.tolist()):
        try:
            verify_payload(parse_header(bytes(buffer.raw_headers[offset])), buffer.payload(offset))
        except RecordError as error:
            bad[offset] = error
    fresh = np.concatenate([hashed, late])
    if seen is not None and len(fresh):
        seen.remember(sample_ids, buffer, np.setdiff1d(fresh, [*bad]) if bad else fresh)
    return bad
