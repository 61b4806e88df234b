"""The executors as the core sees them, the cheapest first, and which of them is to have the next request.

The cheapest that has a place gets it. Where it has none, a request goes to the next one, unless it can wait:
what is wanted later than the slow requests of both take is kept for the cheaper, so that the dearer gets what
the cheaper cannot do in time, and no more. Executors that refuse or fail are set aside for a while, and the
next one takes their place. Not every executor can produce every dataset: all this is asked of the executors
that are *eligible* for one. Where that is one alone, there is no choice, and nothing is set aside. Beside
them there may be executors for the store alone: they restore and save for those that do not see it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.events import OUTCOME_ORDER, FailureKind
from superdl.coordinator.core.queues import TimeQueue
from superdl.coordinator.core.throttling import OPEN_MAX_S, CircuitBreaker, Concurrency
from superdl.coordinator.core.timing import LatencyModel
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.coordinator.core.events import RequestDone, RequestFailed
    from superdl.coordinator.core.queues import CursorKey
    from superdl.coordinator.core.settings import ExecutorFacts
    from superdl.coordinator.core.teams import Turn

NEVER_RUN = frozenset({FailureKind.THROTTLED, FailureKind.UNAVAILABLE})
"""Kinds of failures that say nothing of samples, since no function was asked."""

_WORKED = np.isin(OUTCOME_ORDER, [Outcome.CACHED, Outcome.TOMBSTONE])
_OVER_SOON = np.isin(
    OUTCOME_ORDER,
    [
        *(Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED, Outcome.UNAVAILABLE),
        *(Outcome.NOT_STORED, Outcome.STORE_ERROR),
    ],
)
"""Where one of these came, an answer was over sooner than usual."""
_EXECUTOR_FAULTS = np.isin(
    OUTCOME_ORDER,
    [Outcome.CACHE_ERROR, Outcome.REFUSED, Outcome.SOURCE_ERROR, Outcome.STEP_ERROR, Outcome.UNAVAILABLE],
)
_SLOW = 0.99
_NO_OTHER_S = 5.0
_UNKNOWN_LATE_S = 5.0


@dataclass(slots=True)
class StoreAccess:
    """How an executor fares with the store: how long restores take it, and whether reading and writing works.

    ``keeps``: the last function to decode wrote a pack.
    """

    latency: LatencyModel = field(default_factory=LatencyModel)
    reading: CircuitBreaker = field(default_factory=CircuitBreaker)
    writing: CircuitBreaker = field(default_factory=CircuitBreaker)
    keeps: bool = False


@dataclass(slots=True)
class ExecutorState:
    """One executor: how much it takes, how long it takes, and how it fares."""

    number: int
    name: str
    concurrency: Concurrency = field(default_factory=Concurrency)
    latency: LatencyModel = field(default_factory=LatencyModel)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    in_flight: int = 0
    samples_in_flight: int = 0
    """Of all its requests, those that race another included."""
    most_in_flight: float = math.inf
    """Until it is known what a request costs, where money is capped."""
    requests: int = 0
    """Made so far, hedges included."""
    samples: int = 0
    """Produced so far."""
    usd: float = 0.0
    """Billed for them so far."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Requests that ended so far: ``answered``, or the name of a failure's kind in small letters."""
    cold_starts: int = 0
    cold_s: float = 0.0
    """From asking for functions that were not there to their beginning, in all."""
    read_back_s: float = -math.inf
    """When one of its records was chosen to be read back last."""
    store: StoreAccess | None = None
    """``None``: there is no store, or its functions do not see it."""
    decodes: bool = True
    """Else it is for the store alone."""

    def latency_of(self, *, restore: bool) -> LatencyModel:
        """How long it takes to restore, or to produce."""
        return self.store.latency if restore and self.store is not None else self.latency

    def breaker_for(self, kind: RequestKind) -> CircuitBreaker | None:
        """What is known of its trouble with the store, for requests that have to do with that."""
        if self.store is None or kind is RequestKind.DECODE:
            return None
        return self.store.writing if kind.writes_pack else self.store.reading

    def idle(self, now: float) -> int:
        """How many of its functions have nothing to do."""
        return self.concurrency.idle(self.in_flight, now)

    def places(self, now: float) -> int:
        """How many more requests it takes, whether or not it should be asked."""
        places = self.concurrency.places(self.in_flight, now)
        if self.most_in_flight < math.inf:
            places = min(places, int(self.most_in_flight) - self.in_flight)
        return places

    def answered(self, event: RequestDone, kind: RequestKind, made_s: float, now: float) -> None:
        """Learn from an answer to a request of that time, but not from what may be a sample's fault."""
        took_s, worked = now - made_s, _WORKED[event.outcomes].any()
        if worked and not _OVER_SOON[event.outcomes].any():
            latency = self.latency_of(restore=kind is RequestKind.RESTORE)
            latency.observe(event.outcomes.size, took_s, event.duration_us / 1e6)
            self.concurrency.succeeded()
        if not event.cold_start:
            self.concurrency.begun(took_s - event.duration_us / 1e6, self.in_flight, now)
        if worked:
            self.breaker.worked()
        elif event.outcomes.size and _EXECUTOR_FAULTS[event.outcomes].all():
            why = next(iter(event.messages.values()), "no sample could be produced")
            self.breaker.failed(why, made_s, now)

    def failed(self, event: RequestFailed, reason: str, made_s: float, now: float) -> None:
        """Learn from a request that came to nothing, for this reason."""
        if event.kind is FailureKind.THROTTLED:
            self.concurrency.throttled(self.in_flight, now)
        elif event.kind is FailureKind.LOST:
            self.concurrency.lost(self.in_flight, now)
        blame = self.breaker.refused if event.kind in NEVER_RUN else self.breaker.failed
        blame(reason, made_s, now)

    def is_resting(self, now: float) -> bool:
        """Whether one that is for the store alone was set aside; one request at a time tries it after that,
        since it is asked for nothing else that could show that it works.
        """
        breaker = self.breaker
        return not self.decodes and breaker.tripped and bool(now < breaker.open_until_s() or self.in_flight)


class EligibleExecutors:
    """The executors that can produce a dataset, in order of preference, and the ranks that read such ones.

    Attributes:
        ready: by team, ranks that may have something to look ahead to, by the deadline of that.
        deferred: ranks that wait for a place at a cheaper executor, by the time when they can wait no more.

    Args:
        executors: they, the cheapest first.
        restores: whether they are asked for records of the store, which takes them another time.
        store_only: those that are for the store alone.
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
        self._seen: tuple[object, ...] = ()

    def latency_of(self, executor: ExecutorState) -> LatencyModel:
        """How long an executor takes for what it is asked for here."""
        return executor.latency_of(restore=self.restores)

    def places(self, now: float) -> int:
        """How many more requests may be made."""
        return sum(max(0, self.places_of(executor, now)) for executor in self.executors)

    def has_place(self, now: float) -> bool:
        """Whether any of them takes one more request, if only for what lies in the store."""
        return self.places(now) > 0 or any(each.places(now) > 0 for each in self.store_only)

    def places_of(self, executor: ExecutorState, now: float) -> int:
        """How many more requests an executor may be given. One that was set aside is tried with a single
        one.
        """
        places = executor.places(now)
        if not self._is_set_aside(executor):
            return places
        return 0 if now < self._open_until_s(executor) else min(places, 1 - executor.in_flight)

    def idle(self, now: float) -> int:
        """How many functions have nothing to do, of executors that may be asked."""
        return sum(executor.idle(now) for executor in self.executors if self.places_of(executor, now) > 0)

    def has_changed(self, now: float) -> bool:
        """Whether what :func:`pick` looks at has changed since it was asked last, time apart."""
        seen = tuple(
            (
                self.places_of(executor, now) > 0,
                self.is_sound(executor),
                executor.latency.known,
                executor.store and (executor.store.latency.known, executor.store.reading.tripped),
            )
            for executor in (*self.executors, *self.store_only)
        )
        changed = seen != self._seen
        self._seen = seen
        return changed

    def slow_s(self, samples: int) -> float | None:
        """How long slow requests take: waiting for one executor, and then another, where there are several;
        ``None`` before enough is known.
        """
        models = [
            # As long as it has only restored, that is what it does.
            executor.latency if executor.latency.answers or not executor.store else executor.store.latency
            for executor in (*self.executors, *self.store_only)
        ]
        times_s = [model.quantile_s(samples, _SLOW) for model in models]
        known_s = [time_s for time_s in times_s if time_s is not None]
        return sum(known_s) if known_s else None

    def late_s(self, executor: ExecutorState, samples: int, quantile: float) -> float | None:
        """When a request to an executor becomes a straggler; of one that has never answered, when it would be
        one at the slowest other, or after a while. ``None``: that cannot be said.
        """
        late_s = self.latency_of(executor).quantile_s(samples, quantile)
        if late_s is not None or len(self.executors) == 1:
            return late_s
        others_s = [self.latency_of(other).quantile_s(samples, _SLOW) for other in self.executors]
        return max((other_s for other_s in others_s if other_s is not None), default=_UNKNOWN_LATE_S)

    def can_turn_elsewhere(self, executor: ExecutorState) -> bool:
        """Whether another executor, in good health, could do the same."""
        return any(self.is_sound(other) for other in self.executors if other is not executor)

    def wake_times_s(self, now: float) -> Iterator[float]:
        """When executors that take no more now may do so by the passing of time alone."""
        for executor in (*self.executors, *self.store_only):
            if self.places_of(executor, now) > 0:
                continue
            open_until_s = self._open_until_s(executor)
            more_at_s = executor.concurrency.more_at_s(now) if open_until_s <= now else open_until_s
            if more_at_s is not None:
                yield more_at_s

    def has_cheaper(self, than: ExecutorState) -> bool:
        """Whether there is a cheaper executor than that one, in good health."""
        return any(map(self.is_sound, self.executors[: self.executors.index(than)]))

    def _open_until_s(self, executor: ExecutorState) -> float:
        """Until when an executor is left alone; not for long, where there is no better one."""
        if not self._is_set_aside(executor):
            return -math.inf
        return executor.breaker.open_until_s(OPEN_MAX_S if self.can_turn_elsewhere(executor) else _NO_OTHER_S)

    def is_sound(self, executor: ExecutorState) -> bool:
        """Whether an executor is there, and not set aside."""
        return executor.concurrency.capacity > 0 and not self._is_set_aside(executor)

    def _is_set_aside(self, executor: ExecutorState) -> bool:
        return executor.breaker.tripped and len(self.executors) > 1


class Deadline(NamedTuple):
    """When ``samples`` are wanted: the first in ``slack_s``, not above 0 for what a reader waits for.

    Only what is wanted ``soon`` does not wait while nobody knows how long requests take.
    """

    slack_s: float = 0.0
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
    """Pick who is to have the next request: the cheapest that is in time.

    Return ``None`` if nobody has a place for it, or if it can wait for one, and for how many seconds at most:
    infinitely many, if only a place or an answer ends that. ``other_than`` gets it only if no other has a
    place, ``failed_by`` only if no other is in good health.
    """
    able = [executor for executor in executors.executors if executor.number != failed_by]
    if not any(map(executors.is_sound, able)):
        able = list(executors.executors)
    free = [executor for executor in able if executors.places_of(executor, now) > 0]
    if not free:
        return None, math.inf
    if deadline.slack_s <= 0:  # a reader waits: nothing is to be tried with that
        free = [executor for executor in free if executors.is_sound(executor)] or free
    elif cheaper := [each for each in able[: able.index(free[0])] if executors.is_sound(each)]:
        models = [executors.latency_of(executor) for executor in (*cheaper, free[0])]
        times_s = [model.quantile_s(deadline.samples, _SLOW) for model in models]
        # A slow request there and, since it may come to nothing, one here.
        enough_s = sum(time_s for time_s in times_s if time_s is not None)
        if None in times_s and not deadline.soon:
            return None, math.inf
        if None not in times_s and deadline.slack_s > enough_s:
            return None, deadline.slack_s - enough_s
    return next((executor for executor in free if executor.number != other_than), free[0]), 0.0


class Soonest(NamedTuple):
    """The ready rank that goes first: when its team's turn is, its deadline, and the ranks of which it is the
    first.
    """

    turn: Turn
    deadline_s: float
    ranks: TimeQueue[CursorKey]


class Fleet:
    """All executors, in order of preference.

    Args:
        several: what is known of each, the cheapest first; at least one decodes.
        store: whether there is one.
    """

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

    def eligible(self, ineligible: frozenset[int]) -> EligibleExecutors:
        """The executors but those of some numbers."""
        found = self._groups.get(ineligible)
        if found is None:
            able = [each for each in self.executors if each.decodes and each.number not in ineligible]
            store_only = [each for each in self.executors if not each.decodes]
            found = self._groups[ineligible] = EligibleExecutors(able, store_only=store_only)
        return found

    @property
    def groups(self) -> Sequence[EligibleExecutors]:
        """All that were asked for so far; that of all executors first."""
        return tuple(self._groups.values())

    @property
    def capacity(self) -> int:
        """Requests that executors take at once at most."""
        return sum(executor.concurrency.capacity for executor in self.executors)

    def limit(self, now: float) -> int:
        """Requests that they take at once now."""
        return sum(executor.concurrency.limit(now) for executor in self.executors)

    def has_place(self, now: float) -> bool:
        """Whether any request may be made."""
        return any(eligible.has_place(now) for eligible in self._groups.values())

    def soonest(self, now: float, turn: Callable[[str], Turn | None]) -> Soonest | None:
        """The ready rank that goes first, of those whose executors have a place: of the team whose turn it
        is, the one with the earliest deadline. ``turn`` is ``None`` for teams that may have nothing more.
        """
        found: Soonest | None = None
        for eligible in self._groups.values():
            for team, ranks in eligible.ready.items():
                deadline_s = ranks.soonest_s()
                if deadline_s is None or (when := turn(team)) is None:
                    continue
                if (found is None or (when, deadline_s) < found[:2]) and eligible.has_place(now):
                    found = Soonest(when, deadline_s, ranks)
        return found
