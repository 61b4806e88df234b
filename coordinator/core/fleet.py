"""The core's view of the executors, and how it chooses one for a request."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.capacity import OPEN_MAX_S, CircuitBreaker, Concurrency, LatencyModel
from superdl.coordinator.core.events import OUTCOME_ORDER, FailureKind
from superdl.coordinator.core.queues import TimeQueue
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.coordinator.core.events import ExecutorResized, RequestDone, RequestFailed
    from superdl.coordinator.core.ledger import Turn
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.settings import ExecutorFacts

# Failures that say nothing about the samples, because no function ran
NEVER_RUN = frozenset({FailureKind.THROTTLED, FailureKind.UNAVAILABLE})
_WORKED = np.isin(OUTCOME_ORDER, [Outcome.CACHED, Outcome.TOMBSTONE])
# Outcomes that take less time than usual
_CUT_SHORT = np.isin(
    OUTCOME_ORDER,
    [
        Outcome.CACHE_ERROR,
        Outcome.CACHE_FULL,
        Outcome.EXPIRED,
        Outcome.NOT_STORED,
        Outcome.STORE_ERROR,
        Outcome.UNAVAILABLE,
    ],
)
_EXECUTOR_FAULTS = np.isin(
    OUTCOME_ORDER,
    [Outcome.CACHE_ERROR, Outcome.REFUSED, Outcome.SOURCE_ERROR, Outcome.STEP_ERROR, Outcome.UNAVAILABLE],
)
_SLOW = 0.99  # quantile of slow requests
_NO_OTHER_S = 5.0  # maximum pause of an executor if no other is healthy
_UNKNOWN_LATE_S = 5.0  # while no executor's latency is known


@dataclass(slots=True)
class StoreAccess:
    """An executor's access to the store, with its latency and health."""

    latency: LatencyModel = field(default_factory=LatencyModel)
    reading: CircuitBreaker = field(default_factory=CircuitBreaker)
    writing: CircuitBreaker = field(default_factory=CircuitBreaker)
    # Whether the last decoded samples were written to a pack.
    keeps: bool = False


@dataclass(slots=True)
class ExecutorState:
    """An executor and its capacity, latency and health."""

    number: int
    name: str
    concurrency: Concurrency = field(default_factory=Concurrency)
    latency: LatencyModel = field(default_factory=LatencyModel)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    in_flight: int = 0
    samples_in_flight: int = 0  # in all requests, including hedges
    # Limited until the cost of a request is known, if there is a spending cap
    most_in_flight: float = math.inf
    # Totals: requests sent, including hedges, samples produced, and US dollars billed
    requests: int = 0
    samples: int = 0
    usd: float = 0.0
    # Ended requests by "answered" or the failure kind's name in lowercase
    outcomes: Counter[str] = field(default_factory=Counter)
    cold_starts: int = 0
    cold_s: float = 0.0
    read_back_s: float = -math.inf  # time of the last read-back
    store: StoreAccess | None = None  # None without a store, or if the functions cannot access it
    decodes: bool = True

    def latency_of(self, *, restore: bool) -> LatencyModel:
        """Return the latency model for restores or for decodes."""
        return self.store.latency if restore and self.store is not None else self.latency

    def breaker_for(self, kind: RequestKind) -> CircuitBreaker | None:
        """Return the store's breaker for a kind of request, or ``None`` if the kind uses no store."""
        if self.store is None or kind is RequestKind.DECODE:
            return None
        return self.store.writing if kind.writes_pack else self.store.reading

    @property
    def idle(self) -> int:
        """Return the number of idle functions."""
        return max(0, self.concurrency.limit - self.in_flight)

    @property
    def free_slots(self) -> int:
        """Return how many more requests the executor accepts, even if it is set aside."""
        return int(min(self.concurrency.slots, self.most_in_flight)) - self.in_flight

    def answered(self, event: RequestDone, kind: RequestKind, sent_s: float, now: float) -> None:
        """Update latency and health from a result, unless a sample may be to blame."""
        took_s, worked = now - sent_s, _WORKED[event.outcomes].any()
        if worked and not _CUT_SHORT[event.outcomes].any():
            latency = self.latency_of(restore=kind is RequestKind.RESTORE)
            latency.observe(event.outcomes.size, took_s, event.duration_us / 1e6)
            self.concurrency.succeeded()
        if worked:
            self.breaker.worked()
        elif event.outcomes.size and _EXECUTOR_FAULTS[event.outcomes].all():
            reason = next(iter(event.messages.values()), "no sample could be produced")
            self.breaker.failed(reason, sent_s, now)

    def failed(self, event: RequestFailed, reason: str, sent_s: float, now: float) -> None:
        """Update capacity and health after a failed request."""
        if event.kind is FailureKind.THROTTLED:
            self.concurrency.throttled(self.in_flight, now)
        blame = self.breaker.refused if event.kind in NEVER_RUN else self.breaker.failed
        blame(reason, sent_s, now)

    def is_resting(self, now: float) -> bool:
        """Return whether a store-only executor is set aside and must not get a trial request yet."""
        breaker = self.breaker
        return not self.decodes and breaker.tripped and bool(now < breaker.open_until_s() or self.in_flight)


class EligibleExecutors:
    """The executors that can produce a dataset's samples, cheapest first, and the ranks that read it.

    Attributes:
        ready: ranks that are ready to look ahead, by team and deadline.
        deferred: ranks that are waiting for a cheaper executor, by when they stop waiting.
        restores: whether this group restores samples. Restores have their own latency model.
        store_only: executors that can only restore and save.
    """

    def __init__(
        self,
        executors: Sequence[ExecutorState],
        *,
        restores: bool = False,
        store_only: Sequence[ExecutorState] = (),
    ) -> None:
        self.executors = tuple(executors)
        self.store_only = tuple(store_only)
        self.restores = restores
        self.ready: defaultdict[str, TimeQueue[CursorKey]] = defaultdict(TimeQueue)
        self.deferred: TimeQueue[CursorKey] = TimeQueue()
        self._last_inputs: tuple[object, ...] = ()

    def latency_of(self, executor: ExecutorState) -> LatencyModel:
        """Return an executor's latency model for this group's kind of request."""
        return executor.latency_of(restore=self.restores)

    def free_slots(self, now: float) -> int:
        """Return how many more requests these executors accept."""
        return sum(max(0, self.free_slots_of(executor, now)) for executor in self.executors)

    def has_free_slot(self, now: float) -> bool:
        """Return whether any executor accepts another request, even if only for stored samples."""
        return self.free_slots(now) > 0 or any(executor.free_slots > 0 for executor in self.store_only)

    def free_slots_of(self, executor: ExecutorState, now: float) -> int:
        """Return how many more requests an executor may get. A pause is followed by one trial."""
        free = executor.free_slots
        if not self._is_set_aside(executor):
            return free
        return 0 if now < self._open_until_s(executor) else min(free, 1 - executor.in_flight)

    def idle(self, now: float) -> int:
        """Return the number of idle functions across executors that accept requests."""
        return sum(executor.idle for executor in self.executors if self.free_slots_of(executor, now) > 0)

    def has_changed(self, now: float) -> bool:
        """Return whether the inputs of :func:`pick`, other than time, have changed since the last call."""
        inputs = tuple(
            (
                self.free_slots_of(executor, now) > 0,
                self.is_sound(executor),
                executor.latency.known,
                executor.store and (executor.store.latency.known, executor.store.reading.tripped),
            )
            for executor in (*self.executors, *self.store_only)
        )
        changed = inputs != self._last_inputs
        self._last_inputs = inputs
        return changed

    def slow_s(self, samples: int) -> float | None:
        """Return how long a slow request takes, or ``None`` if there are too few observations."""
        # Sum over the executors, because a request may wait for one after another.
        models = [
            # Before the first decode, restores are the best estimate.
            executor.latency if executor.latency.results or not executor.store else executor.store.latency
            for executor in (*self.executors, *self.store_only)
        ]
        times_s = [model.quantile_s(samples, _SLOW) for model in models]
        known_s = [time_s for time_s in times_s if time_s is not None]
        return sum(known_s) if known_s else None

    def late_s(self, executor: ExecutorState, samples: int, quantile: float) -> float | None:
        """Return the time after which a request is a straggler, or ``None`` if unknown."""
        # For an executor without results, use the slowest other executor, or a default.
        late_s = self.latency_of(executor).quantile_s(samples, quantile)
        if late_s is not None or len(self.executors) == 1:
            return late_s
        others_s = [self.latency_of(other).quantile_s(samples, _SLOW) for other in self.executors]
        return max((other_s for other_s in others_s if other_s is not None), default=_UNKNOWN_LATE_S)

    def can_reassign(self, executor: ExecutorState) -> bool:
        """Return whether another healthy executor can take over an executor's work."""
        return any(self.is_sound(other) for other in self.executors if other is not executor)

    def wake_times_s(self, now: float) -> Iterator[float]:
        """Yield the times at which executors' pauses end."""
        for executor in (*self.executors, *self.store_only):
            open_until_s = self._open_until_s(executor)
            if open_until_s > now and self.free_slots_of(executor, now) <= 0:
                yield open_until_s

    def has_cheaper(self, than: ExecutorState) -> bool:
        """Return whether a cheaper executor is healthy."""
        return any(map(self.is_sound, self.executors[: self.executors.index(than)]))

    def _open_until_s(self, executor: ExecutorState) -> float:
        if not self._is_set_aside(executor):
            return -math.inf
        return executor.breaker.open_until_s(OPEN_MAX_S if self.can_reassign(executor) else _NO_OTHER_S)

    def is_sound(self, executor: ExecutorState) -> bool:
        """Return whether an executor has capacity and is not set aside."""
        return executor.concurrency.capacity > 0 and not self._is_set_aside(executor)

    def _is_set_aside(self, executor: ExecutorState) -> bool:
        # The only eligible executor is never set aside.
        return executor.breaker.tripped and len(self.executors) > 1


class Deadline(NamedTuple):
    """The time until the first of ``samples`` is needed. If it is 0 or less, a reader is waiting."""

    slack_s: float = 0.0
    # While latency is unknown, only samples needed soon justify a more expensive executor.
    soon: bool = True
    samples: int = 1


def pick(
    executors: EligibleExecutors,
    deadline: Deadline,
    now: float,
    *,
    other_than: int | None = None,
    failed_by: int | None = None,
) -> tuple[ExecutorState | None, float]:
    """Return the cheapest executor that can meet the deadline, and a wait of 0.

    If no executor has a free slot, or if the request can wait for a cheaper one, return ``None``
    and the maximum wait in seconds. It is infinite if only a free slot or a result can end the wait.
    Among free executors, ``other_than`` is the last choice. ``failed_by`` is used only if no other
    executor is healthy.
    """
    able = [executor for executor in executors.executors if executor.number != failed_by]
    if not any(map(executors.is_sound, able)):
        able = list(executors.executors)
    free = [executor for executor in able if executors.free_slots_of(executor, now) > 0]
    if not free:
        return None, math.inf
    if deadline.slack_s <= 0:  # a reader is waiting, so make no trial requests
        free = [executor for executor in free if executors.is_sound(executor)] or free
    elif cheaper := [executor for executor in able[: able.index(free[0])] if executors.is_sound(executor)]:
        models = [executors.latency_of(executor) for executor in (*cheaper, free[0])]
        times_s = [model.quantile_s(deadline.samples, _SLOW) for model in models]
        # Allow for a slow request there and, if it fails, another at this executor. The more expensive
        # executor gets only work that cheaper ones cannot do in time.
        enough_s = sum(time_s for time_s in times_s if time_s is not None)
        if None in times_s and not deadline.soon:
            return None, math.inf
        if None not in times_s and deadline.slack_s > enough_s:
            return None, deadline.slack_s - enough_s
    return next((executor for executor in free if executor.number != other_than), free[0]), 0.0


class Soonest(NamedTuple):
    """The next rank to look ahead: its team's turn, its deadline, and its queue."""

    turn: Turn
    deadline_s: float
    ranks: TimeQueue[CursorKey]


class Fleet:
    """All executors, cheapest first."""

    def __init__(self, several: Sequence[ExecutorFacts], *, store: bool = False) -> None:
        self.executors = tuple(
            ExecutorState(
                number,
                facts.name,
                store=StoreAccess() if store and facts.sees_store else None,
                decodes=facts.decodes,
            )
            for number, facts in enumerate(several)
        )
        self._groups: dict[frozenset[int], EligibleExecutors] = {}
        self.eligible(frozenset())

    def resize(self, event: ExecutorResized) -> None:
        """Adopt an executor's new capacity."""
        self.executors[event.executor].concurrency.resize(event)

    def eligible(self, ineligible: frozenset[int]) -> EligibleExecutors:
        """Return the group of all executors except those with the given numbers."""
        group = self._groups.get(ineligible)
        if group is None:
            able = [member for member in self.executors if member.decodes and member.number not in ineligible]
            store_only = [member for member in self.executors if not member.decodes]
            group = self._groups[ineligible] = EligibleExecutors(able, store_only=store_only)
        return group

    @property
    def groups(self) -> Sequence[EligibleExecutors]:
        """Return all groups created so far, starting with the group of all executors."""
        return tuple(self._groups.values())

    @property
    def capacity(self) -> int:
        """Return the total capacity."""
        return sum(executor.concurrency.capacity for executor in self.executors)

    @property
    def limit(self) -> int:
        """Return how many concurrent requests the executors currently accept in total."""
        return sum(executor.concurrency.limit for executor in self.executors)

    def has_free_slot(self, now: float) -> bool:
        """Return whether any executor accepts another request."""
        return any(eligible.has_free_slot(now) for eligible in self._groups.values())

    def soonest(self, now: float, turn: Callable[[str], Turn | None]) -> Soonest | None:
        """Return the next rank to look ahead. ``turn`` returns ``None`` for teams that may not spend."""
        best: Soonest | None = None
        for eligible in self._groups.values():
            for team, ranks in eligible.ready.items():
                deadline_s = ranks.soonest_s()
                if deadline_s is None or (team_turn := turn(team)) is None:
                    continue
                if (best is None or (team_turn, deadline_s) < best[:2]) and eligible.has_free_slot(now):
                    best = Soonest(team_turn, deadline_s, ranks)
        return best
