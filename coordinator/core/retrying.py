"""Decide when, where and how often to retry samples.

Only failures that may be a sample's fault use up its attempts. A throttled executor, a full cache or
an unresponsive source does not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core.events import OUTCOME_ORDER, FailureKind, Warn
from superdl.coordinator.core.fleet import NEVER_RUN
from superdl.coordinator.core.jobs import Pending
from superdl.coordinator.core.queues import Outage, Retry
from superdl.coordinator.core.samples import SampleState, count_again
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from superdl.coordinator.core.events import RequestDone
    from superdl.coordinator.core.jobs import Cursor
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.state import Request, State

_EXPIRED = OUTCOME_ORDER.index(Outcome.EXPIRED)
_TIMED_OUT = OUTCOME_ORDER.index(Outcome.TIMED_OUT)
_CACHE_FULL = OUTCOME_ORDER.index(Outcome.CACHE_FULL)
_UNAVAILABLE = OUTCOME_ORDER.index(Outcome.UNAVAILABLE)
# Not the sample's fault, so not counted as an attempt
_UNCOUNTED = np.isin(OUTCOME_ORDER, [Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED])
_NOT_RESTORED = np.isin(OUTCOME_ORDER, [Outcome.NOT_STORED, Outcome.STORE_ERROR])

_EXPIRED_EARLY = (
    "; the function returned after {:.1f} s, although a request may take {:.0f} s. The function's time limit "
    "is too short"
)
_OUTAGES_PER_WARNING = 8
_BLAMED_ON_EXECUTOR_MAX = 2  # failures per sample


def end_outages(state: State, request: Request) -> None:
    """End the outage of the executors and, after a decode, that of the source."""
    state.outage.failures = 0
    if request.order.kind.decodes:
        state.source_outages.pop(request.order.samples.dataset, None)


def release_due(state: State, now: float) -> None:
    """Mark samples that are due for a retry as absent, and make ranks look ahead to them again."""
    for retry in state.retries.pop_due(now):
        outage = state.source_outages.get(retry.samples.dataset) if retry.of_source else None
        if outage is not None and not outage.may_try(state.settings, now):  # another retry probes the source
            state.retries.add(retry, outage.until_s)
            continue
        samples = state.set_of(retry.samples)
        absent = samples.among(retry.indices, SampleState.WAITING)
        samples.move(absent, SampleState.ABSENT)
        reading = state.jobs_of(retry.samples.dataset)
        # One job is enough. If it lapses, readers of other jobs will report the samples as missing.
        job = min(reading, key=lambda job: (job.lapsed, job.name != retry.job), default=None)
        cursors = job.cursors.values() if job is not None else ()
        recheck(state, retry.samples, absent, cursors, alone=retry.alone, failed_by=retry.failed_by)


def recheck(
    state: State,
    key: SetKey,
    absent: Ints,
    cursors: Iterable[Cursor],
    *,
    alone: bool = False,
    failed_by: int | None = None,
) -> None:
    """Serve readers that are missing these samples, and make ranks that passed them request them."""
    state.misses.reopen(key)
    by_job: dict[str, Ints] = {}  # a job's ranks share its plan
    for cursor in cursors:
        job = cursor.job
        if job.name not in by_job:
            by_job[job.name] = job.watermark + job.next_use(key, absent)
        positions = by_job[job.name]
        passed = (positions >= cursor.watermark) & (positions < cursor.lookahead)
        if passed.any():
            start, stop = int(positions[passed].min()), int(positions[passed].max()) + 1
            cursor.add_pending(Pending(start, stop, key, absent[passed], alone, failed_by))
            state.wake(cursor)


def retry_missing(
    state: State, request: Request, event: RequestDone, missing: Bools, now: float, *, any_arrived: bool
) -> None:
    """Retry samples missing from a result: at once, after a wait, or when the source has recovered."""
    order, messages = request.order, event.messages
    # The function started nothing, because its own time limit is too short.
    is_early = now - request.sent_s < state.settings.request_ttl_s / 2
    expired_early = is_early and bool((event.outcomes == _EXPIRED).all())
    uncounted = missing & _UNCOUNTED[event.outcomes] & (not expired_early)
    not_restored = missing & _NOT_RESTORED[event.outcomes] & (order.kind is RequestKind.RESTORE)
    unavailable = missing & (event.outcomes == _UNAVAILABLE)
    counted = missing & ~(uncounted | not_restored | unavailable)
    _queue_retries(state, request, order.indices[not_restored], 0.0, now)
    _withhold_refused(state, request, int(np.count_nonzero(uncounted & (event.outcomes == _CACHE_FULL))))
    try_again(state, request, np.flatnonzero(uncounted), messages, now, counts=False, alone=False)
    await_source(state, request, np.flatnonzero(unavailable), now, any_arrived=any_arrived)
    if expired_early:  # otherwise they would be requested, and paid for, forever
        note = _EXPIRED_EARLY.format(now - request.sent_s, state.settings.request_ttl_s)
        messages = {offset: messages.get(offset, "") + note for offset in range(order.indices.size)}
    slow = counted & (event.outcomes == _TIMED_OUT)  # alone, because it delays all others in its request
    try_again(state, request, np.flatnonzero(slow), messages, now, counts=True, alone=True)
    try_again(state, request, np.flatnonzero(counted & ~slow), messages, now, counts=True, alone=False)


def _withhold_refused(state: State, request: Request, refused: int) -> None:
    """Withhold all apparently free memory and that of refused samples, until the servers report again."""
    if refused:
        refused_bytes = math.ceil(state.set_of(request.order.samples).sample_bytes * refused)
        withheld_bytes = state.withheld_bytes + max(0, state.free_bytes) + refused_bytes
        state.withheld_bytes = min(withheld_bytes, state.budget_bytes)


def retry_failed(
    state: State, request: Request, kind: FailureKind, offsets: NDArray[np.intp], now: float
) -> None:
    """Retry the samples of a failed request, one at a time if any of them may be to blame."""
    has_run = kind not in NEVER_RUN
    if request.order.kind is RequestKind.RESTORE and has_run:
        _queue_retries(state, request, request.order.indices[offsets], 0.0, now)
        return
    messages = dict.fromkeys(offsets.tolist(), request.result)
    try_again(state, request, offsets, messages, now, counts=has_run, alone=has_run)


def try_again(
    state: State,
    request: Request,
    offsets: NDArray[np.intp],
    messages: dict[int, str],
    now: float,
    *,
    counts: bool,
    alone: bool,
) -> None:
    """Retry samples after a backoff. Write expiring tombstones for those with no attempts left."""
    offsets = _reassign(state, request, offsets, now, counts=counts)
    if not offsets.size:
        return
    samples, indices = state.set_of(request.order.samples), request.order.indices[offsets]
    if counts:
        samples.attempts[indices] += 1
    spent = samples.attempts[indices] >= state.settings.attempts
    if spent.any():
        texts = tuple(messages.get(int(offset), "") for offset in offsets[spent])
        samples.attempts[indices[spent]] = 0
        samples.clear_failures(indices[spent])
        state.write_tombstones(request.order.samples, indices[spent], texts, now)
        state.counters(request).samples_failed += int(spent.sum())
    again = indices[~spent]
    waits_s = _backoffs_s(state, samples.attempts[again])
    if not counts:
        outage, reason = state.outage, messages.get(int(offsets[0])) or "the functions gave no reason"
        if outage.failed(state.settings, now) and outage.failures % _OUTAGES_PER_WARNING == 0:
            state.actions.append(Warn(f"{outage.failures} attempts in a row produced nothing: {reason}"))
        waits_s = np.maximum(waits_s, state.settings.backoff_after_s(outage.failures))
    failed_by = request.order.executor if counts else None
    _queue_retries(state, request, again, waits_s, now, alone=alone, failed_by=failed_by)


def await_source(
    state: State, request: Request, offsets: NDArray[np.intp], now: float, *, any_arrived: bool
) -> None:
    """Retry samples that the source cannot provide now, without using up attempts.

    If the source returned nothing at all, only one retry per wait probes it.
    """
    offsets = _reassign(state, request, offsets, now, counts=False)
    if not offsets.size:
        return
    samples, indices = state.set_of(request.order.samples), request.order.indices[offsets]
    if not any_arrived:
        state.source_outages.setdefault(request.order.samples.dataset, Outage()).failed(state.settings, now)
    if not samples.unavailable:
        samples.unavailable_since_s = now
    waits_s = _backoffs_s(state, count_again(samples.unavailable, indices))
    _queue_retries(state, request, indices, waits_s, now, of_source=True)


def _queue_retries(
    state: State,
    request: Request,
    indices: Ints,
    waits_s: NDArray[np.float64] | float,
    now: float,
    **how: Any,
) -> None:
    """Queue retries, each after its sample's wait. The wait is 0 if an alternative is available now."""
    if not indices.size:
        return
    key = request.order.samples
    state.set_of(key).move(indices, SampleState.WAITING)
    state.counters(request).retries += indices.size
    waits_s = np.broadcast_to(waits_s, indices.shape)
    for wait_s in np.unique(waits_s).tolist():
        retry = Retry(key, indices[waits_s == wait_s], request.order.job, **how)
        state.retries.add(retry, now + wait_s)


def _backoffs_s(state: State, times: NDArray[Any]) -> NDArray[np.float64]:
    return np.array([state.settings.backoff_after_s(count) for count in times.tolist()])


def _reassign(
    state: State, request: Request, offsets: NDArray[np.intp], now: float, *, counts: bool
) -> NDArray[np.intp]:
    """Retry samples elsewhere if their executor is set aside. Return the offsets of the rest."""
    executor = state.fleet.executors[request.order.executor]
    if not (
        executor.breaker.tripped and state.eligible_for(request.order.samples.dataset).can_reassign(executor)
    ):
        return offsets
    samples, indices = state.set_of(request.order.samples), request.order.indices[offsets]
    excused = np.ones(offsets.size, dtype=np.bool_)
    if counts:
        excused = count_again(samples.blamed_on_executor, indices) <= _BLAMED_ON_EXECUTOR_MAX
    _queue_retries(state, request, indices[excused], 0.0, now, failed_by=request.order.executor)
    return offsets[~excused]
