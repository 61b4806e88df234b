"""What can happen to the core, and what it wants done: frozen, array-valued where they speak of samples.

An event is handed to :meth:`superdl.coordinator.core.Core.handle` with the time. The runtime carries out the
actions that come back, and answers those that ask with events. ``indices`` are int64 arrays of places in the
catalog.
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

OUTCOME_ORDER: tuple[Outcome, ...] = tuple(Outcome)
"""Outcomes as small numbers: their places in this tuple."""

CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
TOMBSTONE = OUTCOME_ORDER.index(Outcome.TOMBSTONE)


class Event:
    """Something that has happened."""

    __slots__ = ()


class Action:
    """Something that the core wants done."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JobOpened(Event):
    """A rank of a job is there; again for every rank, and again whenever one reconnects.

    ``epoch`` and ``position`` say where a new rank will begin, so that looking ahead begins there.
    ``ineligible`` executors, by number, cannot produce the dataset; :class:`ExecutorsIneligible` tells of
    later changes.
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
    """What teams may have; one that is not named keeps what it had."""

    teams: tuple[Team, ...]


@dataclass(frozen=True, slots=True)
class JobClosed(Event):
    """A rank of a job has said goodbye."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class FillUp(Event):
    """Bring a job's samples, in its first epoch's order and up to a size and cost. Again: a sign of life."""

    job: str
    size_bytes: float = math.inf
    usd: float = math.inf
    to_store: bool = False


@dataclass(frozen=True, slots=True)
class BatchesAsked(Event):
    """A sampler asked for batches [start, stop) of an epoch; it has given out all before ``yielded``.

    ``sees_store``: its readers read records straight out of the store.
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
    """A read report: what a reader found of a batch, and what it still misses (offsets in the batch).

    ``straight`` of its samples came straight out of the store.
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
    """A function answered: one entry for each sample of the request, in its order.

    ``outcomes`` are places in :data:`OUTCOME_ORDER`; times in microseconds, lengths in bytes; ``messages`` by
    offset. ``duration_us`` is the time that the function itself took, ``gb_s`` what of it is billed, times
    its memory; ``source_requests`` are GETs.

    ``pack`` is the number of the pack that the function wrote, 0 for none, ``stored`` which of the samples
    are in it, ``pointers`` which the cache has a pointer for. ``store_trouble`` says why the store did not
    take or give what it should have; ``store_requests`` are GETs and PUTs, ``store_bytes`` read or written.
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
    """How a whole request failed."""

    CRASHED = "the function's process ended"
    TIMED_OUT = "the function did not answer in time"
    LOST = "no answer came back"
    RAISED = "the function raised"
    THROTTLED = "the executor takes no more requests now"
    UNAVAILABLE = "the executor could not be reached"


@dataclass(frozen=True, slots=True)
class RequestFailed(Event):
    """A request came to nothing; ``gb_s`` are billed all the same, and so is the invocation, unless it was
    ``refused`` before a function was asked.
    """

    request_id: int
    kind: FailureKind
    message: str
    gb_s: float = 0.0
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Audited(Event):
    """What the cache holds: record length in bytes, 0 for none, negative for a tombstone; ``pointers``."""

    audit_id: int
    record_bytes: Ints
    pointers: Bools | None = None


@dataclass(frozen=True, slots=True)
class RecordReadBack(Event):
    """A record that an executor had just written was read; ``fault`` says what is wrong with it, if anything
    is.
    """

    samples: SetKey
    index: int
    executor: int
    fault: str


@dataclass(frozen=True, slots=True)
class CacheReset(Event):
    """The cache was seen to have restarted or been emptied: nothing is believed of it any more."""


@dataclass(frozen=True, slots=True)
class CacheEvicted(Event):
    """The server has dropped records of its own accord, nobody knows which."""


@dataclass(frozen=True, slots=True)
class CacheGrew(Event):
    """The server's memory exceeds what the core accounts for, by ``excess_bytes`` over the budget."""

    excess_bytes: int


@dataclass(frozen=True, slots=True)
class CacheResized(Event):
    """What of the cache's memory records may take now, as the servers say: after every look at them."""

    budget_bytes: int


@dataclass(frozen=True, slots=True)
class ExecutorResized(Event):
    """How many requests an executor, by its number, takes at once: ``burst`` of them right away (all, if it
    is ``None``), and ``per_s`` more each second, as AWS Lambda adds environments. ``backlog`` more may wait
    there for a free function (as many as ``capacity``, if it is ``None``), so that none idles between two.
    ``queues``: what comes too soon is not refused but begun late, or dropped without a word.
    """

    capacity: int
    burst: int | None = None
    per_s: float = math.inf
    backlog: int | None = None
    queues: bool = False
    executor: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorsIneligible(Event):
    """These executors, by number, cannot produce the samples of a dataset: they see no files of this machine,
    or may not read the source. There is another that can.
    """

    dataset: bytes
    executors: frozenset[int]


@dataclass(frozen=True, slots=True)
class RecordsStored(Event):
    """These samples of a dataset lie in the store, in packs of these numbers (uint32, none is 0).

    The dataset is known: the event comes with or after its :class:`JobOpened`. It replaces what was known of
    these samples' places.
    """

    dataset: bytes
    indices: Ints
    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class PacksLost(Event):
    """These packs are gone, or of no use: nothing lies there any more."""

    packs: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time has passed; see :attr:`superdl.coordinator.core.Core.wake_at_s`."""


@dataclass(frozen=True, slots=True)
class Prefetch(Action):
    """Ask a function for these samples; answered by ``RequestDone`` or ``RequestFailed``.

    ``expires_in_s`` counts from now: what has not been begun by then is not begun. ``hedge_of`` names a
    request in flight for the same samples, which this one races; ``executor`` is the number of the one that
    is to carry it out. Of a restore all places in the store are known.
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

    ``whole``: read each record to its end and check it, since a reader says that it is spoilt.
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
    """Read a record that an executor has just written, and check it; answered by ``RecordReadBack``, or not
    at all where it is not there.
    """

    samples: SetKey
    index: int
    executor: int


@dataclass(frozen=True, slots=True)
class Warn(Action):
    """Tell people; not answered."""

    message: str
