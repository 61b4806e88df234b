"""What functions answer: samples cached, failed for good, or to be tried again, within bounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.actions import Drop, Warn, WriteTombstones
from superdl.coordinator.core.events import FailureKind
from superdl.coordinator.core.reading_back import choose_to_read_back
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.events import RequestDone, RequestFailed
    from superdl.coordinator.core.fleet import Member
    from superdl.coordinator.core.state import RequestInFlight, State

__all__ = ["OUTCOME_ORDER", "request_done", "request_failed"]

OUTCOME_ORDER: tuple[Outcome, ...] = tuple(Outcome)
"""Outcomes as small numbers: their places in this tuple."""

_SETBACKS_TOLD = 8
_EXPIRED_EARLY = (
    "; it answered so after {:.1f} s of the {:.0f} s that the request lasts: the clocks of the function and "
    "of the coordinator differ, or the function's own time limit is too short for anything"
)
_EXCUSED = 5
"""So often at most no answer may come for a sample, while functions begin late, before it is suspected."""

_EXCUSED_ELSEWHERE = 2
"""So often at most a failure is blamed on an executor that was set aside, where there is another."""

_CACHED = OUTCOME_ORDER.index(Outcome.CACHED)
_TOMBSTONE = OUTCOME_ORDER.index(Outcome.TOMBSTONE)
# Not the sample's fault: tried again without counting as an attempt.
_EXPIRED = OUTCOME_ORDER.index(Outcome.EXPIRED)
_TIMED_OUT = OUTCOME_ORDER.index(Outcome.TIMED_OUT)
_CACHE_FULL = OUTCOME_ORDER.index(Outcome.CACHE_FULL)
_INNOCENT = np.array(
    [outcome in {Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED} for outcome in OUTCOME_ORDER]
)
_WORKED = np.array([outcome in {Outcome.CACHED, Outcome.TOMBSTONE} for outcome in OUTCOME_ORDER])
_TELLING = ~_INNOCENT
_SUSPICIOUS = np.array(
    [
        outcome in {Outcome.CACHE_ERROR, Outcome.REFUSED, Outcome.SOURCE_ERROR, Outcome.STEP_ERROR}
        for outcome in OUTCOME_ORDER
    ]
)
_INNOCENT_FAILURES = frozenset({FailureKind.THROTTLED, FailureKind.UNAVAILABLE})
_ISOLATING_FAILURES = frozenset({FailureKind.CRASHED, FailureKind.TIMED_OUT, FailureKind.RAISED})


def request_done(state: State, event: RequestDone, now: float) -> None:
    """A function answered; an answer to a request that is not in flight (a second one) changes nothing."""
    request = _landed(state, event.request_id)
    if request is None:
        return
    member = state.fleet.members[request.executor]
    if _TELLING[event.outcomes].all() and _WORKED[event.outcomes].any():  # else it was over sooner than usual
        member.latency.observe(request.indices.size, now - request.made_s, event.duration_us / 1e6)
        member.concurrency.succeeded()
    if not event.cold_start:
        member.concurrency.begun(now - request.made_s - event.duration_us / 1e6, member.in_flight, now)
    _judge(member, event, request.made_s, now)
    _judge_loser(state, request, now)
    usd = _charge(state, request, event.gb_s, now, answer=event)
    member.samples += int(np.count_nonzero(event.outcomes == _CACHED))
    if request.rival is None and (event.outcomes == _CACHED).all():
        _all_cached(state, request, event, usd, now)
        return
    samples, indices, open_ = state.set_of(request.samples), request.indices, request.unsettled
    cached, buried = open_ & (event.outcomes == _CACHED), open_ & (event.outcomes == _TOMBSTONE)
    samples.store(indices[cached], event.record_bytes[cached])
    choose_to_read_back(state, request, indices[cached], event.record_bytes[cached], now)
    samples.move(indices[buried], SampleState.FAILED)
    for offset in np.flatnonzero(buried):
        state.remember_failure(request.samples, int(indices[offset]), event.messages.get(int(offset), ""))
    counters = request.counters
    produced = int(np.count_nonzero(cached))
    counters.samples_produced += produced
    counters.samples_failed += int(np.count_nonzero(buried))
    state.ledger.produced(request.samples.dataset, request.job, produced, usd, request.executor)
    if produced:
        state.setbacks = 0
    expired_early = _expired_early(state, request, event, now)
    innocent = open_ & _INNOCENT[event.outcomes] & (not expired_early)
    guilty = open_ & ~(cached | buried | innocent)
    state.notes.ended(
        event.request_id, now, f"{produced} cached, {int(np.count_nonzero(open_)) - produced} not"
    )
    _drop_late(state, request, indices[~open_ & (event.outcomes == _CACHED)])
    _settle(state, request, cached | buried)
    if request.rival in state.requests:
        return  # it may still bring the rest
    _settle(state, request, innocent | guilty)
    _make_room_for_refused(state, request, int(np.count_nonzero(innocent & (event.outcomes == _CACHE_FULL))))
    why = {
        int(offset): event.messages.get(int(offset)) or OUTCOME_ORDER[event.outcomes[offset]].value
        for offset in np.flatnonzero(innocent)
    }
    _try_again(state, request, np.flatnonzero(innocent), why, now, counts=False, alone=False)
    messages = event.messages
    if expired_early:  # else it would be asked for, and paid for, without end
        words = _EXPIRED_EARLY.format(now - request.made_s, state.settings.request_ttl_s)
        messages = {offset: f"{messages.get(offset, '')}{words}" for offset in range(request.indices.size)}
    slow = guilty & (event.outcomes == _TIMED_OUT)  # alone, since it keeps a function from all others
    _try_again(state, request, np.flatnonzero(slow), messages, now, counts=True, alone=True)
    _try_again(state, request, np.flatnonzero(guilty & ~slow), messages, now, counts=True, alone=False)


def _make_room_for_refused(state: State, request: RequestInFlight, refused: int) -> None:
    """The cache had no memory for samples for which there was room by our account: the account is wrong.

    So what seems free is not, and as much as was refused is to be dropped, until the next looks at the
    servers say what there is (see :func:`superdl.coordinator.core.auditing.cache_resized`).
    """
    if refused:
        refused_bytes = math.ceil(state.set_of(request.samples).sample_bytes * refused)
        withheld_bytes = state.withheld_bytes + max(0, state.free_bytes) + refused_bytes
        state.withheld_bytes = min(withheld_bytes, state.budget_bytes)


def _judge(member: Member, event: RequestDone, made_s: float, now: float) -> None:
    """What an answer says of the executor: nothing, where it may be the samples' or the clock's fault."""
    if _WORKED[event.outcomes].any():
        member.health.worked()
    elif event.outcomes.size and _SUSPICIOUS[event.outcomes].all():
        why = next(iter(event.messages.values()), "no sample could be produced")
        member.health.failed(why, made_s, now)


def _judge_loser(state: State, winner: RequestInFlight, now: float) -> None:
    """An executor whose request was overtaken by a later one elsewhere may answer none at all."""
    loser = state.requests.get(winner.rival) if winner.rival is not None else None
    if loser is not None and loser.executor != winner.executor and loser.made_s < winner.made_s:
        reason = f"no answer within {now - loser.made_s:.1f} s, when another executor had answered"
        state.fleet.members[loser.executor].health.failed(reason, loser.made_s, now)


def _expired_early(state: State, request: RequestInFlight, event: RequestDone, now: float) -> bool:
    """Whether a function has begun nothing since its time was over, long before it was by our clock."""
    is_early = now - request.made_s < state.settings.request_ttl_s / 2
    return is_early and bool((event.outcomes == _EXPIRED).all())


def _all_cached(state: State, request: RequestInFlight, event: RequestDone, usd: float, now: float) -> None:
    """What nearly every answer says, in fewer steps."""
    count = request.indices.size
    state.set_of(request.samples).store(request.indices, event.record_bytes)
    choose_to_read_back(state, request, request.indices, event.record_bytes, now)
    request.counters.samples_produced += count
    state.ledger.produced(request.samples.dataset, request.job, count, usd, request.executor)
    state.setbacks = 0
    state.samples_in_flight -= count
    state.reserved_bytes -= request.reserved_bytes
    state.notes.ended(event.request_id, now, f"{count} cached")


def request_failed(state: State, event: RequestFailed, now: float) -> None:
    """A request came to nothing. If a sample may be to blame, each goes alone, so that one harms no other."""
    request = _landed(state, event.request_id)
    if request is None:
        return
    if event.refused or (event.kind in _INNOCENT_FAILURES and not event.gb_s):  # it was never run
        request.counters.invocations -= 1
    else:
        _charge(state, request, event.gb_s, now, answer=None)
    message = f"{event.kind.value}: {event.message}"
    member = state.fleet.members[request.executor]
    if event.kind is FailureKind.THROTTLED:
        member.concurrency.throttled(member.in_flight, now)
        state.stalls.work_for(request.samples.dataset).throttled += 1
    elif event.kind is FailureKind.LOST:
        member.concurrency.lost(member.in_flight, now)
    if event.kind in _INNOCENT_FAILURES:
        member.health.refused(message, request.made_s, now)
    else:
        member.health.failed(message, request.made_s, now)
    state.notes.ended(event.request_id, now, message)
    if request.rival in state.requests:
        _settle(state, request, np.zeros_like(request.unsettled))
        return  # the rival may still bring all
    left = np.flatnonzero(request.unsettled)
    messages = dict.fromkeys(left.tolist(), message)
    _settle(state, request, request.unsettled.copy())
    if event.kind is FailureKind.LOST:
        excused = _excused(state, request, left)
        _try_again(state, request, left[excused], messages, now, counts=False, alone=False)
        _try_again(state, request, left[~excused], messages, now, counts=True, alone=True)
        return
    counts, alone = event.kind not in _INNOCENT_FAILURES, event.kind in _ISOLATING_FAILURES
    _try_again(state, request, left, messages, now, counts=counts, alone=alone)


def _excused(state: State, request: RequestInFlight, offsets: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which samples of a request to which no answer came are not suspected yet.

    An executor that drops requests says no more than a function that dies of a sample. So the first silence
    is nobody's fault, nor are a few more while functions begin late, which goes before dropping.
    """
    silences = state.set_of(request.samples).silences
    member = state.fleet.members[request.executor]
    bound = _EXCUSED if member.concurrency.was_crowded(request.made_s) else 1
    excused = np.empty(offsets.size, dtype=np.bool_)
    for place, index in enumerate(request.indices[offsets].tolist()):
        silences[index] = silences.get(index, 0) + 1
        excused[place] = silences[index] <= bound
    return excused


def _drop_late(state: State, request: RequestInFlight, written: NDArray[np.int64]) -> None:
    """Delete what the loser of a race has written after it was dropped: nobody would account for it."""
    late = state.set_of(request.samples).among(written, SampleState.ABSENT)
    if late.size:
        state.actions.append(Drop(request.samples, late))


def _charge(
    state: State, request: RequestInFlight, gb_s: float, now: float, *, answer: RequestDone | None
) -> float:
    """Account for an invocation, whatever came of it; what it cost in US dollars."""
    counters = request.counters
    counters.gb_s += gb_s
    record_bytes = 0
    if answer is not None:
        state.stalls.work_for(request.samples.dataset).add(answer)
        record_bytes = int(answer.record_bytes[answer.outcomes == _CACHED].sum())
        counters.fetch_us += answer.fetch_us
        counters.decode_us += answer.decode_us
        counters.push_us += answer.push_us
        counters.source_bytes += answer.source_bytes
        counters.source_requests += answer.source_requests
        counters.record_bytes += record_bytes
    usd = state.ledger.invoked(
        request.samples.dataset,
        executor=request.executor,
        gb_s=gb_s,
        source_requests=answer.source_requests if answer else 0,
        source_bytes=answer.source_bytes if answer else 0,
        record_bytes=record_bytes,
        now=now,
    )
    member = state.fleet.members[request.executor]
    member.usd += usd
    member.most_in_flight = math.inf
    return usd


def _settle(state: State, request: RequestInFlight, settled: NDArray[np.bool_]) -> None:
    """It is known what becomes of these samples, also for the request that races this one, which takes over
    the memory that this one has kept free.
    """
    state.samples_in_flight -= int(np.count_nonzero(settled))
    request.unsettled &= ~settled
    rival = state.requests.get(request.rival) if request.rival is not None else None
    if rival is not None and request.reserved_bytes:
        rival.reserved_bytes, request.reserved_bytes = request.reserved_bytes, 0
    if not request.unsettled.any():
        for holder in (request, rival):
            if holder is not None:
                state.reserved_bytes -= holder.reserved_bytes
                holder.reserved_bytes = 0


def _landed(state: State, request_id: int) -> RequestInFlight | None:
    request = state.requests.pop(request_id, None)
    if request is not None:
        request.counters.requests_in_flight -= 1
        member = state.fleet.members[request.executor]
        member.in_flight -= 1
        member.samples_in_flight -= request.indices.size
        state.stragglers.landed(request_id)
    return request


def _try_again(
    state: State,
    request: RequestInFlight,
    offsets: NDArray[np.intp],
    messages: dict[int, str],
    now: float,
    *,
    counts: bool,
    alone: bool,
) -> None:
    """Queue another attempt after a backoff; whose attempts are spent gets a tombstone that expires."""
    offsets = _turn_elsewhere(state, request, offsets, now, counts=counts)
    if not offsets.size:
        return
    samples, indices = state.set_of(request.samples), request.indices[offsets]
    if counts:
        samples.attempts[indices] += 1
    spent = samples.attempts[indices] >= state.settings.attempts
    if spent.any():
        texts = tuple(messages.get(int(offset), "") for offset in offsets[spent])
        ttl_s = state.settings.tombstone_ttl_s
        samples.move(indices[spent], SampleState.FAILED)
        samples.attempts[indices[spent]] = 0
        samples.forgive(indices[spent])
        for index, text in zip(indices[spent].tolist(), texts, strict=True):
            state.remember_failure(request.samples, index, text)
        state.actions.append(WriteTombstones(request.samples, indices[spent], texts, ttl_s))
        state.expiries.append((now + ttl_s, request.samples, indices[spent]))
        request.counters.samples_failed += int(spent.sum())
    again = indices[~spent]
    if not again.size:
        return
    samples.move(again, SampleState.WAITING)
    request.counters.retries += again.size
    tried = samples.attempts[again]
    setback_s = 0.0 if counts else _setback_s(state, messages.get(int(offsets[0]), ""), now)
    for attempts in np.unique(tried).tolist():
        due_s = now + max(state.settings.backoff_after_s(attempts), setback_s)
        left = again[tried == attempts]
        state.demands.add(
            due_s,
            request.samples,
            left,
            request.job,
            alone=alone,
            failed_by=request.executor if counts else None,
        )


def _turn_elsewhere(
    state: State, request: RequestInFlight, offsets: NDArray[np.intp], now: float, *, counts: bool
) -> NDArray[np.intp]:
    """Have what an executor that was set aside did not produce tried at another at once; what is left.

    The executor is more likely to blame than the samples; but each is excused by it a few times only.
    """
    member = state.fleet.members[request.executor]
    if not (member.health.doubtful and state.roster_of(request.samples.dataset).can_turn_elsewhere(member)):
        return offsets
    samples, indices = state.set_of(request.samples), request.indices[offsets]
    turns = np.ones(offsets.size, dtype=np.bool_)
    if counts:
        for place, index in enumerate(indices.tolist()):
            samples.excuses[index] = samples.excuses.get(index, 0) + 1
            turns[place] = samples.excuses[index] <= _EXCUSED_ELSEWHERE
    turning = indices[turns]
    samples.move(turning, SampleState.WAITING)
    request.counters.retries += turning.size
    state.demands.add(now, request.samples, turning, request.job, failed_by=request.executor)
    return offsets[~turns]


def _setback_s(state: State, reason: str, now: float) -> float:
    """Wait after a failure that no sample is to blame for: the longer, the longer nothing succeeds."""
    if now >= state.setback_until_s:
        state.setbacks += 1
        if state.setbacks % _SETBACKS_TOLD == 0:
            text = (
                f"{state.setbacks} times in a row nothing could be produced, by no sample's fault: {reason}"
            )
            state.actions.append(Warn(text))
        state.setback_until_s = now + state.settings.backoff_after_s(state.setbacks)
    return state.settings.backoff_after_s(state.setbacks)
