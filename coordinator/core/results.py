"""What becomes of the samples of a request: cached, failed for good, or tried again, within bounds.

Now and then a record that was just produced is read back. A reader checks what it reads, but a path that
spoils bytes on their way in would then be found by every reader of every record. One record of each executor,
every few seconds, finds it at the price of one GET. A record that does not read back is produced again; where
there is another executor, the one that wrote it is set aside until a record of it reads back well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import restoring, saving
from superdl.coordinator.core.events import CACHED, OUTCOME_ORDER, Drop, FailureKind, ReadBack, Warn
from superdl.coordinator.core.requesting import (
    UNCOUNTED_FAILURES,
    charge,
    charge_for_nothing,
    landed,
    settle,
)
from superdl.coordinator.core.retrying import await_source, end_outages, try_again, try_at_once, want_again
from superdl.coordinator.core.samples import SampleState, count_again
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.events import RecordReadBack, RequestDone, RequestFailed
    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.state import Request, State

__all__ = ["record_read_back", "request_done", "request_failed"]

_EXPIRED_EARLY = (
    "; it answered so after {:.1f} s of the {:.0f} s that the request lasts: the clocks of the function and "
    "of the coordinator differ, or the function's own time limit is too short for anything"
)
_UNANSWERED_MAX = 5
"""So often at most no answer may come for a sample, while functions begin late, before it is suspected."""

_TOMBSTONE = OUTCOME_ORDER.index(Outcome.TOMBSTONE)
# Not the sample's fault: tried again without counting as an attempt.
_EXPIRED = OUTCOME_ORDER.index(Outcome.EXPIRED)
_TIMED_OUT = OUTCOME_ORDER.index(Outcome.TIMED_OUT)
_CACHE_FULL = OUTCOME_ORDER.index(Outcome.CACHE_FULL)
_UNCOUNTED = np.isin(OUTCOME_ORDER, [Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED])
_NOT_RESTORED = np.isin(OUTCOME_ORDER, [Outcome.NOT_STORED, Outcome.STORE_ERROR])
_UNAVAILABLE = OUTCOME_ORDER.index(Outcome.UNAVAILABLE)
_AT_ONCE = _UNCOUNTED | _NOT_RESTORED | np.isin(OUTCOME_ORDER, [Outcome.UNAVAILABLE])
"""Where one of these came, an answer was over sooner than usual."""
_WORKED = np.isin(OUTCOME_ORDER, [Outcome.CACHED, Outcome.TOMBSTONE])
_EXECUTOR_FAULTS = np.isin(
    OUTCOME_ORDER,
    [Outcome.CACHE_ERROR, Outcome.REFUSED, Outcome.SOURCE_ERROR, Outcome.STEP_ERROR, Outcome.UNAVAILABLE],
)
_ISOLATING_FAILURES = frozenset({FailureKind.CRASHED, FailureKind.TIMED_OUT, FailureKind.RAISED})
_EVERY_S = 5.0
_DOUBTED_EVERY_S = 0.5
_BYTES_MAX = 16 * 2**20


def request_done(state: State, event: RequestDone, now: float) -> None:
    """A function answered; an answer to a request that is not in flight (a second one) changes nothing."""
    request = landed(state, event, now)
    if request is None:
        return
    order, executor = request.order, state.fleet.executors[request.order.executor]
    if not order.from_cache:
        _judge(executor, request, event, now)
        _judge_loser(state, request, now)
    usd = charge(state, request, event.gb_s, now, answer=event)
    if executor.store is not None:
        restoring.answered(state, request, executor, event, now)
    if order.from_cache:
        saving.answered(state, request, event, now)
        return
    executor.samples += int(np.count_nonzero(event.outcomes == CACHED))
    samples, indices, unsettled = state.set_of(order.samples), order.indices, request.claim.unsettled
    cached, tombstoned = unsettled & (event.outcomes == CACHED), unsettled & (event.outcomes == _TOMBSTONE)
    left = unsettled & ~(cached | tombstoned)
    written_late = ~unsettled & (event.outcomes == CACHED)
    _store(state, request, event, cached)
    state.has_come(order.samples, indices[cached], now)
    choose_to_read_back(state, request, indices[cached], event.record_bytes[cached], now)
    samples.move(indices[tombstoned], SampleState.FAILED)
    for offset in np.flatnonzero(tombstoned):
        state.remember_failure(order.samples, int(indices[offset]), event.messages.get(int(offset), ""))
    produced, failed = int(np.count_nonzero(cached)), int(np.count_nonzero(tombstoned))
    counters = state.account(request)
    if order.restore:
        counters.samples_restored += produced
    else:
        counters.samples_produced += produced
    counters.samples_failed += failed
    state.ledger.produced(order.samples.dataset, order.job, produced, usd, order.executor)
    if produced:
        end_outages(state, request)
    request.end(now, f"{produced} cached, {failed + int(np.count_nonzero(left))} not")
    _written_late(state, request, event, written_late)
    settle(state, request, cached | tombstoned)
    if left.any() and request.rival not in state.requests:  # else that one may still bring the rest
        settle(state, request, left)
        _try_rest(state, request, event, left, now, some_came=produced > 0)


def _try_rest(
    state: State,
    request: Request,
    event: RequestDone,
    left: NDArray[np.bool_],
    now: float,
    *,
    some_came: bool,
) -> None:
    """Have tried again what an answer did not bring: at once, after a while, or when its source is back."""
    order, messages = request.order, event.messages
    expired_early = _expired_early(state, request, event, now)
    uncounted = left & _UNCOUNTED[event.outcomes] & (not expired_early)
    not_restored = left & _NOT_RESTORED[event.outcomes] & order.restore
    unavailable = left & (event.outcomes == _UNAVAILABLE)
    counted = left & ~(uncounted | not_restored | unavailable)
    try_at_once(state, request, order.indices[not_restored], now)
    _make_room_for_refused(state, request, int(np.count_nonzero(uncounted & (event.outcomes == _CACHE_FULL))))
    why = {
        int(offset): messages.get(int(offset)) or OUTCOME_ORDER[event.outcomes[offset]].value
        for offset in np.flatnonzero(uncounted)
    }
    try_again(state, request, np.flatnonzero(uncounted), why, now, counts=False, alone=False)
    await_source(state, request, np.flatnonzero(unavailable), now, some_came=some_came)
    if expired_early:  # else it would be asked for, and paid for, without end
        messages = _with_clocks(state, request, messages, now)
    slow = counted & (event.outcomes == _TIMED_OUT)  # alone, since it keeps a function from all others
    try_again(state, request, np.flatnonzero(slow), messages, now, counts=True, alone=True)
    try_again(state, request, np.flatnonzero(counted & ~slow), messages, now, counts=True, alone=False)


def _make_room_for_refused(state: State, request: Request, refused: int) -> None:
    """The cache had no memory for samples for which there was room by our account: the account is wrong.

    So what seems free is not, and as much as was refused is to be dropped, until the next looks at the
    servers say what there is (see :func:`superdl.coordinator.core.auditing.cache_resized`).
    """
    if refused:
        refused_bytes = math.ceil(state.set_of(request.order.samples).sample_bytes * refused)
        withheld_bytes = state.withheld_bytes + max(0, state.free_bytes) + refused_bytes
        state.withheld_bytes = min(withheld_bytes, state.budget_bytes)


def _judge(executor: ExecutorState, request: Request, event: RequestDone, now: float) -> None:
    """What an answer says of the executor: nothing, where it may be the samples' or the clock's fault."""
    took_s, worked = now - request.made_s, _WORKED[event.outcomes].any()
    if worked and not _AT_ONCE[event.outcomes].any():
        latency = executor.latency_of(restore=request.order.restore)
        latency.observe(event.outcomes.size, took_s, event.duration_us / 1e6)
        executor.concurrency.succeeded()
    if not event.cold_start:
        executor.concurrency.begun(took_s - event.duration_us / 1e6, executor.in_flight, now)
    if worked:
        executor.breaker.worked()
    elif event.outcomes.size and _EXECUTOR_FAULTS[event.outcomes].all():
        why = next(iter(event.messages.values()), "no sample could be produced")
        executor.breaker.failed(why, request.made_s, now)


def _judge_loser(state: State, winner: Request, now: float) -> None:
    """An executor whose request was overtaken by a later one elsewhere may answer none at all; and the store
    too, if decoding was quicker than a restore that had begun long before.
    """
    loser = state.requests.get(winner.rival) if winner.rival is not None else None
    if loser is None:
        return
    silent_s = now - loser.made_s
    if loser.order.restore:
        restoring.distrust(state, loser, f"no answer within {silent_s:.1f} s", now, writing=False)
    elif loser.order.executor != winner.order.executor and loser.made_s < winner.made_s:
        reason = f"no answer within {silent_s:.1f} s, when another executor had answered"
        state.fleet.executors[loser.order.executor].breaker.failed(reason, loser.made_s, now)


def _expired_early(state: State, request: Request, event: RequestDone, now: float) -> bool:
    """Whether a function has begun nothing since its time was over, long before it was by our clock."""
    is_early = now - request.made_s < state.settings.request_ttl_s / 2
    return is_early and bool((event.outcomes == _EXPIRED).all())


def _with_clocks(state: State, request: Request, messages: dict[int, str], now: float) -> dict[int, str]:
    """Add to each message what may be wrong with clocks."""
    words = _EXPIRED_EARLY.format(now - request.made_s, state.settings.request_ttl_s)
    return {offset: f"{messages.get(offset, '')}{words}" for offset in range(request.order.indices.size)}


def request_failed(state: State, event: RequestFailed, now: float) -> None:
    """A request came to nothing. If a sample may be to blame, each goes alone, so that one harms no other."""
    request = landed(state, event, now)
    if request is None:
        return
    charge_for_nothing(state, request, event, now)
    message = f"{event.kind.value}: {event.message}"
    request.end(now, message)
    if request.order.from_cache:
        restoring.distrust(state, request, message, now, writing=True)
        saving.try_again(state, request, np.ones(request.order.indices.size, dtype=np.bool_), now)
        return
    executor = state.fleet.executors[request.order.executor]
    if event.kind is FailureKind.THROTTLED:
        executor.concurrency.throttled(executor.in_flight, now)
        state.stalls.work_for(request.order.samples.dataset).throttled += 1
    elif event.kind is FailureKind.LOST:
        executor.concurrency.lost(executor.in_flight, now)
    if event.kind in UNCOUNTED_FAILURES:
        executor.breaker.refused(message, request.made_s, now)
    else:
        executor.breaker.failed(message, request.made_s, now)
    not_restored = request.order.restore and event.kind not in UNCOUNTED_FAILURES
    timed_out = event.kind is FailureKind.TIMED_OUT
    if not_restored or timed_out:
        restoring.came_to_nothing(state, request, message, now)
    if request.rival in state.requests:
        settle(state, request, np.zeros_like(request.claim.unsettled))
        return  # the rival may still bring all
    left = np.flatnonzero(request.claim.unsettled)
    messages = dict.fromkeys(left.tolist(), message)
    settle(state, request, request.claim.unsettled.copy())
    if not_restored:
        try_at_once(state, request, request.order.indices[left], now)
        return
    if event.kind is FailureKind.LOST:
        unsuspected = _unsuspected(state, request, left)
        try_again(state, request, left[unsuspected], messages, now, counts=False, alone=False)
        try_again(state, request, left[~unsuspected], messages, now, counts=True, alone=True)
        return
    counts, alone = event.kind not in UNCOUNTED_FAILURES, event.kind in _ISOLATING_FAILURES
    try_again(state, request, left, messages, now, counts=counts, alone=alone)


def _unsuspected(state: State, request: Request, offsets: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which samples of a request to which no answer came are not suspected yet.

    An executor that drops requests says no more than a function that dies of a sample. So the first silence
    is nobody's fault, nor are a few more while functions begin late, which goes before dropping.
    """
    executor = state.fleet.executors[request.order.executor]
    bound = _UNANSWERED_MAX if executor.concurrency.was_crowded(request.made_s) else 1
    unanswered = state.set_of(request.order.samples).unanswered
    return count_again(unanswered, request.order.indices[offsets]) <= bound


def _store(state: State, request: Request, event: RequestDone, written: NDArray[np.bool_]) -> None:
    """The cache holds these records, or pointers, now."""
    samples, indices, lengths = state.set_of(request.order.samples), request.order.indices, event.record_bytes
    if event.pointers is None:
        samples.store(indices[written], lengths[written])
        return
    whole, pointed = written & ~event.pointers, written & event.pointers
    samples.store(indices[whole], lengths[whole])
    samples.point(indices[pointed], lengths[pointed])
    restoring.withdraw_pointers(state, request.order.samples.dataset)


def _written_late(state: State, request: Request, event: RequestDone, written: NDArray[np.bool_]) -> None:
    """Delete what the loser of a race has written after it was dropped: nobody would account for it. Where it
    has written a pointer over a record, or a record over a pointer, account for what is there now.
    """
    samples = state.set_of(request.order.samples)
    late = samples.among(request.order.indices[written], SampleState.ABSENT)
    if late.size:
        state.actions.append(Drop(request.order.samples, late))
    over = written & (samples.state[request.order.indices] == SampleState.RESIDENT)
    if (event.pointers is not None or samples.pointed is not None) and over.any():
        samples.move(request.order.indices[over], SampleState.CHECKING)
        _store(state, request, event, over)


def choose_to_read_back(
    state: State, request: Request, indices: NDArray[np.int64], record_bytes: NDArray[np.int64], now: float
) -> None:
    """Have one of the records that an answer brought read back, if it is time to."""
    executor = state.fleet.executors[request.order.executor]
    every_s = _DOUBTED_EVERY_S if executor.breaker.corrupts else _EVERY_S
    if not indices.size or now < executor.read_back_s + every_s:
        return
    executor.read_back_s = now
    place = state.events % indices.size  # any would do
    if record_bytes[place] <= _BYTES_MAX:
        state.actions.append(ReadBack(request.order.samples, int(indices[place]), request.order.executor))


def record_read_back(state: State, event: RecordReadBack, now: float) -> None:
    """A record was read back: whole, or not as it was written."""
    executor = state.fleet.executors[event.executor]
    if not event.fault:
        executor.breaker.reads_back()
        return
    others = ", and it is set aside" if len(state.fleet.executors) > 1 else ""
    if not executor.breaker.corrupts:  # told once, until it is well again
        text = (
            f"a record that the executor {executor.name} has just written to the cache does not read back: "
            f"{event.fault}; the sample is produced again{others}: something on the way between functions, "
            "cache and coordinator changes bytes"
        )
        state.actions.append(Warn(text))
    executor.breaker.does_not_read_back(f"its records do not read back: {event.fault}", now)
    samples = state.sets.get(event.samples)
    if samples is None:
        return
    spoilt = samples.among(np.array([event.index]), SampleState.RESIDENT)
    if spoilt.size:
        samples.move(spoilt, SampleState.ABSENT)
        state.actions.append(Drop(event.samples, spoilt))
        reading = state.reading(event.samples.dataset)
        want_again(state, event.samples, spoilt, reading, failed_by=event.executor)
