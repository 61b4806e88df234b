"""One batch while it is read, its report, and the errors that name it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_dataset.reading.checks import check_records
from superdl.super_wire.cache.resp import is_passing, refusal, wants_credentials
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    CacheUnreachableError,
    ReadTimeoutError,
    SpendingCapError,
)
from superdl.super_wire.record import CHANGED_SINCE, SPENDING_CAP
from superdl.super_wire.redaction import shown
from superdl.super_wire.stream_entries import ReadReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_dataset.reading.checks import SeenRecords
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.record_kinds import Pointer

_RECORD, _NIL = int(ReplyKind.RECORD), int(ReplyKind.NIL)
_NAMED_AT_MOST = 3
_REASON_CHARACTERS = 600  # a step's exception may repeat its whole input
_OF_CHANGED = (
    "They were written again since they were listed: make a new sampler, which lists them; of shards, run "
    "superdl index again"
)
_REMEDY = 'Mend or remove these objects, or pass on_bad_sample="skip" or "replace" to SuperDataset'


@dataclass(slots=True)
class Batch:
    """A batch being read, and finally the result.

    Once ``missing`` is empty, every sample is in ``buffer`` or, with the reason, in ``bad``.
    """

    ref: BatchRef
    buffer: BatchBuffer
    # Records that this process has hashed before; without it, all payloads are hashed.
    seen: SeenRecords | None = None
    clock: Callable[[], float] = time.monotonic
    # When to give up, on clock.
    deadline_s: float = math.inf
    # Bound on replies that are requested but not received.
    in_flight_bytes: int = 2**24
    # The expected length of a record, if known.
    record_bytes: int | None = None
    # The cache keys of all samples, once one is requested.
    keys: Sequence[bytes] = ()
    # Offsets of the samples to request, ascending.
    missing: list[int] = field(init=False)
    bad: dict[int, str] = field(default_factory=dict)
    # The reason for each missing sample whose record failed its check at the last attempt.
    corrupt: dict[int, str] = field(default_factory=dict)
    # Samples that an answered GET did not find, or found corrupt.
    not_hit: set[int] = field(default_factory=set)
    # Evidence that replies and requests of the last attempt were out of step, if any.
    astray: str = ""
    # The error that kept the last attempt from being answered in full.
    trouble: CacheError | None = None
    # Whether the cache refused the last report for lack of memory.
    out_of_memory: bool = False
    # Pointers to missing samples, found by the last attempt and not followed yet.
    pointers: dict[int, Pointer] = field(default_factory=dict)
    # Samples read from packs, by a place or by a pointer that the first GET found.
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
        """Return the number of samples that the first answered GET found."""
        return self.buffer.size - self.straight - len(self.not_hit.union(self.missing))

    def sort_straight(self, came: list[int]) -> dict[int, str]:
        """Check records from packs; return failures with reasons, still to be requested."""
        buffer = self.buffer
        checked = check_records(buffer, self.ref.sample_ids, came, None)  # each has been hashed
        spoilt = {offset: str(error) for offset, error in checked.corrupt.items()}
        spoilt |= dict.fromkeys(checked.tombstones, "it is a tombstone")
        spoilt |= dict.fromkeys(checked.pointers, "it is a pointer")
        for offset in spoilt:
            buffer.take_back(offset)
        good = [offset for offset in came if offset not in spoilt] if spoilt else came
        self.straight += len(good) - len(self.not_hit.intersection(good))
        self.straight_bytes += int(buffer.record_bytes[good].sum())
        whole = len(good) == buffer.size
        self.missing = [] if whole else sorted(set(self.missing).difference(good))
        return spoilt

    def sort_pointed(self, came: list[int], failed: dict[int, str]) -> dict[int, str]:
        """Check records read by pointers; the coordinator must produce those that fail."""
        for offset in self.pointers.keys() - came:
            self.buffer.take_back(offset)
        failed |= self.sort_straight(came)
        pointers = self.pointers
        notes = {at: f"the cache has a pointer into {pointers[at].pack}: {why}" for at, why in failed.items()}
        self.corrupt |= notes
        self.not_hit.update(notes)
        self.pointers = {}
        return notes

    def sort(self) -> None:
        """Sort the missing samples by the result of the last attempt.

        Raises:
            CacheError: the cache refused.
            SpendingCapError: a sample would have to be produced, which the spending cap forbids.
        """
        requested, buffer = self.missing, self.buffer
        replies = dict(zip(requested, buffer.replies[requested].tolist(), strict=True))
        records = [offset for offset, reply in replies.items() if reply == _RECORD]
        whole = len(records) == len(requested)
        checked = check_records(buffer, self.ref.sample_ids, records, self.seen)
        self.size_bytes += int(buffer.record_bytes[records].sum())
        for offset, stone in checked.tombstones.items():
            if stone.reason == SPENDING_CAP:  # no policy applies: the sample itself is not bad
                raise SpendingCapError(f"{batch_name(self.ref)} is not in the cache: {stone.message}")
            self.bad[offset] = shown(f"{stone.reason}: {stone.message}", _REASON_CHARACTERS)
        self.corrupt = {offset: str(error) for offset, error in checked.corrupt.items()}
        self.pointers = checked.pointers
        self.astray = checked.astray
        for offset in requested if buffer.errors else ():
            if offset in buffer.errors:
                self._sort_error(offset, buffer.errors.pop(offset))
        if whole and not self.corrupt and not self.pointers:
            self.missing = []
            return
        good = set(records).difference(self.corrupt, self.pointers)
        self.missing = [offset for offset in requested if offset not in good]
        self.not_hit.update(offset for offset, reply in replies.items() if reply == _NIL)
        self.not_hit.update(self.corrupt)

    def _sort_error(self, offset: int, text: str) -> None:
        # No GET gets such a reply: something was corrupted or out of step.
        is_astray = text.startswith("ERR ") and not (is_passing(text) or wants_credentials(text))
        if text.startswith("WRONGTYPE"):
            self.corrupt[offset] = f"the cache holds something else than a record there: {text}"
        elif is_passing(text) or is_astray:
            self.trouble = CacheError(f"the cache at {self.ref.cache} answered: {text}")
            self.astray = text if is_astray else self.astray
        else:
            raise refusal(self.ref.cache, text)

    def report(self, *, done: bool) -> ReadReport:
        """Return the report; only samples reported absent are misses."""
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
            missed=tuple(offset for offset in self.missing if offset in self.not_hit),
            corrupt=tuple(sorted(self.corrupt)),
        )

    def timeout_error(self, waited_s: float, of_source: str = "") -> CacheError | ReadTimeoutError:
        """Return the error of a timeout; ``of_source``: why its source has no samples."""
        ref, missing = self.ref, self.missing
        text = (
            f"{batch_name(ref)}: {len(missing)} of {len(ref)} samples are still missing after "
            f"{self.attempts} attempts in {waited_s:.1f} s: {_listed(map(ref.name_of, missing))}. "
        )
        if self.trouble:
            text += f"The last attempt failed: {self.trouble}. Is the cache at {ref.cache} reachable?"
        elif self.corrupt:
            reasons = _listed(sorted(set(self.corrupt.values())))
            text += (
                f"The cache at {ref.cache} holds corrupt records: {reasons}. Do trainer and functions have "
                "one version of SUPER, and does nobody else write to this cache?"
            )
        elif of_source:
            text += f"Their source does not give them: {of_source}. A longer read_timeout waits longer"
        elif self.out_of_memory:
            text += (
                f"The cache at {ref.cache} is out of memory: it refuses to write (OOM). Raise its maxmemory, "
                "or empty it of what others have put there; superdl stats says how much is for records"
            )
        else:
            text += (
                f"The cache at {ref.cache} answers but does not hold them. Is the coordinator running? Are "
                "its functions slower than the trainer (superdl stats), or is the cache too small for the "
                "batches in flight? A longer read_timeout waits longer"
            )
        if isinstance(self.trouble, CacheUnreachableError):
            return CacheUnreachableError(text)
        return CacheError(text) if self.trouble else ReadTimeoutError(text)


def batch_name(ref: BatchRef) -> str:
    """Return the description of a batch for messages."""
    place = f"position {ref.position} of epoch {ref.epoch}, rank {ref.rank}, job {ref.job}"
    return f"batch {ref.batch_id.hex()} ({place})"


def bad_sample_error(ref: BatchRef, bad: Mapping[int, str], remedy: str = "") -> BadSampleError:
    """Return the error that names the batch, the bad samples' keys and the reasons."""
    remedy = remedy or (_OF_CHANGED if all(CHANGED_SINCE in reason for reason in bad.values()) else _REMEDY)
    named = _listed(f"{ref.name_of(offset)} ({bad[offset]})" for offset in sorted(bad))
    return BadSampleError(
        f"{batch_name(ref)}: {len(bad)} of {len(ref)} samples cannot be produced: {named}. {remedy}"
    )


def _listed(names: Iterable[str]) -> str:
    all_names = list(names)
    more = len(all_names) - _NAMED_AT_MOST
    return ", ".join(all_names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
