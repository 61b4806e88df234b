"""Another attempt for samples that did not come: when, where, and how many there are.

What is a sample's fault uses up its attempts. What is not (a throttled executor, a full cache, a source that
does not answer) uses up none; the waits grow for as long as nothing succeeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core.events import Warn
from superdl.coordinator.core.jobs import Ahead
from superdl.coordinator.core.queues import Retry
from superdl.coordinator.core.room import next_use
from superdl.coordinator.core.samples import SampleState, count_again
from superdl.coordinator.core.throttling import Outage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from superdl.coordinator.core.jobs import Cursor
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import Request, State

__all__ = ["await_source", "end_outages", "release_due", "try_again", "try_at_once", "want_again"]

_OUTAGES_PER_WARNING = 8
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, less their whole parts, lie evenly from 0 to 1

_BLAMED_ON_EXECUTOR_MAX = 2
"""So often at most a failure is blamed on an executor that was set aside, where there is another."""


def end_outages(state: State, request: Request) -> None:
    """Samples were produced, or restored, which says nothing of their source."""
    state.outage.failures = 0
    if not request.order.restore:
        state.source_outages.pop(request.order.samples.dataset, None)


def release_due(state: State, now: float) -> None:
    """What has waited for its next attempt is absent from now on, and looked ahead to again.

    While a source gives nothing, one retry in each wait tries it. The others are put off, and spread over the
    wait, lest they all come at once when it is back.
    """
    for retry in state.retries.take_until(now):
        outage = state.source_outages.get(retry.samples.dataset) if retry.of_source else None
        if outage is not None and not outage.may_try(state.settings, now):
            spread = int(retry.indices[0]) * _GOLDEN % 1.0  # a core draws no random numbers
            due_s = outage.until_s + spread * state.settings.backoff_after_s(outage.failures)
            state.retries.add(retry, due_s)
            continue
        samples = state.set_of(retry.samples)
        absent = samples.among(retry.indices, SampleState.WAITING)
        samples.move(absent, SampleState.ABSENT)
        reading = [job for job in state.jobs.values() if job.dataset == retry.samples.dataset]
        # One job is enough, unless it falls silent before that; then readers of the others miss them.
        job = min(reading, key=lambda job: (job.lapsed, job.name != retry.job), default=None)
        cursors = job.cursors.values() if job is not None else ()
        want_again(state, retry.samples, absent, cursors, alone=retry.alone, failed_by=retry.failed_by)


def want_again(
    state: State,
    key: SetKey,
    absent: NDArray[np.int64],
    cursors: Iterable[Cursor],
    *,
    alone: bool = False,
    failed_by: int | None = None,
) -> None:
    """Have samples looked at again that are absent now: by readers who miss them, and by the ranks of those
    given that have passed over them.
    """
    state.misses.reopen(key)
    for cursor in cursors:
        places = cursor.job.watermark + next_use(key, absent, cursor.job)
        passed = (places >= cursor.watermark) & (places < cursor.lookahead)
        if passed.any():
            start, stop = int(places[passed].min()), int(places[passed].max()) + 1
            cursor.put(Ahead(start, stop, key, absent[passed], alone, failed_by))
            state.wake(cursor)


def try_at_once(
    state: State, request: Request, indices: NDArray[np.int64], now: float, *, failed_by: int | None = None
) -> None:
    """Have samples tried again without a wait, by no fault of theirs: elsewhere, or in another way."""
    _wait(state, request, indices, np.zeros(indices.size), now, failed_by=failed_by)


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
    """Queue another attempt after a backoff; whose attempts are spent gets a tombstone that expires."""
    offsets = _turn_elsewhere(state, request, offsets, now, counts=counts)
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
        state.fail_for_a_while(request.order.samples, indices[spent], texts, now)
        state.account(request).samples_failed += int(spent.sum())
    again = indices[~spent]
    waits_s = _backoffs_s(state, samples.attempts[again])
    if not counts:
        waits_s = np.maximum(waits_s, _outage_wait_s(state, messages.get(int(offsets[0]), ""), now))
    failed_by = request.order.executor if counts else None
    _wait(state, request, again, waits_s, now, alone=alone, failed_by=failed_by)


def await_source(
    state: State, request: Request, offsets: NDArray[np.intp], now: float, *, some_came: bool
) -> None:
    """Queue what the source does not give now, at no cost in attempts: the later, the longer it does not.

    Where it gave nothing at all, one retry in each wait tries it until something comes, lest all that wait
    keep it down.
    """
    offsets = _turn_elsewhere(state, request, offsets, now, counts=False)
    if not offsets.size:
        return
    samples, indices = state.set_of(request.order.samples), request.order.indices[offsets]
    if not some_came:
        state.source_outages.setdefault(request.order.samples.dataset, Outage()).failed(state.settings, now)
    if not samples.unavailable:
        samples.unavailable_since_s = now
    waits_s = _backoffs_s(state, count_again(samples.unavailable, indices))
    _wait(state, request, indices, waits_s, now, of_source=True)


def _wait(
    state: State,
    request: Request,
    indices: NDArray[np.int64],
    waits_s: NDArray[np.float64],
    now: float,
    **how: Any,
) -> None:
    """Have samples of a request wait for their next attempts, each for so many seconds."""
    if not indices.size:
        return
    key = request.order.samples
    state.set_of(key).move(indices, SampleState.WAITING)
    state.account(request).retries += indices.size
    for wait_s in np.unique(waits_s).tolist():
        retry = Retry(key, indices[waits_s == wait_s], request.order.job, **how)
        state.retries.add(retry, now + wait_s)


def _backoffs_s(state: State, times: NDArray[Any]) -> NDArray[np.float64]:
    return np.array([state.settings.backoff_after_s(count) for count in times.tolist()])


def _turn_elsewhere(
    state: State, request: Request, offsets: NDArray[np.intp], now: float, *, counts: bool
) -> NDArray[np.intp]:
    """Have what an executor that was set aside did not produce tried at another at once; what is left.

    The executor is more likely to blame than the samples; but each is excused by it a few times only.
    """
    executor = state.fleet.executors[request.order.executor]
    if not (
        executor.breaker.tripped
        and state.eligible_for(request.order.samples.dataset).can_turn_elsewhere(executor)
    ):
        return offsets
    samples, indices = state.set_of(request.order.samples), request.order.indices[offsets]
    turns = np.ones(offsets.size, dtype=np.bool_)
    if counts:
        turns = count_again(samples.blamed_on_executor, indices) <= _BLAMED_ON_EXECUTOR_MAX
    try_at_once(state, request, indices[turns], now, failed_by=request.order.executor)
    return offsets[~turns]


def _outage_wait_s(state: State, reason: str, now: float) -> float:
    """Wait after a failure that no sample is to blame for: the longer, the longer nothing succeeds."""
    outage = state.outage
    if outage.failed(state.settings, now) and outage.failures % _OUTAGES_PER_WARNING == 0:
        text = f"{outage.failures} times in a row nothing could be produced, by no sample's fault: {reason}"
        state.actions.append(Warn(text))
    return state.settings.backoff_after_s(outage.failures)
