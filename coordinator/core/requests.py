"""The life cycle of a request: created, sent, answered or failed, and finished."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core import background, restoring
from superdl.coordinator.core.cache import choose_to_read_back
from superdl.coordinator.core.events import CACHED, TOMBSTONE, FailureKind, Prefetch, RequestDone, Warn
from superdl.coordinator.core.fleet import NEVER_RUN, Deadline, pick
from superdl.coordinator.core.lookahead import needed_bytes, thrash_text
from superdl.coordinator.core.retrying import end_outages, retry_failed, retry_missing
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState
from superdl.coordinator.core.state import Claim, Request
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.coordinator.core.events import RequestFailed
    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Bools, Ints, SampleSet, SetKey
    from superdl.coordinator.core.state import State

_LATE_LEAST_S = 0.05  # no request is a straggler before this
_RESTORE_LATE_LEAST_S = 2.0  # the same for restores
_LOOK_EVERY_S = 0.05  # between checks for stragglers that readers are waiting for


def make(
    state: State,
    executor: ExecutorState,
    key: SetKey,
    indices: Ints,
    job: Job,
    now: float,
    *,
    restore: bool = False,
) -> None:
    """Request absent samples from an executor, and charge a job."""
    indices = indices.copy()  # a view would keep the entire array alive
    samples = state.set_of(key)
    if not restore:
        _note_thrash(state, samples, indices, now)
    samples.dropped[indices] = False
    samples.move(indices, SampleState.IN_FLIGHT)
    reserved_bytes = math.ceil(samples.sample_bytes * indices.size)
    state.reserved_bytes += reserved_bytes
    claim = Claim(np.ones(indices.size, dtype=np.bool_), reserved_bytes)
    kind = restoring.kind_for(state, executor, samples, indices, now, restore=restore)
    number, ttl_s = next(state.numbers), state.settings.request_ttl_s
    order = Prefetch(number, job.name, key, indices, ttl_s, kind, executor=executor.number)
    _send(state, Request(order, job, claim, now), now)


def make_save(state: State, executor: ExecutorState, key: SetKey, indices: Ints, now: float) -> None:
    """Request that cached samples be written to a pack. Charge a job that reads the dataset, if any."""
    job, ttl_s = next(iter(state.jobs_of(key.dataset)), None), state.settings.request_ttl_s
    name, number = "" if job is None else job.name, next(state.numbers)
    order = Prefetch(number, name, key, indices, ttl_s, RequestKind.SAVE, executor=executor.number)
    _send(state, Request(order, job, Claim(np.zeros(indices.size, dtype=np.bool_), 0), now), now)


def _note_thrash(state: State, samples: SampleSet, indices: Ints, now: float) -> None:
    key, again = samples.key, int(np.count_nonzero(samples.dropped[indices]))
    state.thrash.reproduced_samples += again
    if again and key.epoch == EVERY_EPOCH and state.thrash.add(key.dataset, now, again=again):
        if needed_bytes(state) > state.budget_bytes:
            state.actions.append(Warn(thrash_text(state)))
        else:  # there is room for all now, so dropped samples are produced again only once
            state.thrash.clear()


def _send(state: State, request: Request, now: float) -> None:
    order, counters = request.order, state.counters(request)
    counters.invocations += 1
    counters.requests_in_flight += 1
    state.requests[order.request_id] = request
    state.recent_requests.append(request)
    executor = state.fleet.executors[order.executor]
    executor.in_flight += 1
    executor.samples_in_flight += order.indices.size
    executor.requests += 1
    breaker = executor.breaker_for(order.kind)
    if breaker is not None and breaker.tripped:
        breaker.probe = order.request_id
    if order.kind.fills_cache:
        request.expected_s = state.teams.began(
            request.team, order.indices.size, capacity=state.fleet.capacity
        )
        if request.rival is None:
            state.stragglers.watch(order.request_id, _late_at_s(state, request, now))
    state.actions.append(order)


def _late_at_s(state: State, request: Request, now: float) -> float | None:
    order, executor = request.order, state.fleet.executors[request.order.executor]
    samples, quantile = order.indices.size, state.settings.hedge_quantile
    if order.kind is RequestKind.RESTORE:
        late_s = executor.latency_of(restore=True).quantile_s(samples, quantile)
        return now + max(late_s or 0.0, _RESTORE_LATE_LEAST_S)
    late_s = state.eligible_for(order.samples.dataset).late_s(executor, samples, quantile)
    return None if late_s is None else now + max(late_s, _LATE_LEAST_S)


def race_stragglers(state: State, now: float) -> None:
    """Hedge stragglers if functions are idle or a reader is waiting, up to a share of all requests."""
    # Dean and Barroso, "The Tail at Scale", 2013.
    watched = state.stragglers
    if not watched.late or not state.settings.hedge_share:
        return
    misses: Mapping[SetKey, Ints] = {}
    if len(state.misses) and now >= watched.look_again_s:
        watched.look_again_s = now + _LOOK_EVERY_S
        misses = state.misses.by_set(now)
    for number in watched.late:
        late = state.requests[number]
        dataset = late.order.samples.dataset
        deserved = watched.affordable(state.settings.hedge_share) > 0 and (
            # Do not decode what the store will provide just because functions are idle.
            (late.order.kind.decodes and any(group.idle(now) for group in state.fleet.groups))
            or _is_missed(state, late, misses)
        )
        if not state.is_read(dataset) or not (deserved or _is_unproven(state, late)):
            continue
        executor, _ = pick(state.eligible_for(dataset), Deadline(), now, other_than=late.order.executor)
        if executor is not None and state.turn(late.team) is not None:
            _race(state, late, executor, now)


def _race(state: State, late: Request, executor: ExecutorState, now: float) -> None:
    state.stragglers.raced(late.order.request_id)
    late.rival = next(state.numbers)
    state.counters(late).hedges += 1
    raced, kind = late.order.request_id, RequestKind.DECODE  # the store may hang; one pack is enough
    order = replace(late.order, request_id=late.rival, kind=kind, hedge_of=raced, executor=executor.number)
    _send(state, Request(order, late.payer, late.claim, now, rival=raced), now)


def _is_unproven(state: State, request: Request) -> bool:
    """Return whether a straggler's executor has never answered and there is another executor."""
    # Such hedges are unlimited, but the executor is soon set aside.
    executor = state.fleet.executors[request.order.executor]
    return (
        not executor.latency.results
        and not (executor.store and executor.store.latency.results)
        and len(state.eligible_for(request.order.samples.dataset).executors) > 1
    )


def _is_missed(state: State, request: Request, misses: Mapping[SetKey, Ints]) -> bool:
    key = request.order.samples
    if key not in misses:
        return False
    in_flight = state.set_of(key).among(misses[key], SampleState.IN_FLIGHT)
    return bool(np.isin(in_flight, request.order.indices).any())


def request_done(state: State, event: RequestDone, now: float) -> None:
    """Accept the samples that arrived, and retry the others."""
    ended = finish(state, event, now)
    if ended is None:
        return
    request, cached = ended.request, ended.cached
    order, executor = request.order, state.fleet.executors[request.order.executor]
    if order.kind.fills_cache:
        executor.answered(event, order.kind, request.sent_s, now)
        _judge_loser(state, request, now)
    if executor.store is not None:
        restoring.answered(state, request, executor.store, event, now)
    if order.kind is RequestKind.SAVE:
        background.save_answered(state, request, event, now)
        return
    samples, indices = state.set_of(order.samples), order.indices
    records = restoring.accept(state, samples, indices, event, cached)
    state.add_resident(order.samples, records, now)
    choose_to_read_back(state, request, indices[cached], event.record_bytes[cached], now)
    samples.move(indices[ended.failed], SampleState.FAILED)
    for offset in np.flatnonzero(ended.failed):
        state.remember_failure(order.samples, int(indices[offset]), event.messages.get(int(offset), ""))
    if cached.any():
        end_outages(state, request)
    restoring.accept_late(state, samples, indices, event, ended.late)
    if ended.missing.any():
        retry_missing(state, request, event, ended.missing, now, any_arrived=bool(cached.any()))


def request_failed(state: State, event: RequestFailed, now: float) -> None:
    """Retry the samples of a failed request."""
    ended = finish(state, event, now)
    if ended is None:
        return
    request, message = ended.request, ended.request.result
    if request.order.kind is RequestKind.SAVE:
        restoring.distrust(state, request, message, now)
        background.save_again(state, request, np.ones(request.order.indices.size, dtype=np.bool_), now)
        return
    state.fleet.executors[request.order.executor].failed(event, message, request.sent_s, now)
    if event.kind is FailureKind.THROTTLED:
        state.stalls.work_for(request.order.samples.dataset).throttled += 1
    not_restored = request.order.kind is RequestKind.RESTORE and event.kind not in NEVER_RUN
    if not_restored:  # decode instead, because a restore would crash or hang again
        unsettled = request.order.indices[ended.missing | request.claim.unsettled]
        restoring.forget(state, state.set_of(request.order.samples), unsettled)
    if not_restored or event.kind is FailureKind.TIMED_OUT:  # a hanging store delays writers
        restoring.distrust(state, request, message, now)
    if ended.missing.any():
        retry_failed(state, request, event.kind, np.flatnonzero(ended.missing), now)


class Ended(NamedTuple):
    """A finished request, with masks over its samples."""

    request: Request
    # Unsettled samples that are now cached, that failed permanently, and that no rival may provide.
    cached: Bools
    failed: Bools
    missing: Bools
    # Samples that arrived after they were settled.
    late: Bools


def finish(state: State, event: RequestDone | RequestFailed, now: float) -> Ended | None:
    """Bill a request and settle its samples. Return ``None`` for a duplicate result."""
    request = state.requests.pop(event.request_id, None)
    if request is None:
        return None
    _release_slot(state, request, event, now)
    usd = _bill(state, request, event, now)
    unsettled = request.claim.unsettled.copy()
    cached = failed = late = np.zeros_like(unsettled)
    if isinstance(event, RequestDone):
        written = event.outcomes == CACHED
        cached, late = unsettled & written, written & ~unsettled
        failed = unsettled & (event.outcomes == TOMBSTONE)
    raced = request.rival in state.requests  # the rival may still provide the rest
    missing = np.zeros_like(unsettled) if raced else unsettled & ~(cached | failed)
    order, claim = request.order, request.claim
    claim.unsettled &= ~(cached | failed | missing)
    # A rival may still overwrite pointers with records.
    if not claim.unsettled.any() and not (raced and order.kind is RequestKind.DECODE_TO_POINTERS):
        state.reserved_bytes -= claim.reserved_bytes
        claim.reserved_bytes = 0
    request.ended_s = now
    if not isinstance(event, RequestDone):
        request.result = f"{event.kind.value}: {event.message}"
    elif order.kind is RequestKind.SAVE:
        request.result = f"{int(np.count_nonzero(background.saved(event)))} saved"
    else:
        produced = int(np.count_nonzero(cached))
        request.result = f"{produced} cached, {int(np.count_nonzero(unsettled)) - produced} not"
        counters = state.counters(request)
        counters.samples_failed += int(np.count_nonzero(failed))
        counters.samples_restored += 0 if order.kind.decodes else produced
        counters.samples_produced += produced if order.kind.decodes else 0
        state.fleet.executors[order.executor].samples += int(np.count_nonzero(cached | late))
        state.ledger.add_produced(order.samples.dataset, order.job, produced, usd, order.executor)
    return Ended(request, cached, failed, missing, late)


def _release_slot(state: State, request: Request, event: RequestDone | RequestFailed, now: float) -> None:
    order, executor = request.order, state.fleet.executors[request.order.executor]
    state.counters(request).requests_in_flight -= 1
    executor.in_flight -= 1
    executor.samples_in_flight -= order.indices.size
    state.stragglers.landed(order.request_id)
    if order.kind is RequestKind.SAVE:
        return
    if isinstance(event, RequestDone):
        ran_s = event.duration_us / 1e6
    else:
        ran_s = 0.0 if event.refused or event.kind in NEVER_RUN else now - request.sent_s
    state.teams.ended(request.team, order.indices.size, ran_s, expected_s=request.expected_s)


def _bill(state: State, request: Request, event: RequestDone | RequestFailed, now: float) -> float:
    """Bill an invocation, unless no function ran, and return its cost in US dollars."""
    order, counters = request.order, state.counters(request)
    executor, units = state.fleet.executors[order.executor], dict[str, int]()
    if isinstance(event, RequestDone):
        executor.outcomes["answered"] += 1
        record_bytes = int(event.record_bytes[event.outcomes == CACHED].sum())
        counters.store_requests += event.store_requests
        counters.store_bytes += event.store_bytes
        if event.cold_start:
            executor.cold_starts += 1
            executor.cold_s += max(0.0, now - request.sent_s - event.duration_us / 1e6)
        if order.kind.fills_cache:  # a save's samples were counted before
            state.stalls.work_for(order.samples.dataset).add(event, order.kind)
            counters.fetch_s += event.fetch_us / 1e6
            counters.decode_s += event.decode_us / 1e6
            counters.push_s += event.push_us / 1e6
            counters.source_bytes += event.source_bytes
            counters.source_requests += event.source_requests
            counters.record_bytes += record_bytes
        units = {"source_requests": event.source_requests, "source_bytes": event.source_bytes}
        units["store_gets" if order.kind is RequestKind.RESTORE else "store_puts"] = event.store_requests
        units["record_bytes"] = record_bytes
    else:
        executor.outcomes[event.kind.name.lower()] += 1
        if event.refused or (event.kind in NEVER_RUN and not event.gb_s):
            counters.invocations -= 1
            return 0.0
    counters.gb_s += event.gb_s
    dataset, number = order.samples.dataset, order.executor
    usd = state.ledger.bill_invocation(dataset, executor=number, gb_s=event.gb_s, now=now, **units)
    executor.usd += usd
    state.teams[request.team].usd += usd
    executor.most_in_flight = math.inf
    return usd


def _judge_loser(state: State, winner: Request, now: float) -> None:
    """Record a failure for the loser of a race, because it may never answer."""
    loser = state.requests.get(winner.rival) if winner.rival is not None else None
    if loser is None:
        return
    silent_s = now - loser.sent_s
    if loser.order.kind is RequestKind.RESTORE:
        restoring.distrust(state, loser, f"no answer within {silent_s:.1f} s", now)
    elif loser.order.executor != winner.order.executor and loser.sent_s < winner.sent_s:
        reason = f"no answer within {silent_s:.1f} s, by which time another executor had answered"
        state.fleet.executors[loser.order.executor].breaker.failed(reason, loser.sent_s, now)
