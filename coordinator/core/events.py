"""Events that the core handles, and actions that it requests. Indices are int64 positions in the catalog."""

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
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.settings import DatasetFacts, Team
    from superdl.super_wire.stream_entries import ReadReport

__all__ = [
    "CACHED",
    "OUTCOME_ORDER",
    "TOMBSTONE",
    "Action",
    "Audit",
    "Audited",
    "BatchRead",
    "BatchesAsked",
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
    """Base class of all actions that the core can request."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JobOpened(Event):
    """A rank of a job connected. This is sent for every rank, and again on every reconnection."""

    job: str
    dataset: DatasetFacts
    plan: Plan
    rank: int
    # The position from which a new rank looks ahead.
    epoch: int = 0
    position: int = 0
    # Numbers of the executors that cannot produce the dataset.
    # ExecutorsIneligible reports changes.
    ineligible: frozenset[int] = frozenset()
    team: str = NO_TEAM


@dataclass(frozen=True, slots=True)
class TeamsChanged(Event):
    """New budgets and shares of teams. Teams that are not listed keep theirs."""

    teams: tuple[Team, ...]


@dataclass(frozen=True, slots=True)
class JobClosed(Event):
    """A rank of a job closed."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class FillUp(Event):
    """Fill with a job's samples, in the order of its first epoch, up to a size and cost. Renews the lease."""

    job: str
    size_bytes: float = math.inf
    usd: float = math.inf
    to_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchesAsked(Event):
    """A sampler requested batches [start, stop) of an epoch, and has yielded all those before ``yielded``."""

    job: str
    rank: int
    epoch: int
    start: int
    stop: int
    yielded: int
    # Whether its readers read records directly from the store.
    sees_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchRead(Event):
    """A report of one of the job's readers."""

    job: str
    report: ReadReport


@dataclass(frozen=True, slots=True)
class RequestDone(Event):
    """The result of a function, with an entry for each sample, in the order of the request."""

    request_id: int
    # Indices into OUTCOME_ORDER.
    outcomes: NDArray[np.uint8]
    record_bytes: Ints
    source_bytes: int
    fetch_us: int
    decode_us: int
    push_us: int
    # By offset in the request.
    messages: dict[int, str] = field(default_factory=dict)
    # Duration measured by the function.
    duration_us: int = 0
    # The billed time multiplied by its memory.
    gb_s: float = 0.0
    # Number of GETs.
    source_requests: int = 0
    cold_start: bool = False
    # Number of the pack that the function wrote, or 0 if it wrote none.
    pack: int = 0
    # Masks of the samples in the pack, and of those for which the cache holds a pointer.
    stored: Bools | None = None
    pointers: Bools | None = None
    # Why the store failed to write or return records, if it did.
    store_trouble: str = ""
    # Number of GETs and PUTs, and of bytes read or written.
    store_requests: int = 0
    store_bytes: int = 0


class FailureKind(enum.Enum):
    """The ways in which a whole request can fail."""

    CRASHED = "the function's process ended"
    TIMED_OUT = "the function did not answer in time"
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
    # True if no function ran, so that the invocation is not billed.
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Audited(Event):
    """Lengths of cached records in bytes: 0 for none, negative for a tombstone. ``pointers`` is a mask."""

    audit_id: int
    record_bytes: Ints
    pointers: Bools | None = None


@dataclass(frozen=True, slots=True)
class RecordReadBack(Event):
    """A newly written record was read back. ``fault`` describes the corruption, if any."""

    samples: SetKey
    index: int
    executor: int
    fault: str


@dataclass(frozen=True, slots=True)
class CacheReset(Event):
    """The cache restarted or was emptied, so all knowledge of its contents is invalid."""


@dataclass(frozen=True, slots=True)
class CacheEvicted(Event):
    """The server evicted some records on its own. It is unknown which."""


@dataclass(frozen=True, slots=True)
class CacheGrew(Event):
    """The server uses more memory than accounted for, ``excess_bytes`` above the budget."""

    excess_bytes: int


@dataclass(frozen=True, slots=True)
class CacheResized(Event):
    """The memory that records may take now, reported by the servers. Sent after every check."""

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorResized(Event):
    """The number of concurrent requests that an executor accepts has changed."""

    capacity: int
    # Requests accepted immediately (all if None), and per_s more each second,
    # like AWS Lambda adds environments.
    burst: int | None = None
    per_s: float = math.inf
    # Additional requests that may queue, so that functions do not idle in between.
    # None means as many as capacity.
    backlog: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorsIneligible(Event):
    """Executors, given by number, that cannot produce a dataset's samples. At least one other can."""

    # They cannot access this machine's files, or may not read the source.
    dataset: bytes
    executors: frozenset[int]


@dataclass(frozen=True, slots=True)
class RecordsStored(Event):
    """These samples of a dataset are in the store, in packs with these numbers (uint32, never 0).

    Replaces their previous locations. Arrives after the dataset's :class:`JobOpened`,
    or together with it.
    """

    dataset: bytes
    indices: Ints
    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PacksLost(Event):
    """These packs are missing or unusable, so no sample is stored in them any more."""

    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; see :attr:`superdl.coordinator.core.Core.wake_at_s`."""


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """Request these samples from a function. Followed by ``RequestDone`` or ``RequestFailed``."""

    request_id: int
    job: str
    samples: SetKey
    indices: Ints
    # Seconds from now, after which a function does not start the request.
    expires_in_s: float
    # For a restore, all locations in the store are known.
    kind: RequestKind = RequestKind.DECODE
    # Number of a request in flight for the same samples, which this request races.
    hedge_of: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class Audit(Action):
    """Check which of these samples the cache contains. Followed by ``Audited``."""

    audit_id: int
    samples: SetKey
    indices: Ints
    # Read and check whole records, because a reader reported them as corrupt.
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Drop(Action):
    """Delete the records of these samples. No event follows."""

    samples: SetKey
    indices: Ints


@dataclass(frozen=True, slots=True)
class WriteTombstones(Action):
    """Write tombstones with ``reason`` that expire. No event follows."""

    samples: SetKey
    indices: Ints
    messages: tuple[str, ...]
    expires_in_s: float
    reason: str = "retries_spent"


@dataclass(frozen=True, slots=True)
class ReadBack(Action):
    """Read and check a newly written record. Followed by ``RecordReadBack``, unless the record is missing."""

    samples: SetKey
    index: int
    executor: int


@dataclass(frozen=True, slots=True)
class Warn(Action):
    """Log a warning. No event follows."""

    message: str
