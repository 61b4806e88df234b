"""The story of a request, up to its answer: it is made, may be raced by a second one, lands and is paid.

What it carries, and when, is :mod:`superdl.coordinator.core.dispatching`'s; what becomes of the samples
:mod:`superdl.coordinator.core.results`'s.

A straggler takes longer than nearly all do; a second request for the same samples races it. The first answer
wins; what the other one brings changes nothing but the account (Dean and Barroso, "The Tail at Scale", 2013).
Hedges are made where a function is idle or a reader waits, and never more of them than a share of all
requests.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import restoring
from superdl.coordinator.core.diagnosis import needed_bytes, thrash_text
from superdl.coordinator.core.events import CACHED, FailureKind, Prefetch, RequestDone, Warn
from superdl.coordinator.core.fleet import EligibleExecutors
from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.room import next_use
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState
from superdl.coordinator.core.state import Claim, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.core.events import (
        ExecutorResized,
        ExecutorsIneligible,
        RequestFailed,
    )
    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import State

__all__ = [
    "UNCOUNTED_FAILURES",
    "charge",
    "charge_for_nothing",
    "executor_resized",
    "executors_ineligible",
    "landed",
    "payer_of",
    "race_stragglers",
    "request",
    "send",
    "settle",
]

UNCOUNTED_FAILURES = frozenset({FailureKind.THROTTLED, FailureKind.UNAVAILABLE})
"""Kinds of failures that say nothing of samples, since no function was asked."""

_LATE_LEAST_S = 0.05
_RESTORE_LATE_LEAST_S = 2.0
_LOOK_EVERY_S = 0.05


def executor_resized(state: State, event: ExecutorResized, now: float) -> None:
    """An executor takes another number of requests at once."""
    backlog = event.capacity if event.backlog is None else event.backlog
    state.fleet.executors[event.executor].concurrency.resize(
        event.capacity, backlog=backlog, burst=event.burst, per_s=event.per_s, queues=event.queues, now=now
    )


def executors_ineligible(state: State, event: ExecutorsIneligible, now: float) -> None:
    """Some executors are not to be asked for a dataset, and all others are."""
    if event.executors == state.ineligible.get(event.dataset, frozenset()):
        return
    reading = state.reading(event.dataset)
    for cursor in reading:
        state.rest(cursor)
    if event.executors:
        state.ineligible[event.dataset] = event.executors
    else:
        state.ineligible.pop(event.dataset, None)
    for cursor in reading:
        state.wake(cursor)


def request(
    state: State,
    executor: ExecutorState,
    key: SetKey,
    indices: NDArray[np.int64],
    job: Job,
    now: float,
    *,
    restore: bool = False,
) -> None:
    """Have absent samples produced by an executor, or restored from the store, on account of a job."""
    indices = indices.copy()  # a view would keep alive all that it was cut from
    samples = state.set_of(key)
    again = 0 if restore else int(np.count_nonzero(samples.dropped[indices]))
    state.thrash.reproduced_samples += again
    if again and key.epoch == EVERY_EPOCH and state.thrash.produced_again(key.dataset, again, now):
        if needed_bytes(state) > state.budget_bytes:
            state.actions.append(Warn(thrash_text(state)))
        else:  # all has room by now: what was dropped before comes back once
            state.thrash.forget()
    samples.dropped[indices] = False
    samples.move(indices, SampleState.IN_FLIGHT)
    reserved_bytes = math.ceil(samples.sample_bytes * indices.size)
    state.reserved_bytes += reserved_bytes
    claim = Claim(np.ones(indices.size, dtype=np.bool_), reserved_bytes)
    saves = points = False
    if executor.store is not None and not restore:
        saves, points = restoring.keeping(state, executor.store, samples, indices, now)
    order = Prefetch(
        next(state.numbers),
        job.name,
        key,
        indices,
        state.settings.request_ttl_s,
        executor=executor.number,
        restore=restore,
        save=saves,
        pointers=points,
    )
    send(state, Request(order, job, claim, now), now)


def payer_of(state: State, job: Job, key: SetKey, wanted: NDArray[np.int64]) -> Job | None:
    """The job on whose account goes what a reader of ``job`` waits for: that one, or where its team may spend
    no more, another that will need all of it; ``None`` if there is none.
    """
    if state.turn(job.team) is not None:
        return job
    others = (
        other
        for other in state.jobs.values()
        if other.dataset == key.dataset and state.turn(other.team) is not None
    )
    return next((other for other in others if (next_use(key, wanted, other) < NEVER_SOON).all()), None)


def race_stragglers(state: State, now: float) -> None:
    """Make the rivals of the stragglers that deserve one: a share of all requests, while functions are idle
    or a reader waits.
    """
    watched = state.stragglers
    if not len(watched) or not state.settings.hedge_share:
        return
    misses: Mapping[SetKey, NDArray[np.int64]] = {}
    if len(state.misses) and now >= watched.look_again_s:
        watched.look_again_s = now + _LOOK_EVERY_S
        misses = state.misses.by_set(now)
    for number in watched.late:
        late = state.requests[number]
        # Nothing is decoded for nothing but idleness that the store will bring.
        idle = not late.order.restore and state.fleet.idle(now) > 0
        affordable = watched.affordable(state.settings.hedge_share) > 0
        deserved = affordable and (idle or _is_missed(state, late, misses))
        if state.wants(late.order.samples.dataset) and (deserved or _is_unproven(state, late)):
            _race(state, number, now)


def _race(state: State, number: int, now: float) -> None:
    """Make the rival of a straggler, if there is a place for it."""
    late = state.requests[number]
    eligible = state.eligible_for(late.order.samples.dataset)
    executor, _ = eligible.choose(now, other_than=late.order.executor)
    if executor is None or state.turn(late.team) is None:
        return
    state.stragglers.raced(number)
    state.account(late).hedges += 1
    late.rival = next(state.numbers)
    order = replace(
        late.order,
        request_id=late.rival,
        executor=executor.number,
        hedge_of=number,
        # A store that hangs is raced by decoding; and one pack of the samples is enough.
        restore=False,
        save=False,
        pointers=False,
    )
    send(state, Request(order, late.payer, late.claim, now, rival=number), now)


def send(state: State, request: Request, now: float) -> None:
    """Have a request carried out, and watch it, unless it is a save, which nobody waits for."""
    order, counters = request.order, state.account(request)
    counters.invocations += 1
    counters.requests_in_flight += 1
    state.requests[order.request_id] = request
    state.recent_requests.append(request)
    executor = state.fleet.executors[order.executor]
    executor.in_flight += 1
    executor.samples_in_flight += order.indices.size
    executor.requests += 1
    executor.concurrency.used(executor.in_flight, now)
    if executor.store is not None:
        executor.store.saves += order.from_cache
        for breaker, asked in ((executor.store.reading, order.restore), (executor.store.writing, order.save)):
            if asked and breaker.tripped:
                breaker.probe = order.request_id
    if not order.from_cache:
        request.expected_s = state.teams.began(
            request.team, order.indices.size, capacity=state.fleet.capacity
        )
        if request.rival is None:
            state.stragglers.watch(order.request_id, _late_at_s(state, executor, order, now))
    state.actions.append(order)


def _late_at_s(state: State, executor: ExecutorState, order: Prefetch, now: float) -> float | None:
    """When a request will be a straggler; ``None`` if that cannot be said."""
    able = (
        EligibleExecutors((executor,), restores=True)
        if order.restore
        else state.eligible_for(order.samples.dataset)
    )
    late_s = able.late_s(executor, order.indices.size, state.settings.hedge_quantile)
    if order.restore:
        late_s = max(late_s or 0.0, _RESTORE_LATE_LEAST_S)
    return None if late_s is None else now + max(late_s, _LATE_LEAST_S)


def _is_unproven(state: State, request: Request) -> bool:
    """Whether the executor of a straggler has never answered, though there is another: no share of all
    requests bounds its rivals, but that it is soon set aside.
    """
    executor = state.fleet.executors[request.order.executor]
    return (
        not executor.latency.answers
        and not (executor.store and executor.store.latency.answers)
        and len(state.eligible_for(request.order.samples.dataset).executors) > 1
    )


def _is_missed(state: State, request: Request, misses: Mapping[SetKey, NDArray[np.int64]]) -> bool:
    if request.order.samples not in misses:
        return False
    in_flight = state.set_of(request.order.samples).among(
        misses[request.order.samples], SampleState.IN_FLIGHT
    )
    return bool(np.isin(in_flight, request.order.indices).any())


def charge(state: State, request: Request, gb_s: float, now: float, *, answer: RequestDone | None) -> float:
    """Account for an invocation, whatever came of it; what it cost in US dollars."""
    counters = state.account(request)
    counters.gb_s += gb_s
    record_bytes = 0
    if answer is not None:
        record_bytes = int(answer.record_bytes[answer.outcomes == CACHED].sum())
        counters.store_requests += answer.store_requests
        counters.store_bytes += answer.store_bytes
    if answer is not None and not request.order.from_cache:  # else it was there, and counted, before
        state.stalls.work_for(request.order.samples.dataset).add(answer, restore=request.order.restore)
        counters.fetch_s += answer.fetch_us / 1e6
        counters.decode_s += answer.decode_us / 1e6
        counters.push_s += answer.push_us / 1e6
        counters.source_bytes += answer.source_bytes
        counters.source_requests += answer.source_requests
        counters.record_bytes += record_bytes
    usd = state.ledger.invoked(
        request.order.samples.dataset,
        executor=request.order.executor,
        gb_s=gb_s,
        source_requests=answer.source_requests if answer else 0,
        source_bytes=answer.source_bytes if answer else 0,
        record_bytes=record_bytes,
        store_gets=answer.store_requests if answer and request.order.restore else 0,
        store_puts=answer.store_requests if answer and not request.order.restore else 0,
        now=now,
    )
    executor = state.fleet.executors[request.order.executor]
    if answer is not None:
        executor.outcomes["answered"] += 1
        if answer.cold_start:
            executor.cold_starts += 1
            executor.cold_s += max(0.0, now - request.made_s - answer.duration_us / 1e6)
    executor.usd += usd
    state.teams[request.team].usd += usd
    executor.most_in_flight = math.inf
    return usd


def charge_for_nothing(state: State, request: Request, event: RequestFailed, now: float) -> None:
    """Account for a request that came to nothing, unless it was never run."""
    state.fleet.executors[request.order.executor].outcomes[event.kind.name.lower()] += 1
    if event.refused or (event.kind in UNCOUNTED_FAILURES and not event.gb_s):
        state.account(request).invocations -= 1
    else:
        charge(state, request, event.gb_s, now, answer=None)


def settle(state: State, request: Request, settled: NDArray[np.bool_]) -> None:
    """It is known what becomes of these samples, also for the request that races this one."""
    claim = request.claim
    claim.unsettled &= ~settled
    # A rival of pointers still writes records over them.
    if not claim.unsettled.any() and not (request.order.pointers and request.rival in state.requests):
        state.reserved_bytes -= claim.reserved_bytes
        claim.reserved_bytes = 0


def landed(state: State, event: RequestDone | RequestFailed, now: float) -> Request | None:
    """A request was answered, or came to nothing; ``None`` for one that is not in flight."""
    request_id = event.request_id
    request = state.requests.pop(request_id, None)
    if request is not None:
        state.account(request).requests_in_flight -= 1
        executor = state.fleet.executors[request.order.executor]
        executor.in_flight -= 1
        executor.samples_in_flight -= request.order.indices.size
        if executor.store is not None:
            executor.store.saves -= request.order.from_cache
        state.stragglers.landed(request_id)
        if not request.order.from_cache:
            ran_s = _ran_s(request, event, now)
            state.teams.ended(request.team, request.order.indices.size, ran_s, expected_s=request.expected_s)
    return request


def _ran_s(request: Request, event: RequestDone | RequestFailed, now: float) -> float:
    """How long a function was at a request, as far as is known."""
    if isinstance(event, RequestDone):
        return event.duration_us / 1e6
    return 0.0 if event.refused or event.kind in UNCOUNTED_FAILURES else now - request.made_s
