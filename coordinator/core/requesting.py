"""Makes requests, and the rivals of those that take too long; every request in flight comes from here.

Which samples, how many of them and when is decided in :mod:`superdl.coordinator.core.dispatching`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.actions import Prefetch, Warn
from superdl.coordinator.core.hedging import stragglers_to_race
from superdl.coordinator.core.jobs import JobCounters
from superdl.coordinator.core.journal import RequestNote
from superdl.coordinator.core.needing import needed_bytes, thrash_text
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState
from superdl.coordinator.core.state import RequestInFlight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.fleet import Member
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import State

__all__ = ["race_stragglers", "request"]

_LATE_LEAST_S = 0.05


def request(
    state: State, member: Member, key: SetKey, indices: NDArray[np.int64], job: str, now: float
) -> None:
    """Have absent samples produced by an executor, on account of a job."""
    indices = indices.copy()  # a view would keep alive all that it was cut from
    samples = state.set_of(key)
    again = int(np.count_nonzero(samples.dropped[indices]))
    state.thrash.reproduced_samples += again
    if again and key.epoch == EVERY_EPOCH and state.thrash.produced_again(key.dataset, again, now):
        if needed_bytes(state) > state.budget_bytes:
            state.actions.append(Warn(thrash_text(state)))
        else:  # all has room by now: what was dropped before comes back once
            state.thrash.forget()
    samples.dropped[indices] = False
    samples.move(indices, SampleState.IN_FLIGHT)
    reserved = math.ceil(samples.sample_bytes * indices.size)
    state.reserved_bytes += reserved
    state.samples_in_flight += indices.size
    counters = state.jobs[job].counters if job in state.jobs else JobCounters()
    unsettled = np.ones(indices.size, dtype=np.bool_)
    made = RequestInFlight(key, indices, job, counters, reserved, now, unsettled, member.number)
    _send(state, made, now)


def race_stragglers(state: State, now: float) -> None:
    """Make the rivals of stragglers; again, while that leaves functions idle, which another executor has."""
    made = 1
    while made:
        made = sum(_race(state, number, now) for number in stragglers_to_race(state, now))


def _race(state: State, number: int, now: float) -> bool:
    """Make the rival of a straggler, if there is a place for it."""
    late = state.requests[number]
    member = state.roster_of(late.samples.dataset).choose(now, other_than=late.executor)
    if member is None:
        return False
    state.stragglers.raced(number)
    late.counters.hedges += 1
    rival = RequestInFlight(
        late.samples,
        late.indices,
        late.job,
        late.counters,
        0,
        now,
        late.unsettled,
        member.number,
        rival=number,
    )
    late.rival = _send(state, rival, now)
    return True


def _send(state: State, made: RequestInFlight, now: float) -> int:
    number = next(state.numbers)
    made.counters.invocations += 1
    made.counters.requests_in_flight += 1
    state.requests[number] = made
    member = state.fleet.members[made.executor]
    member.in_flight += 1
    member.samples_in_flight += made.indices.size
    member.requests += 1
    member.concurrency.used(member.in_flight, now)
    roster = state.roster_of(made.samples.dataset)
    late_s = roster.late_s(member, made.indices.size, state.settings.hedge_quantile)
    if made.rival is None:
        state.stragglers.watch(number, None if late_s is None else now + max(late_s, _LATE_LEAST_S))
    state.notes.made(RequestNote(number, made.samples, made.indices, made.job, now, made.rival))
    state.actions.append(
        Prefetch(
            number,
            made.job,
            made.samples,
            made.indices,
            state.settings.request_ttl_s,
            hedge_of=made.rival,
            executor=made.executor,
        )
    )
    return number
