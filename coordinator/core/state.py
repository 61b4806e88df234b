"""All that the core knows, in one place: datasets, sample sets, jobs, requests, audits, retries, the account.

Only data and the few questions that several parts of the core ask of it. What events do to it stands in
``ranks``, ``lookahead``, ``requests``, ``auditing`` and ``dispatching``.
"""

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
from superdl.coordinator.core.ledger import UNPRICED_REQUESTS, Ledger
from superdl.coordinator.core.queues import (
    BatchPlace,
    ReportedMisses,
    Retry,
    RoomSearch,
    Stragglers,
    TimeQueue,
    UnsavedQueue,
)
from superdl.coordinator.core.samples import EVERY_EPOCH, CacheMemory, SampleSet, SampleState, SetKey
from superdl.coordinator.core.teams import NO_TEAM, Teams
from superdl.coordinator.core.throttling import Outage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from superdl.coordinator.core.events import Action, Prefetch
    from superdl.coordinator.core.fleet import EligibleExecutors
    from superdl.coordinator.core.jobs import Cursor, CursorSpan, Job, JobCounters
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.samples import Bools, Ints
    from superdl.coordinator.core.settings import CoreSettings, DatasetFacts
    from superdl.coordinator.core.teams import Turn

EPOCH_SETS_MAX = 8
"""So many epochs of a random recipe have a sample set at once, for each job that reads it."""

_FAILURES_MAX = 10_000
"""So many reasons of failures are remembered, the newest."""

_REQUESTS_KEPT = 4096

_REQUEST_SHARE, _MODEST_REQUEST = 1 / 16, 64
"""A request has such a share of the cache at most, or so many samples."""

_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Claim:
    """What two requests that race share: bools ``[samples]``, which are not settled yet, and the cache memory
    that is kept free for them.
    """

    unsettled: Bools
    reserved_bytes: int


@dataclass(slots=True)
class Request:
    """A request that was sent, and once it has ended, how."""

    order: Prefetch
    payer: Job | None
    """On whose account it goes, though that job may close before it is answered; ``None``: on nobody's."""
    claim: Claim
    made_s: float
    rival: int | None = None
    """The request that races this one, whichever came first."""
    expected_s: float = 0.0
    """What it was expected to take when it was made."""
    ended_s: float | None = None
    ending: str = ""

    @property
    def team(self) -> str:
        """The team on whose account it goes."""
        return NO_TEAM if self.payer is None else self.payer.team


@dataclass(frozen=True, slots=True)
class AuditInFlight:
    """Samples that the cache is asked about, for the reader of a batch or for a rank that looks ahead."""

    samples: SetKey
    indices: Ints
    asker: BatchPlace | CursorSpan
    whole: bool = False


@dataclass(slots=True)
class State:
    """The core's memory."""

    settings: CoreSettings
    datasets: dict[bytes, DatasetFacts] = field(default_factory=dict)
    unused_datasets: set[bytes] = field(default_factory=set)
    """Those that nobody had anything of when that was looked at last."""
    sets: dict[SetKey, SampleSet] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    closed: ClosedJobs = field(default_factory=ClosedJobs)
    requests: dict[int, Request] = field(default_factory=dict)
    audits: dict[int, AuditInFlight] = field(default_factory=dict)
    audit_watchers: dict[SetKey, dict[CursorKey, None]] = field(default_factory=dict)
    """Ranks that have passed over samples of which the cache was being asked on behalf of others."""
    retries: TimeQueue[Retry] = field(default_factory=TimeQueue)
    """Samples in state WAITING, by the time of their next attempt."""
    misses: ReportedMisses = field(default_factory=ReportedMisses)
    failures: dict[tuple[SetKey, int], str] = field(default_factory=dict)
    """Why samples are in state FAILED."""
    expiries: deque[tuple[float, SetKey, Ints]] = field(default_factory=deque)
    """When tombstones that expire do so; in order, since all live equally long."""
    room_search: RoomSearch = field(default_factory=RoomSearch)
    leases: TimeQueue[CursorKey] = field(default_factory=TimeQueue)
    """Ranks by the time at which their lease may end."""
    unsaved: UnsavedQueue = field(default_factory=UnsavedQueue)
    """What is to go from the cache to the store, where there are functions that do not see it."""
    stragglers: Stragglers = field(default_factory=Stragglers)
    stalls: Stalls = field(default_factory=Stalls)
    thrash: Thrash = field(default_factory=Thrash)
    recent_requests: deque[Request] = field(default_factory=lambda: deque(maxlen=_REQUESTS_KEPT))
    """The newest ones, ended or not, for people who ask about a batch."""
    wanted_bytes: int = 0
    """What all ranks would like to look ahead to, in memory of the cache."""
    outage: Outage = field(default_factory=Outage)
    """Of all that produces samples."""
    source_outages: dict[bytes, Outage] = field(default_factory=dict)
    """Of datasets whose source gave nothing when it was asked last."""
    events: int = 0
    """Events handled so far, ticks apart."""
    budget_bytes: int = 0
    reserved_bytes: int = 0
    foreign_bytes: int = 0
    """Memory of the cache that is not ours to account for and leaves less for us."""
    withheld_bytes: int = 0
    """Memory that is left alone, since the cache refused writes for want of it."""
    emptied: bool = False
    """Whether the cache was seen to be emptied: what has not been asked for yet is known to be absent."""
    memory: CacheMemory = field(default_factory=CacheMemory)
    evictions: int = 0
    dropped_samples: int = 0
    actions: list[Action] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    fleet: Fleet = field(init=False)
    ineligible: dict[bytes, frozenset[int]] = field(default_factory=dict)
    """Executors, by number, that cannot produce the samples of a dataset."""
    ledger: Ledger = field(init=False)
    teams: Teams = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        self.fleet = Fleet(settings.executors, store=settings.store)
        see_store = any(executor.store is not None for executor in self.fleet.executors)
        blind = any(executor.decodes and executor.store is None for executor in self.fleet.executors)
        self.unsaved.wanted = see_store and blind and not settings.store_read_only
        self.ledger = Ledger(
            [facts.prices for facts in settings.executors],
            max_usd=settings.max_usd,
            max_usd_per_hour=settings.max_usd_per_hour,
            spent_usd=settings.spent_usd,
        )
        self.teams = Teams(settings.teams, settings.teams_usd)
        if self.ledger.capped:
            for executor, facts in zip(self.fleet.executors, settings.executors, strict=True):
                if facts.prices.billed:  # until it is known what they cost
                    executor.most_in_flight = UNPRICED_REQUESTS

    @property
    def in_flight(self) -> list[tuple[int, int]]:
        """Requests and samples in flight, by executor."""
        return [(executor.in_flight, executor.samples_in_flight) for executor in self.fleet.executors]

    @property
    def is_producing(self) -> bool:
        """Whether a request in flight brings something into the cache."""
        return any(request.order.kind.fills_cache for request in self.requests.values())

    @property
    def resident_bytes(self) -> int:
        """Memory that records take."""
        return self.memory.resident_bytes

    @property
    def free_bytes(self) -> int:
        """Memory that neither records nor requests nor others have taken; negative under pressure."""
        taken = self.resident_bytes + self.reserved_bytes + self.foreign_bytes + self.withheld_bytes
        return self.budget_bytes - taken

    def most_samples(self, key: SetKey) -> int:
        """How many samples of a set a request has at most: many at once would drop what others have brought,
        where they take much of the cache.
        """
        share = int(_REQUEST_SHARE * self.budget_bytes / self.set_of(key).sample_bytes)
        return min(self.settings.request_samples, max(_MODEST_REQUEST, share))

    def set_of(self, key: SetKey) -> SampleSet:
        """The sample set of that name, made when first asked for."""
        samples = self.sets.get(key)
        if samples is None:
            dataset = self.datasets[key.dataset]
            samples = self.sets[key] = SampleSet(
                key,
                dataset.size,
                record_bytes=dataset.record_bytes,
                known_absent=dataset.known_absent or self.emptied,
                memory=self.memory,
            )
        return samples

    def has_come(self, key: SetKey, indices: Ints, now: float) -> None:
        """Samples are resident that were not; those in no pack are to be saved, by who sees the store."""
        if self.unsaved.wanted and key.epoch == EVERY_EPOCH:
            samples = self.set_of(key)
            self.unsaved.add(key, samples.state.size, indices[~samples.stored(indices)], now)

    def states(self, key: SetKey, indices: Ints) -> NDArray[np.uint8]:
        """The state of each of ``indices``, without making the sample set of that name."""
        samples = self.sets.get(key)
        if samples is not None:
            found: NDArray[np.uint8] = samples.state[indices]
            return found
        absent = self.datasets[key.dataset].known_absent or self.emptied
        return np.full(indices.shape, SampleState.ABSENT if absent else SampleState.UNKNOWN, dtype=np.uint8)

    def admits(self, key: SetKey, *, waited_for: bool = False) -> bool:
        """Whether a sample set is there, or may be made: a call for a far-off epoch must not cost memory.

        Where there are as many as may be, an epoch that no rank is at makes room; its records go too, since
        nothing would account for them. Where a reader waits for this one, an epoch that is only looked ahead
        at makes room too, the farthest first. One of which something is on its way stays until that has come.
        """
        if key in self.sets or key.epoch == EVERY_EPOCH:
            return True
        epochs = [other for other in self.sets if other.dataset == key.dataset]
        if len(epochs) < EPOCH_SETS_MAX * max(1, len(self.jobs_of(key.dataset))):
            return True
        needs = {other: self.need(other) for other in epochs if not self.sets[other].under_way}
        spare = [other for other, need in needs.items() if need <= waited_for]
        if not spare:
            return False
        chosen = min(spare, key=lambda other: (needs[other], -other.epoch))
        samples = self.sets.pop(chosen)
        resident = samples.having(SampleState.RESIDENT)
        if resident.size:
            samples.move(resident, SampleState.ABSENT)
            self.actions.append(Drop(chosen, resident))
        return True

    def need(self, key: SetKey) -> int:
        """Return 2 if a rank reads samples of that set, 1 if one only looks ahead to some, and 0 else."""
        need = 0
        for cursor in self.reading(key.dataset):
            first, last = (
                cursor.job.epoch_and_position(at)[0] for at in (cursor.watermark, cursor.lookahead)
            )
            if key.epoch in (first, EVERY_EPOCH):
                return 2
            need = max(need, int(first <= key.epoch <= last))
        return need

    def eligible_for(self, dataset: bytes) -> EligibleExecutors:
        """The executors that can produce a dataset."""
        return self.fleet.eligible(self.ineligible.get(dataset, _NONE))

    def cursor(self, job: str, rank: int) -> Cursor | None:
        """A rank's cursor; ``None`` for one that is unknown (closed, or of before a restart)."""
        found = self.jobs.get(job)
        return found.cursors.get(rank) if found else None

    @property
    def cursors(self) -> list[Cursor]:
        """Those of all open ranks."""
        return [cursor for job in self.jobs.values() for cursor in job.cursors.values()]

    def reading(self, dataset: bytes) -> list[Cursor]:
        """Those of the ranks that read a dataset."""
        return [cursor for cursor in self.cursors if cursor.job.dataset == dataset]

    def account(self, request: Request) -> JobCounters:
        """Where a request is counted: with all jobs that have closed, once its own has."""
        payer = request.payer
        is_open = payer is not None and self.jobs.get(payer.name) is payer
        return payer.counters if payer is not None and is_open else self.closed.counters

    def team_of(self, job: str) -> str:
        """The team of an open job; for any other, none."""
        return self.jobs[job].team if job in self.jobs else NO_TEAM

    def turn(self, team: str) -> Turn | None:
        """When it is a team's turn; ``None``: it may spend no more."""
        capped = self.teams[team].facts.max_usd < math.inf
        if capped and not self.teams.may_spend(team, self.ledger.request_usd):
            return None
        return self.teams.turn(team)

    def wants(self, dataset: bytes) -> bool:
        """Whether any open job reads a dataset."""
        return any(job.dataset == dataset for job in self.jobs.values())

    def jobs_of(self, dataset: bytes) -> list[Job]:
        """The open jobs that read a dataset."""
        return [job for job in self.jobs.values() if job.dataset == dataset]

    def want(self, cursor: Cursor, wanted_bytes: int) -> None:
        """A rank would like to look ahead so far."""
        self.wanted_bytes += wanted_bytes - cursor.wanted_bytes
        cursor.wanted_bytes = wanted_bytes

    def wake(self, cursor: Cursor) -> None:
        """A rank may have something to look ahead to, unless it has shown no sign of life lately."""
        if cursor.lapsed:
            return
        self.room_search.waiting.pop(cursor.key, None)
        eligible = self.eligible_for(cursor.job.dataset)
        eligible.deferred.discard(cursor.key)
        eligible.ready[cursor.job.team].add(cursor.key, cursor.deadline_s())

    def wake_those(self, keys: Iterable[CursorKey]) -> None:
        """Wake what is left of these."""
        for name, rank in keys:
            cursor = self.cursor(name, rank)
            if cursor is not None:
                self.wake(cursor)

    def look_again(self, cursors: Iterable[Cursor]) -> None:
        """Have ranks look again at all that they have looked ahead to: it may not be there any more."""
        for cursor in cursors:
            cursor.look_again()
            self.wake(cursor)

    def rest(self, cursor: Cursor) -> None:
        """A rank has nothing to look ahead to, or is to have nothing."""
        eligible = self.eligible_for(cursor.job.dataset)
        eligible.ready[cursor.job.team].discard(cursor.key)
        eligible.deferred.discard(cursor.key)
        self.room_search.waiting.pop(cursor.key, None)

    def remember_failure(self, key: SetKey, index: int, reason: str) -> None:
        """Keep why a sample failed; of very many failures, the newest."""
        self.failures.pop((key, index), None)
        self.failures[key, index] = reason
        if len(self.failures) > _FAILURES_MAX:
            del self.failures[next(iter(self.failures))]

    def fail_for_a_while(
        self,
        key: SetKey,
        indices: Ints,
        reasons: tuple[str, ...],
        now: float,
        *,
        reason: str = "retries_spent",
    ) -> None:
        """Have tombstones written that expire: the samples may be tried again after that."""
        ttl_s = self.settings.tombstone_ttl_s
        self.set_of(key).move(indices, SampleState.FAILED)
        for index, text in zip(indices.tolist(), reasons, strict=True):
            self.remember_failure(key, index, text)
        self.actions.append(WriteTombstones(key, indices, reasons, ttl_s, reason=reason))
        self.expiries.append((now + ttl_s, key, indices))

    def unique(self, indices: Ints) -> Ints:
        """Without duplicates (padding repeats samples), in the order of first appearance."""
        _, first = np.unique(indices, return_index=True)
        return indices[np.sort(first)]
