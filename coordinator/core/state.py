"""The core's state, and queries that several modules share."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.events import Drop, WriteTombstones
from superdl.coordinator.core.fleet import Fleet
from superdl.coordinator.core.jobs import ClosedJobs
from superdl.coordinator.core.journal import Stalls, Thrash
from superdl.coordinator.core.ledger import UNPRICED_REQUESTS, Ledger, Teams
from superdl.coordinator.core.queues import (
    Outage,
    ReportedMisses,
    Retry,
    RoomSearch,
    Stragglers,
    TimeQueue,
    UnsavedQueue,
)
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleSet, SampleState, SetKey
from superdl.coordinator.core.settings import NO_TEAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from superdl.coordinator.core.events import Action, Audit, Prefetch
    from superdl.coordinator.core.fleet import EligibleExecutors
    from superdl.coordinator.core.jobs import Cursor, Job, JobCounters
    from superdl.coordinator.core.ledger import Turn
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.samples import Bools, Ints
    from superdl.coordinator.core.settings import CoreSettings, DatasetFacts

EPOCH_SETS_MAX = 8  # epochs with a sample set, per job that reads a random recipe
_FAILURES_MAX = 10_000
_REQUESTS_KEPT = 4096

# A request may take this share of the cache, but always this number of samples.
_REQUEST_SHARE, _MODEST_REQUEST = 1 / 16, 64


@dataclass(slots=True)
class Claim:
    """The samples that a request has yet to provide. Racing requests share a claim."""

    # Mask of the request's samples.
    unsettled: Bools
    # Cache memory reserved for the samples.
    reserved_bytes: int


@dataclass(slots=True)
class Request:
    """A request, and its result once it has ended."""

    order: Prefetch
    payer: Job | None  # the job to charge, which may close before the result arrives
    claim: Claim
    sent_s: float
    rival: int | None = None  # number of the racing request
    expected_s: float = 0.0
    ended_s: float | None = None
    result: str = ""

    @property
    def team(self) -> str:
        """Return the team to charge."""
        return NO_TEAM if self.payer is None else self.payer.team


@dataclass(slots=True)
class State:
    """Everything that the core keeps between events."""

    settings: CoreSettings
    datasets: dict[bytes, DatasetFacts] = field(default_factory=dict)
    # Datasets that had neither samples nor readers at the last check
    unused_datasets: set[bytes] = field(default_factory=set)
    sets: dict[SetKey, SampleSet] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    closed: ClosedJobs = field(default_factory=ClosedJobs)
    requests: dict[int, Request] = field(default_factory=dict)
    audits: dict[int, Audit] = field(default_factory=dict)
    # WAITING samples, by the time of their next attempt
    retries: TimeQueue[Retry] = field(default_factory=TimeQueue)
    misses: ReportedMisses = field(default_factory=ReportedMisses)
    # Reasons why samples are FAILED
    failures: dict[tuple[SetKey, int], str] = field(default_factory=dict)
    # Expiry times of tombstones, in order, because all have the same lifetime
    expiries: deque[tuple[float, SetKey, Ints]] = field(default_factory=deque)
    room_search: RoomSearch = field(default_factory=RoomSearch)
    # Ranks, by the time at which their lease may end
    leases: TimeQueue[CursorKey] = field(default_factory=TimeQueue)
    # Cached samples to save to the store, if some functions cannot access it
    unsaved: UnsavedQueue = field(default_factory=UnsavedQueue)
    stragglers: Stragglers = field(default_factory=Stragglers)
    stalls: Stalls = field(default_factory=Stalls)
    thrash: Thrash = field(default_factory=Thrash)
    # The latest requests, including ended ones, for the history of batches
    recent_requests: deque[Request] = field(default_factory=lambda: deque(maxlen=_REQUESTS_KEPT))
    window_bytes: int = 0  # cache memory for the full look-ahead of all ranks
    outage: Outage = field(default_factory=Outage)  # of all executors
    # Outages of sources that last returned nothing, by dataset
    source_outages: dict[bytes, Outage] = field(default_factory=dict)
    events: int = 0  # handled so far, excluding ticks
    budget_bytes: int = 0
    reserved_bytes: int = 0
    foreign_bytes: int = 0  # cache memory used by others, which reduces the budget
    withheld_bytes: int = 0  # left unused, because the cache refused writes
    emptied: bool = False  # whether the cache was emptied, so that new sets are absent
    evictions: int = 0
    dropped_samples: int = 0
    actions: list[Action] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    fleet: Fleet = field(init=False)
    # Numbers of the executors that cannot produce a dataset
    ineligible: dict[bytes, frozenset[int]] = field(default_factory=dict)
    ledger: Ledger = field(init=False)
    teams: Teams = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.fleet = Fleet(settings.executors, store=settings.store)
        see_store = any(executor.store is not None for executor in self.fleet.executors)
        blind = any(executor.decodes and executor.store is None for executor in self.fleet.executors)
        self.unsaved.enabled = see_store and blind and not settings.store_read_only
        self.ledger = Ledger(
            [facts.prices for facts in settings.executors],
            max_usd=settings.max_usd,
            max_usd_per_hour=settings.max_usd_per_hour,
            spent_usd=settings.spent_usd,
        )
        self.teams = Teams(settings.teams, settings.teams_usd)
        if self.ledger.capped:
            for executor, facts in zip(self.fleet.executors, settings.executors, strict=True):
                if facts.prices.billed:  # until the cost of requests is known
                    executor.most_in_flight = UNPRICED_REQUESTS

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Return the numbers of requests and samples in flight, by executor."""
        return [(executor.in_flight, executor.samples_in_flight) for executor in self.fleet.executors]

    @property
    def is_producing(self) -> bool:
        """Return whether a request in flight will add samples to the cache."""
        return any(request.order.kind.fills_cache for request in self.requests.values())

    @property
    def resident_bytes(self) -> int:
        """Return the cache memory that records take."""
        return sum(samples.resident_bytes for samples in self.sets.values())

    @property
    def free_bytes(self) -> int:
        """Return the memory that is not used, reserved or withheld. Negative under pressure."""
        used = self.resident_bytes + self.reserved_bytes + self.foreign_bytes + self.withheld_bytes
        return self.budget_bytes - used

    def most_samples(self, key: SetKey) -> int:
        """Return the maximum number of samples per request."""
        # A request that takes much of the cache would evict the samples of others.
        share = int(_REQUEST_SHARE * self.budget_bytes / self.set_of(key).sample_bytes)
        return min(self.settings.request_samples, max(_MODEST_REQUEST, share))

    def set_of(self, key: SetKey) -> SampleSet:
        """Return a sample set, creating it on first use."""
        samples = self.sets.get(key)
        if samples is None:
            facts, absent = self.datasets[key.dataset], self.is_absent(key)
            samples = SampleSet(key, facts.size, record_bytes=facts.record_bytes, known_absent=absent)
            self.sets[key] = samples
        return samples

    def is_absent(self, key: SetKey) -> bool:
        """Return whether the cache is known to hold no samples of a set that does not exist yet."""
        return self.datasets[key.dataset].known_absent or self.emptied

    def add_resident(self, key: SetKey, indices: Ints, now: float) -> None:
        """Queue new resident samples to be saved, unless they are in the store."""
        if self.unsaved.enabled and key.epoch == EVERY_EPOCH:
            samples = self.set_of(key)
            self.unsaved.add(key, samples.state.size, indices[~samples.stored(indices)], now)

    def states(self, key: SetKey, indices: Ints) -> NDArray[np.uint8]:
        """Return the state of each sample, without creating the sample set."""
        samples = self.sets.get(key)
        if samples is not None:
            states: NDArray[np.uint8] = samples.state[indices]
            return states
        default = SampleState.ABSENT if self.is_absent(key) else SampleState.UNKNOWN
        return np.full(indices.shape, default, dtype=np.uint8)

    def admits(self, key: SetKey, *, waited_for: bool = False) -> bool:
        """Return whether a sample set exists or may be created. May remove another set to make room."""
        if key in self.sets or key.epoch == EVERY_EPOCH:
            return True
        # Bound the memory that calls for distant epochs can use. At the limit, remove an epoch that no rank
        # reads, or for a waiting reader one that ranks only look ahead to, the farthest first.
        epochs = [other for other in self.sets if other.dataset == key.dataset]
        if len(epochs) < EPOCH_SETS_MAX * max(1, len(self.jobs_of(key.dataset))):
            return True
        needs = {other: self.need(other) for other in epochs if not self.sets[other].under_way}
        spare = [other for other, need in needs.items() if need <= waited_for]
        if not spare:
            return False
        chosen = min(spare, key=lambda other: (needs[other], -other.epoch))
        samples = self.sets.pop(chosen)
        self.drop(samples, samples.having(SampleState.RESIDENT))
        return True

    def drop(self, samples: SampleSet, indices: Ints) -> None:
        """Drop resident samples from the cache."""
        if indices.size:
            samples.move(indices, SampleState.ABSENT)
            self.actions.append(Drop(samples.key, indices))

    def need(self, key: SetKey) -> int:
        """Return 2 if a rank reads this set, 1 if a rank only looks ahead to it, and 0 otherwise."""
        need = 0
        for cursor in self.cursors_of(key.dataset):
            first, last = (
                cursor.job.epoch_and_position(at)[0] for at in (cursor.watermark, cursor.lookahead)
            )
            if key.epoch in (first, EVERY_EPOCH):
                return 2
            need = max(need, int(first <= key.epoch <= last))
        return need

    def eligible_for(self, dataset: bytes) -> EligibleExecutors:
        """Return the executors that can produce a dataset's samples."""
        return self.fleet.eligible(self.ineligible.get(dataset, frozenset()))

    def cursor(self, job: str, rank: int) -> Cursor | None:
        """Return a rank's cursor, or ``None`` if it was closed, or was opened before a restart."""
        open_job = self.jobs.get(job)
        return open_job.cursors.get(rank) if open_job else None

    @property
    def cursors(self) -> list[Cursor]:
        """Return all ranks' cursors."""
        return [cursor for job in self.jobs.values() for cursor in job.cursors.values()]

    def cursors_of(self, dataset: bytes) -> list[Cursor]:
        """Return the cursors of ranks that read a dataset."""
        return [cursor for cursor in self.cursors if cursor.job.dataset == dataset]

    def counters(self, request: Request) -> JobCounters:
        """Return the counters to update for a request: its job's, or those of closed jobs."""
        payer = request.payer
        is_open = payer is not None and self.jobs.get(payer.name) is payer
        return payer.counters if payer is not None and is_open else self.closed.counters

    def team_of(self, job: str) -> str:
        """Return a job's team, or ``NO_TEAM`` if the job is not open."""
        return self.jobs[job].team if job in self.jobs else NO_TEAM

    def turn(self, team: str) -> Turn | None:
        """Return a team's turn, or ``None`` if the team may not spend any more."""
        capped = self.teams[team].facts.max_usd < math.inf
        if capped and not self.teams.may_spend(team, self.ledger.request_usd):
            return None
        return self.teams.turn(team)

    def is_read(self, dataset: bytes) -> bool:
        """Return whether any open job reads a dataset."""
        return any(job.dataset == dataset for job in self.jobs.values())

    def jobs_of(self, dataset: bytes) -> list[Job]:
        """Return the open jobs that read a dataset."""
        return [job for job in self.jobs.values() if job.dataset == dataset]

    def set_window_bytes(self, cursor: Cursor, window_bytes: int) -> None:
        """Set the cache memory that a rank's full look-ahead would take."""
        self.window_bytes += window_bytes - cursor.window_bytes
        cursor.window_bytes = window_bytes

    def wake(self, cursor: Cursor) -> None:
        """Mark a rank as ready to look ahead, unless its lease has lapsed."""
        if cursor.lapsed:
            return
        self.room_search.waiting.pop(cursor.key, None)
        eligible = self.eligible_for(cursor.job.dataset)
        eligible.deferred.discard(cursor.key)
        eligible.ready[cursor.job.team].add(cursor.key, cursor.deadline_s())

    def wake_all(self, keys: Iterable[CursorKey]) -> None:
        """Wake those ranks that are still open."""
        for name, rank in keys:
            cursor = self.cursor(name, rank)
            if cursor is not None:
                self.wake(cursor)

    def restart_lookahead(self, cursors: Iterable[Cursor]) -> None:
        """Make ranks recheck their entire windows, because samples may be missing."""
        for cursor in cursors:
            cursor.restart_lookahead()
            self.wake(cursor)

    def dequeue(self, cursor: Cursor) -> None:
        """Remove a rank from all look-ahead queues."""
        eligible = self.eligible_for(cursor.job.dataset)
        eligible.ready[cursor.job.team].discard(cursor.key)
        eligible.deferred.discard(cursor.key)
        self.room_search.waiting.pop(cursor.key, None)

    def remember_failure(self, key: SetKey, index: int, reason: str) -> None:
        """Record why a sample failed. Only the most recent reasons are kept."""
        self.failures.pop((key, index), None)
        self.failures[key, index] = reason
        if len(self.failures) > _FAILURES_MAX:
            del self.failures[next(iter(self.failures))]

    def write_tombstones(
        self,
        key: SetKey,
        indices: Ints,
        messages: tuple[str, ...],
        now: float,
        *,
        reason: str = "retries_spent",
    ) -> None:
        """Write tombstones, and mark the samples as failed until the tombstones expire."""
        ttl_s = self.settings.tombstone_ttl_s
        self.set_of(key).move(indices, SampleState.FAILED)
        for index, message in zip(indices.tolist(), messages, strict=True):
            self.remember_failure(key, index, message)
        self.actions.append(WriteTombstones(key, indices, messages, ttl_s, reason=reason))
        self.expiries.append((now + ttl_s, key, indices))


def unique(indices: Ints) -> Ints:
    """Drop duplicates caused by padding, keeping the order of first appearance."""
    _, first = np.unique(indices, return_index=True)
    return indices[np.sort(first)]
