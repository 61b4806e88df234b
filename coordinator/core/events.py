"""The core's input events and output actions. Indices are int64 positions in the catalog."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.coordinator.core.settings import NO_TEAM
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.core.plan import Plan
    from superdl.coordinator.core.queues import BatchPlace, CursorSpan
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.settings import DatasetFacts, Team
    from superdl.super_wire.read_reports import ReadReport

__all__ = [
    "CACHED",
    "OUTCOME_ORDER",
    "TOMBSTONE",
    "Action",
    "Audit",
    "Audited",
    "BatchRead",
    "BatchesRequested",
    "CacheEvicted",
    "CacheGrew",
    "CacheReset",
    "CacheResized",
    "Drop",
    "Event",
    "ExecutorResized",
    "ExecutorsIneligible",
    "FailureKind",
    "FillUp",
    "JobClosed",
    "JobOpened",
    "PacksLost",
    "Prefetch",
    "ReadBack",
    "RecordReadBack",
    "RecordsStored",
    "RequestDone",
    "RequestFailed",
    "TeamsChanged",
    "Tick",
    "Warn",
    "WriteTombstones",
]

OUTCOME_ORDER: tuple[Outcome, ...] = tuple(Outcome)  # outcomes in the order of their numeric codes
CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
TOMBSTONE = OUTCOME_ORDER.index(Outcome.TOMBSTONE)


class Event:
    """Base class of all events."""

    __slots__ = ()


class Action:
    """Base class of all actions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JobOpened(Event):
    """A rank of a job connected or reconnected."""

    job: str
    dataset: DatasetFacts
    plan: Plan
    rank: int
    # Where a new rank starts to look ahead.
    epoch: int = 0
    position: int = 0
    # Numbers of the executors that cannot produce the dataset.
    ineligible: frozenset[int] = frozenset()
    team: str = NO_TEAM


@dataclass(frozen=True, slots=True)
class TeamsChanged(Event):
    """The limits of some teams changed. Teams that are not listed keep their limits."""

    teams: tuple[Team, ...]


@dataclass(frozen=True, slots=True)
class JobClosed(Event):
    """A rank of a job closed."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class FillUp(Event):
    """Fill the cache or store with a job's samples, in first-epoch order, up to a given size and cost.

    Renews the job's lease.
    """

    job: str
    size_bytes: float = math.inf
    usd: float = math.inf
    to_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchesRequested(Event):
    """A sampler requested batches [start, stop) of an epoch, having yielded all before ``yielded``."""

    job: str
    rank: int
    epoch: int
    start: int
    stop: int
    yielded: int
    # Whether the rank's readers read directly from the store.
    sees_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchRead(Event):
    """A reader reported a finished batch or missing samples."""

    job: str
    report: ReadReport


@dataclass(frozen=True, slots=True)
class RequestDone(Event):
    """A function returned a result. Arrays have one entry per sample, in request order."""

    request_id: int
    # Indices into OUTCOME_ORDER.
    outcomes: NDArray[np.uint8]
    record_bytes: Ints
    source_bytes: int
    fetch_us: int
    decode_us: int
    push_us: int
    # Error messages by offset in the request.
    messages: dict[int, str] = field(default_factory=dict)
    # Duration measured by the function.
    duration_us: int = 0
    # Billed time multiplied by memory.
    gb_s: float = 0.0
    source_requests: int = 0
    cold_start: bool = False
    # Number of the pack that the function wrote, or 0.
    pack: int = 0
    # Masks of the samples in the pack, and of those the cache holds as pointers.
    stored: Bools | None = None
    pointers: Bools | None = None
    # Error message of the store, or an empty string.
    store_trouble: str = ""
    store_requests: int = 0
    store_bytes: int = 0


class FailureKind(enum.Enum):
    """Reasons why an entire request failed."""

    CRASHED = "the function's process ended"
    TIMED_OUT = "the function did not respond in time"
    RAISED = "the function raised an error"
    THROTTLED = "the executor accepts no more requests for now"
    UNAVAILABLE = "the executor could not be reached"


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """A request failed."""

    request_id: int
    kind: FailureKind
    message: str
    # Billed despite the failure.
    gb_s: float = 0.0
    # True if no function ran, so nothing is billed.
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Audited(Event):
    """An audit's lengths in bytes: 0 if missing, negative for a tombstone. ``pointers`` is a mask."""

    audit_id: int
    record_bytes: Ints
    pointers: Bools | None = None


@dataclass(frozen=True, slots=True)
class RecordReadBack(Event):
    """A new record was read back. ``fault`` describes any corruption found, or is empty."""

    samples: SetKey
    index: int
    executor: int
    fault: str


@dataclass(frozen=True, slots=True)
class CacheReset(Event):
    """The cache was restarted or flushed, and is now empty."""


@dataclass(frozen=True, slots=True)
class CacheEvicted(Event):
    """The server evicted records on its own. It is unknown which ones."""


@dataclass(frozen=True, slots=True)
class CacheGrew(Event):
    """The server uses ``excess_bytes`` more memory than the core accounts for."""

    excess_bytes: int


@dataclass(frozen=True, slots=True)
class CacheResized(Event):
    """The servers reported the memory available for records. Sent after every check."""

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorResized(Event):
    """An executor's maximum number of concurrent requests changed."""

    capacity: int
    # Additional requests that may queue to keep functions busy. None means as many as capacity.
    backlog: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorsIneligible(Event):
    """These executors cannot access a dataset's source. At least one other executor can."""

    dataset: bytes
    executors: frozenset[int]


@dataclass(frozen=True, slots=True)
class RecordsStored(Event):
    """Samples are in the store, in the packs with these numbers (uint32, never 0).

    Replaces any previous locations. Arrives with or after the dataset's :class:`JobOpened`.
    """

    dataset: bytes
    indices: Ints
    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PacksLost(Event):
    """Packs are missing or unusable."""

    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed; see :attr:`superdl.coordinator.core.Core.wake_at_s`."""


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """Send a request to an executor. Followed by ``RequestDone`` or ``RequestFailed``."""

    request_id: int
    job: str
    samples: SetKey
    indices: Ints
    # Time in seconds within which a function must start.
    expires_in_s: float
    # For a restore, all locations in the store are known.
    kind: RequestKind = RequestKind.DECODE
    # Number of the request in flight that this one races.
    hedge_of: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class Audit(Action):
    """Check which samples are cached. Followed by ``Audited``."""

    audit_id: int
    samples: SetKey
    indices: Ints
    # Verify whole records, because a reader reported corruption.
    whole: bool
    # The batch that a reader is waiting for, or the batches that a rank looks ahead to.
    requester: BatchPlace | CursorSpan


@dataclass(frozen=True, slots=True)
class Drop(Action):
    """Delete records. No event follows."""

    samples: SetKey
    indices: Ints


@dataclass(frozen=True, slots=True)
class WriteTombstones(Action):
    """Write expiring tombstones. No event follows."""

    samples: SetKey
    indices: Ints
    messages: tuple[str, ...]
    expires_in_s: float
    reason: str = "retries_spent"


@dataclass(frozen=True, slots=True)
class ReadBack(Action):
    """Verify a new record. Followed by ``RecordReadBack``, unless the record is missing."""

    samples: SetKey
    index: int
    executor: int


@dataclass(frozen=True, slots=True)
class Warn(Action):
    """Log a warning. No event follows."""

    message: str
