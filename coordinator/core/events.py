"""Events that happen to the core, and actions that it requests: frozen, with arrays for samples.

Pass an event to :meth:`superdl.coordinator.core.Core.handle` with the time. The runtime carries out the
returned actions, and answers those that expect an answer with events. ``indices`` are int64 arrays of places
in the catalog.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.coordinator.core.teams import NO_TEAM
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.core.plan import Plan
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.settings import DatasetFacts
    from superdl.coordinator.core.teams import Team

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
    """Base class of everything that can happen."""

    __slots__ = ()


class Action:
    """Base class of everything that the core can request."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JobOpened(Event):
    """A rank of a job connected; sent for every rank, and again on every reconnect.

    A new rank starts at ``epoch`` and ``position``, so looking ahead starts there. ``ineligible`` executors,
    by number, cannot produce the dataset; later changes come as :class:`ExecutorsIneligible`.
    """

    job: str
    dataset: DatasetFacts
    plan: Plan
    rank: int
    epoch: int = 0
    position: int = 0
    ineligible: frozenset[int] = frozenset()
    team: str = NO_TEAM


@dataclass(frozen=True, slots=True)
class TeamsChanged(Event):
    """New budgets and shares of teams; teams that are not listed keep theirs."""

    teams: tuple[Team, ...]


@dataclass(frozen=True, slots=True)
class JobClosed(Event):
    """A rank of a job closed."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class FillUp(Event):
    """Fill with a job's samples, in its first epoch's order, up to a size and cost. Repeats renew the job's
    lease.
    """

    job: str
    size_bytes: float = math.inf
    usd: float = math.inf
    to_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchesAsked(Event):
    """A sampler requested batches [start, stop) of an epoch; it has yielded all before ``yielded``.

    ``sees_store``: its readers read records directly from the store.
    """

    job: str
    rank: int
    epoch: int
    start: int
    stop: int
    yielded: int
    sees_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchRead(Event):
    """A read report: the samples of a batch that a reader got, and those it still misses (offsets in the
    batch).

    ``straight`` of its samples came directly from the store.
    """

    job: str
    rank: int
    epoch: int
    position: int
    samples: int
    hits: int
    missed: Ints
    corrupt: Ints
    done: bool
    read_us: int
    wait_us: int
    size_bytes: int = 0
    straight: int = 0


@dataclass(frozen=True, slots=True)
class RequestDone(Event):
    """A function's answer, with an entry for each sample of the request, in its order.

    ``outcomes`` are places in :data:`OUTCOME_ORDER`; times are in microseconds, lengths in bytes;
    ``messages`` are keyed by offset. ``duration_us`` is the function's own time, ``gb_s`` the billed time
    multiplied by its memory; ``source_requests`` are GETs.

    ``pack`` is the number of the pack that the function wrote, 0 for none; ``stored`` marks the samples in
    it, ``pointers`` those for which the cache holds a pointer. ``store_trouble`` is the reason if the store
    failed to take or return records; ``store_requests`` are GETs and PUTs, ``store_bytes`` bytes read or
    written.
    """

    request_id: int
    outcomes: NDArray[np.uint8]
    record_bytes: Ints
    source_bytes: int
    fetch_us: int
    decode_us: int
    push_us: int
    messages: dict[int, str] = field(default_factory=dict)
    duration_us: int = 0
    gb_s: float = 0.0
    source_requests: int = 0
    cold_start: bool = False
    pack: int = 0
    stored: Bools | None = None
    pointers: Bools | None = None
    store_trouble: str = ""
    store_requests: int = 0
    store_bytes: int = 0


class FailureKind(enum.Enum):
    """The ways in which a whole request can fail."""

    CRASHED = "the function's process ended"
    TIMED_OUT = "the function did not answer in time"
    LOST = "no answer came back"
    RAISED = "the function raised"
    THROTTLED = "the executor takes no more requests now"
    UNAVAILABLE = "the executor could not be reached"


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """A request failed. ``gb_s`` are billed all the same, and so is the invocation, unless it was ``refused``
    before a function ran.
    """

    request_id: int
    kind: FailureKind
    message: str
    gb_s: float = 0.0
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Audited(Event):
    """Record lengths in the cache, in bytes: 0 for none, negative for a tombstone; ``pointers``."""

    audit_id: int
    record_bytes: Ints
    pointers: Bools | None = None


@dataclass(frozen=True, slots=True)
class RecordReadBack(Event):
    """A freshly written record was read back; ``fault``: what is wrong with it, if anything."""

    samples: SetKey
    index: int
    executor: int
    fault: str


@dataclass(frozen=True, slots=True)
class CacheReset(Event):
    """The cache restarted or was emptied: all that was known about it is void."""


@dataclass(frozen=True, slots=True)
class CacheEvicted(Event):
    """The server evicted records on its own; which ones is unknown."""


@dataclass(frozen=True, slots=True)
class CacheGrew(Event):
    """The server uses more memory than accounted for: ``excess_bytes`` over the budget."""

    excess_bytes: int


@dataclass(frozen=True, slots=True)
class CacheResized(Event):
    """The memory that records may take now, as the servers report it; sent after every check."""

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorResized(Event):
    """A change in how many concurrent requests an executor, by its number, takes.

    It takes ``burst`` of them right away (all, if ``None``), and ``per_s`` more each second, as AWS Lambda
    adds environments. ``backlog`` more may wait there for a free function (as many as ``capacity``, if
    ``None``), so that none idles between two. ``queues``: requests that come too soon are not refused but
    start late, or are silently dropped.
    """

    capacity: int
    burst: int | None = None
    per_s: float = math.inf
    backlog: int | None = None
    queues: bool = False
    executor: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorsIneligible(Event):
    """These executors, by number, cannot produce a dataset's samples: they see no files of this machine, or
    may not read the source. At least one other can.
    """

    dataset: bytes
    executors: frozenset[int]


@dataclass(frozen=True, slots=True)
class RecordsStored(Event):
    """These samples of a dataset are in the store, in packs of these numbers (uint32, none is 0).

    The dataset is known: its :class:`JobOpened` comes before the event, or together with it. It replaces the
    previous places of these samples.
    """

    dataset: bytes
    indices: Ints
    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PacksLost(Event):
    """These packs are gone or unusable: no sample is there any more."""

    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed; see :attr:`superdl.coordinator.core.Core.wake_at_s`."""


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """Request these samples from a function; answered by ``RequestDone`` or ``RequestFailed``.

    ``expires_in_s`` counts from now: a function does not start the request after that. ``hedge_of`` names a
    request in flight for the same samples, which this one races; ``executor`` is the number of the executor
    to use. For a restore, all places in the store are known.
    """

    request_id: int
    job: str
    samples: SetKey
    indices: Ints
    expires_in_s: float
    kind: RequestKind = RequestKind.DECODE
    hedge_of: int | None = None
    executor: int = 0


@dataclass(frozen=True, slots=True)
class Audit(Action):
    """Ask the cache whether it holds these samples; answered by ``Audited``.

    ``whole``: read and check each entire record, since a reader reported it as corrupt.
    """

    audit_id: int
    samples: SetKey
    indices: Ints
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Drop(Action):
    """Delete these samples' records; not answered."""

    samples: SetKey
    indices: Ints


@dataclass(frozen=True, slots=True)
class WriteTombstones(Action):
    """Write tombstones that expire, for ``reason``; not answered."""

    samples: SetKey
    indices: Ints
    messages: tuple[str, ...]
    expires_in_s: float
    reason: str = "retries_spent"


@dataclass(frozen=True, slots=True)
class ReadBack(Action):
    """Read and check a freshly written record; answered by ``RecordReadBack``, or not at all if it is
    missing.
    """

    samples: SetKey
    index: int
    executor: int


@dataclass(frozen=True, slots=True)
class Warn(Action):
    """Log a warning; not answered."""

    message: str
