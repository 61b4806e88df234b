"""What is known of one batch while it is read: what is there, bad, corrupt or missing, and the cost.

It sorts what the gather and the packs gave and puts it into words: the read report, the error when time
is up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_dataset.reading.checks import check_records
from superdl.super_wire.cache.refusals import is_passing, refusal, wants_credentials
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    CacheUnreachableError,
    ReadTimeoutError,
    SpendingCapError,
)
from superdl.super_wire.read_report import ReadReport
from superdl.super_wire.record import CHANGED_SINCE, SPENDING_CAP
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_dataset.reading.checks import SeenRecords
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.record_kinds import Pointer

__all__ = ["BatchProgress", "bad_sample_error", "batch_name"]

_NAMED_AT_MOST = 3
_REASON_CHARACTERS = 600  # a step's exception may repeat its whole input
_OF_CHANGED = (
    "They were written again since they were listed: make a new sampler, which lists them; of shards, run "
    "superdl index again"
)
_REMEDY = 'Mend or remove these objects, or pass on_bad_sample="skip" or "replace" to SuperDataset'


@dataclass(slots=True)
class BatchProgress:
    """A batch being read, and at the end what was read.

    Once ``missing`` is empty, every sample is in ``buffer`` or, with the reason, in ``bad``.
    """

    ref: BatchRef
    buffer: BatchBuffer
    seen: SeenRecords | None
    """What this process has hashed before; without it, all payloads are hashed."""
    missing: list[int]
    """Offsets of the samples to be asked for, ascending."""
    bad: dict[int, str] = field(default_factory=dict)
    corrupt: dict[int, str] = field(default_factory=dict)
    """Of the missing, those whose record failed its check at the last attempt, and how."""
    not_hit: set[int] = field(default_factory=set)
    """Samples that some answered GET did not find, or found corrupt."""
    astray: str = ""
    """How it shows that replies and requests of the last attempt were out of step, if they were."""
    trouble: CacheError | None = None
    """What kept the last attempt from being answered in full."""
    out_of_memory: bool = False
    """Whether the cache refused the last report for want of memory."""
    pointers: dict[int, Pointer] = field(default_factory=dict)
    """Of the missing, those for which the last attempt found a pointer that was not followed yet."""
    straight: int = 0
    """Samples whose records were read out of packs, by a place or by a pointer that the first GET found."""
    straight_bytes: int = 0
    attempts: int = 0
    read_s: float = 0.0
    check_s: float = 0.0
    wait_s: float = 0.0
    size_bytes: int = 0

    @property
    def hits(self) -> int:
        """Samples that the first answered GET found."""
        return len(self.ref) - self.straight - len(self.not_hit.union(self.missing))

    def sort_straight(self, came: list[int]) -> dict[int, str]:
        """Check what was read out of packs; why it is not good, by offset. That is still to be asked for."""
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
        whole = len(good) == len(self.ref)
        self.missing = [] if whole else sorted(set(self.missing).difference(good))
        return spoilt

    def sort_pointed(self, came: list[int], failed: dict[int, str]) -> dict[int, str]:
        """The same for what pointers led to; for what is not good, the coordinator is asked for a record."""
        for offset in self.pointers.keys() - came:
            self.buffer.take_back(offset)
        failed |= self.sort_straight(came)
        pointers = self.pointers
        told = {at: f"the cache has a pointer into {pointers[at].pack}: {why}" for at, why in failed.items()}
        self.corrupt |= told
        self.not_hit.update(told)
        self.pointers = {}
        return told

    def sort(self) -> None:
        """Say of each missing sample what the last attempt made of it.

        Raises:
            CacheError: the cache refused.
            SpendingCapError: a sample would have to be produced, for which there is no money.
        """
        asked, buffer = self.missing, self.buffer
        replies = buffer.replies[asked].tolist()
        whole = replies.count(ReplyKind.RECORD) == len(asked)
        records = (
            asked
            if whole
            else [at for at, reply in zip(asked, replies, strict=True) if reply == ReplyKind.RECORD]
        )
        checked = check_records(buffer, self.ref.sample_ids, records, self.seen)
        self.size_bytes += int(buffer.record_bytes[records].sum())
        for offset, stone in checked.tombstones.items():
            if stone.reason == SPENDING_CAP:  # of no policy's concern: the sample itself is not bad
                raise SpendingCapError(f"{batch_name(self.ref)} is not in the cache: {stone.message}")
            self.bad[offset] = shown(f"{stone.reason}: {stone.message}", _REASON_CHARACTERS)
        self.corrupt = {offset: str(error) for offset, error in checked.corrupt.items()}
        self.pointers = checked.pointers
        self.astray = checked.astray
        for offset in asked if buffer.errors else ():
            if offset in buffer.errors:
                self._sort_error(offset, buffer.errors.pop(offset))
        if whole and not self.corrupt and not self.pointers:
            self.missing = []
            return
        good = set(records).difference(self.corrupt, self.pointers)
        self.missing = [offset for offset in asked if offset not in good]
        nil = [offset for offset, reply in zip(asked, replies, strict=True) if reply == ReplyKind.NIL]
        self.not_hit.update(nil, self.corrupt)

    def _sort_error(self, offset: int, text: str) -> None:
        if text.startswith("WRONGTYPE"):
            self.corrupt[offset] = f"the cache holds something else than a record there: {text}"
        elif is_passing(text):
            self.trouble = CacheError(f"the cache at {self.ref.cache} answered: {text}")
        elif text.startswith("ERR ") and not wants_credentials(text):
            # No GET of ours is answered so: on the way, commands or replies were spoilt or fell out of step.
            self.trouble = CacheError(f"the cache at {self.ref.cache} answered: {text}")
            self.astray = text
        else:
            raise refusal(self.ref.cache, text)

    def report(self, *, done: bool) -> ReadReport:
        """What to tell the coordinator. Only what the cache said it lacks counts as missed."""
        ref = self.ref
        return ReadReport(
            rank=ref.rank,
            epoch=ref.epoch,
            position=ref.position,
            samples=len(ref),
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
        """The error for a batch whose time is used up; ``of_source``: why its source gives no samples."""
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
    """How a message names a batch."""
    place = f"position {ref.position} of epoch {ref.epoch}, rank {ref.rank}, job {ref.job}"
    return f"batch {ref.batch_id.hex()} ({place})"


def bad_sample_error(ref: BatchRef, bad: Mapping[int, str], remedy: str = "") -> BadSampleError:
    """The error that names the batch, the bad samples' keys and the reasons."""
    remedy = remedy or (_OF_CHANGED if all(CHANGED_SINCE in reason for reason in bad.values()) else _REMEDY)
    named = _listed(f"{ref.name_of(offset)} ({bad[offset]})" for offset in sorted(bad))
    return BadSampleError(
        f"{batch_name(ref)}: {len(bad)} of {len(ref)} samples cannot be produced: {named}. {remedy}"
    )


def _listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    all_names = list(names)
    more = len(all_names) - _NAMED_AT_MOST
    return ", ".join(all_names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
