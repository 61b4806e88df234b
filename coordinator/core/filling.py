"""Warming: a job without readers fills the cache or the store, up to some bytes and some money.

It looks ahead over one epoch, as far as there is room; all jobs with readers go first. Filling the cache
drops nothing. Filling the store drops from the cache what the store already holds, if no job needs it. The
samples it brings count as needed by no one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.events import Drop
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.ranks import renew
from superdl.coordinator.core.room import next_use_s
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.saving import is_saving

if TYPE_CHECKING:
    from superdl.coordinator.core.events import FillUp
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import State

_ROOM_KEPT = 0.01
"""Share of the budget left free for others meanwhile."""

_MONEY_KEPT = 0.05
"""Share of the money left for hedges and retries of what is under way."""

_DROPPED_SHARE = 1 / 32
"""Share of the budget dropped in one go, so that searches are rare."""


class Filled(NamedTuple):
    """Progress of filling: samples present, samples that failed, bytes of those present, and the reason why
    it ended, empty until then.
    """

    there: int
    failed: int
    size_bytes: int
    ended: str


def fill_up(state: State, event: FillUp, now: float) -> None:
    """Start or continue filling for a job; repeated events renew its lease."""
    job = state.jobs.get(event.job)
    if job is None:
        return
    job.fill, job.is_full = event, ""
    state.unsaved.wanted |= event.to_store and state.settings.store  # earlier samples too
    for cursor in job.cursors.values():
        cursor.sees_store = False
        job.sees_store_changed()
        renew(state, cursor, now)
        state.wake(cursor)


def room_to_fill(state: State, job: Job, key: SetKey, count: int) -> int:
    """Return how many of ``count`` samples may be requested now. If none, and nothing under way could change
    that, set the job's reason.
    """
    fill, samples = job.fill, state.set_of(key)
    if fill is None:
        return count
    free_bytes = state.free_bytes - _ROOM_KEPT * state.budget_bytes
    missing_bytes = samples.sample_bytes * count - free_bytes
    if fill.to_store and missing_bytes > 0:
        free_bytes += _let_go(state, key, max(missing_bytes, _DROPPED_SHARE * state.budget_bytes))
    in_flight = sum(int(np.count_nonzero(request.claim.unsettled)) for request in state.requests.values())
    under_way_bytes = in_flight * samples.sample_bytes
    left_bytes = fill.size_bytes - _there_bytes(state, job, key) - under_way_bytes
    fitting = math.floor(min(count, max(0.0, free_bytes) / samples.sample_bytes))
    allowed = math.floor(min(count, max(0.0, left_bytes) / samples.sample_bytes))
    # Include a next request, so that the money lasts for it.
    with_next = [(requests + 1, sample_count) for requests, sample_count in state.in_flight]
    spent_usd = state.ledger.job_costs(job.name).usd + state.ledger.committed_usd(with_next)
    is_paid = spent_usd <= (1 - _MONEY_KEPT) * fill.usd
    room = min(fitting, allowed) if is_paid else 0
    waits = job.counters.requests_in_flight or (fill.to_store and is_saving(state))
    reason = "max_usd" if not is_paid else "full" if allowed else "max_bytes"
    job.is_full = "" if room or waits else reason
    return room


def _let_go(state: State, key: SetKey, wanted_bytes: float) -> int:
    """Drop cached samples that are stored and that no job needs; return the bytes freed."""
    samples = state.set_of(key)
    resident = samples.having(SampleState.RESIDENT)
    stored = resident[samples.stored(resident)]
    unwanted = stored[np.isinf(next_use_s(key, stored, state.jobs.values()))]
    sizes = np.cumsum(samples.stored_bytes[unwanted], dtype=np.int64)
    chosen = unwanted[: int(np.searchsorted(sizes, wanted_bytes)) + 1]
    if not chosen.size:
        return 0
    freed = int(sizes[chosen.size - 1])
    samples.move(chosen, SampleState.ABSENT)
    state.actions.append(Drop(key, chosen))
    return freed


def _there_bytes(state: State, job: Job, key: SetKey) -> float:
    samples = state.set_of(key)
    in_store = job.fill is not None and job.fill.to_store
    return samples.sample_bytes * samples.stored_count if in_store else samples.resident_bytes


def filled(state: State, job: Job) -> Filled:
    """Return a job's progress in filling."""
    key = job.samples_of(0)
    samples, in_store = state.set_of(key), job.fill is not None and job.fill.to_store
    present = samples.stored_count if in_store else samples.resident_count
    failed = samples.having(SampleState.FAILED)
    lost = int(np.count_nonzero(~samples.stored(failed))) if in_store else failed.size
    return Filled(present, lost, round(_there_bytes(state, job, key)), _ended(state, job, key))


def _ended(state: State, job: Job, key: SetKey) -> str:
    if job.counters.requests_in_flight or state.set_of(key).under_way:
        return ""
    if job.fill is not None and job.fill.to_store and is_saving(state):
        return ""
    if job.is_full:
        return job.is_full
    stopped = state.ledger.spending is Spending.STOPPED
    lasting = state.ledger.freely_at_s(0.0, state.in_flight) is None
    if stopped or (state.ledger.spending is Spending.SLOWED and lasting):
        return "spending_cap"
    end = job.plan.batches_per_epoch
    is_through = all(cursor.lookahead >= end and not cursor.pending for cursor in job.cursors.values())
    return "all" if is_through else ""
