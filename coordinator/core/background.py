"""Background work that no reader is waiting for.

An executor with access to the store *saves* samples that others decoded into the cache. A job
without readers *fills* the cache or the store, up to a given size and cost.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.events import OUTCOME_ORDER
from superdl.coordinator.core.jobs import next_use_s
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.ranks import renew
from superdl.coordinator.core.restoring import distrust, is_usable
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.events import FillUp, Prefetch, RequestDone
    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.state import Request, State

_NOT_CACHED = OUTCOME_ORDER.index(Outcome.NOT_CACHED)
_WAIT_S = 1.0  # for more samples, so that there are few packs
_PACK_BYTES = 32 * 2**20


def due_saves(state: State, now: float) -> Iterator[tuple[ExecutorState, SetKey, Ints]]:
    """Yield saves that can start now, longest waiting first. Request each before taking the next."""
    while (next_due := due(state, now)) is not None:
        key, executor = next_due
        unsaved, samples = state.unsaved.pop(key, _pack_samples(state, key)), state.sets.get(key)
        if samples is None:  # the whole set was dropped
            continue
        resident = samples.among(unsaved[~samples.stored(unsaved)], SampleState.RESIDENT)
        for other in _saves(state):  # a sample may have been dropped and cached again
            if other.samples == key:
                resident = resident[~np.isin(resident, other.indices)]
        if resident.size:
            yield executor, key, resident


def is_saving(state: State) -> bool:
    """Return whether any save is queued or in flight."""
    return state.unsaved.first() is not None or bool(_saves(state))


def _saves(state: State) -> list[Prefetch]:
    orders = (request.order for request in state.requests.values())
    return [order for order in orders if order.kind is RequestKind.SAVE]


def due(state: State, now: float) -> tuple[SetKey, ExecutorState] | None:
    """Return a sample set that is due to be saved, and an idle executor for it, or ``None``."""
    first = state.unsaved.first()
    if first is None:
        return None
    key, since_s = first
    is_due = now >= since_s + _WAIT_S or state.unsaved.holds(key, _pack_samples(state, key))
    executor = saver(state, now) if is_due else None
    return None if executor is None else (key, executor)


def _pack_samples(state: State, key: SetKey) -> int:
    samples = state.sets.get(key)
    if samples is None:
        return 1
    return max(1, min(state.most_samples(key), int(_PACK_BYTES / samples.sample_bytes)))


def saver(state: State, now: float) -> ExecutorState | None:
    """Return an idle executor that can save samples, or ``None``."""
    saves = Counter(order.executor for order in _saves(state))
    for executor in state.fleet.executors:
        access = executor.store
        if access is None or executor.idle <= 0 or executor.free_slots <= 0:
            continue
        # Saves use at most half of the functions, and only idle ones.
        half = max(1, executor.concurrency.capacity // 2)
        if saves[executor.number] < half and is_usable(state, access.writing, now):
            return executor
    return None


def next_save_s(state: State) -> float | None:
    """Return when the next save is due if no event arrives, or ``None`` if nothing is waiting."""
    first = state.unsaved.first()
    if first is None:
        return None
    seeing = [executor.store for executor in state.fleet.executors if executor.store is not None]
    return max(first[1] + _WAIT_S, min(access.writing.open_until_s() for access in seeing))


def saved(event: RequestDone) -> Bools:
    """Return a mask of the samples that a save wrote to its pack."""
    if event.pack and event.stored is not None:
        return event.stored
    return np.zeros(event.outcomes.size, dtype=np.bool_)


def save_answered(state: State, request: Request, event: RequestDone, now: float) -> None:
    """Handle the result of a save, and requeue unsaved samples."""
    unsaved = ~saved(event) & (event.outcomes != _NOT_CACHED)
    if unsaved.any() and not event.store_trouble:
        reason = next(iter(event.messages.values()), "no pack was written")
        distrust(state, request, reason, now)
    save_again(state, request, unsaved, now)


def save_again(state: State, request: Request, left: Bools, now: float) -> None:
    """Requeue the ``left`` samples that are still in the cache."""
    key = request.order.samples
    samples = state.sets.get(key)
    if samples is not None:
        state.add_resident(key, samples.among(request.order.indices[left], SampleState.RESIDENT), now)


_ROOM_KEPT = 0.01  # share of the budget to leave free
_MONEY_KEPT = 0.05  # share of the money to keep for hedges and retries
_DROPPED_SHARE = 1 / 32  # of the budget, to drop at once


class Filled(NamedTuple):
    """Fill progress: the number of samples present and failed, the bytes present, and why filling ended.

    ``ended`` is empty while filling continues.
    """

    present: int
    failed: int
    size_bytes: int
    ended: str


def fill_up(state: State, event: FillUp, now: float) -> None:
    """Start or continue filling for a job."""
    job = state.jobs.get(event.job)
    if job is None:
        return
    job.fill, job.full_reason = event, ""
    state.unsaved.enabled |= event.to_store and state.settings.store  # including earlier samples
    for cursor in job.cursors.values():
        cursor.sees_store = False
        job.sees_store_changed()
        renew(state, cursor, now)
        state.wake(cursor)


def room_to_fill(state: State, job: Job, key: SetKey, count: int) -> int:
    """Return how many of ``count`` samples may be requested. Sets ``full_reason`` if filling has ended."""
    fill, samples = job.fill, state.set_of(key)
    if fill is None:
        return count
    free_bytes = state.free_bytes - _ROOM_KEPT * state.budget_bytes
    missing_bytes = samples.sample_bytes * count - free_bytes
    # Filling the store may drop stored samples from the cache. Filling the cache drops nothing.
    if fill.to_store and missing_bytes > 0:
        free_bytes += _drop_stored(state, key, max(missing_bytes, _DROPPED_SHARE * state.budget_bytes))
    in_flight = sum(int(np.count_nonzero(request.claim.unsettled)) for request in state.requests.values())
    under_way_bytes = in_flight * samples.sample_bytes
    left_bytes = fill.size_bytes - _present_bytes(state, job, key) - under_way_bytes
    fitting = math.floor(min(count, max(0.0, free_bytes) / samples.sample_bytes))
    allowed = math.floor(min(count, max(0.0, left_bytes) / samples.sample_bytes))
    with_next = [(requests + 1, sample_count) for requests, sample_count in state.in_flight]
    spent_usd = state.ledger.job_costs(job.name).usd + state.ledger.committed_usd(with_next)
    is_paid = spent_usd <= (1 - _MONEY_KEPT) * fill.usd
    room = min(fitting, allowed) if is_paid else 0
    waits = job.counters.requests_in_flight or (fill.to_store and is_saving(state))
    reason = "max_usd" if not is_paid else "full" if allowed else "max_bytes"
    job.full_reason = "" if room or waits else reason
    return room


def _drop_stored(state: State, key: SetKey, size_bytes: float) -> int:
    """Drop cached samples that are in the store and that no job needs. Return the number of bytes freed."""
    samples = state.set_of(key)
    resident = samples.having(SampleState.RESIDENT)
    stored = resident[samples.stored(resident)]
    unneeded = stored[np.isinf(next_use_s(key, stored, state.jobs.values()))]
    sizes = np.cumsum(samples.cached_bytes[unneeded], dtype=np.int64)
    chosen = unneeded[: int(np.searchsorted(sizes, size_bytes)) + 1]
    if not chosen.size:
        return 0
    freed = int(sizes[chosen.size - 1])
    state.drop(samples, chosen)
    return freed


def _present_bytes(state: State, job: Job, key: SetKey) -> float:
    samples = state.set_of(key)
    in_store = job.fill is not None and job.fill.to_store
    return samples.sample_bytes * samples.stored_count if in_store else samples.resident_bytes


def filled(state: State, job: Job) -> Filled:
    """Return the fill progress of a job."""
    key = job.samples_of(0)
    samples, in_store = state.set_of(key), job.fill is not None and job.fill.to_store
    present = samples.stored_count if in_store else samples.resident_count
    failed = samples.having(SampleState.FAILED)
    lost = int(np.count_nonzero(~samples.stored(failed))) if in_store else failed.size
    return Filled(present, lost, round(_present_bytes(state, job, key)), _ended(state, job, key))


def _ended(state: State, job: Job, key: SetKey) -> str:
    if job.counters.requests_in_flight or state.set_of(key).under_way:
        return ""
    if job.fill is not None and job.fill.to_store and is_saving(state):
        return ""
    if job.full_reason:
        return job.full_reason
    stopped = state.ledger.spending is Spending.STOPPED
    lasting = state.ledger.freely_at_s(0.0, state.in_flight) is None
    if stopped or (state.ledger.spending is Spending.SLOWED and lasting):
        return "spending_cap"
    end = job.plan.batches_per_epoch
    is_through = all(cursor.lookahead >= end and not cursor.pending for cursor in job.cursors.values())
    return "all" if is_through else ""
