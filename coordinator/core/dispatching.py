"""Turning what is wanted into requests: misses first, then retries, then the lane with the first deadline.

No more requests are in flight than keep the executors busy, so that what is decided late is decided well; and
none is made without room for its samples in the cache, nor beyond what may be spent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.eviction import next_use, next_use_s
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.lookahead import find_absent
from superdl.coordinator.core.requesting import race_stragglers, request
from superdl.coordinator.core.room import fits, relieve, room_for, urgent_room_for
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.sizing import request_size
from superdl.coordinator.core.thrift import refuse_demands, watch_spending

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.demands import Demand
    from superdl.coordinator.core.fleet import Member
    from superdl.coordinator.core.jobs import Ahead, Job, Lane
    from superdl.coordinator.core.state import State

__all__ = ["dispatch", "expire_tombstones"]

_HOPELESS = 8.0
_MOMENT_S = 1e-3
_FIRST_BATCHES = 8
"""Before it is known how long requests take and how fast a job reads, so many batches ahead of it at most are
worth a dearer executor."""


def expire_tombstones(state: State, now: float) -> None:
    """What failed for a time may be tried again."""
    while state.expiries and state.expiries[0][0] <= now:
        _, key, indices = state.expiries.popleft()
        samples = state.sets.get(key)
        if samples is not None:
            again = samples.among(indices, SampleState.FAILED)
            samples.move(again, SampleState.ABSENT)
            for index in again.tolist():
                state.failures.pop((key, index), None)


def dispatch(state: State, now: float) -> None:
    """Make requests while executors have places and the cache has room."""
    relieve(state, now)
    _release_due(state, now)
    state.stragglers.become_late(now, state.requests)
    spending = watch_spending(state, now)
    if spending is Spending.STOPPED:
        refuse_demands(state, now)
        return
    if spending is Spending.FREELY:
        race_stragglers(state, now)
    if not _meet_demands(state, now):
        return
    _wake_crowded(state, now)
    _wake_patient(state, now)
    while watch_spending(state, now) is Spending.FREELY and (soonest := state.fleet.soonest(now)) is not None:
        lane_key = soonest[0].hungry.pop()
        if lane_key is None:  # never: it has a deadline
            break
        job, lane = state.jobs[lane_key[0]], state.jobs[lane_key[0]].lanes[lane_key[1]]
        ahead = find_absent(state, job, lane, now)
        if ahead is not None:
            _look_ahead(state, job, lane, ahead, now)


def _wake_patient(state: State, now: float) -> None:
    """Let the lanes that wait for a cheaper executor look again, once that may come to something else."""
    for roster in state.fleet.rosters:
        if roster.patient and (now >= roster.hasty_s or roster.stands_otherwise(now)):
            lanes, roster.patient, roster.hasty_s = roster.patient, {}, math.inf
            for name, rank in lanes:
                found = state.lane(name, rank)
                if found is not None:
                    state.wake(*found)


def _look_ahead(state: State, job: Job, lane: Lane, ahead: Ahead, now: float) -> None:
    """Request what a lane has found, as much of it as one request takes, unless another lane goes first, or
    it waits for a cheaper executor.
    """
    soonest = state.fleet.soonest(now)
    lane.pending.appendleft(ahead)
    if soonest is not None and lane.deadline_s() > soonest[1]:
        state.wake(job, lane)
        return
    member = _executor_for(state, job, lane, now)
    if member is None:
        return
    count = min(ahead.indices.size, _request_samples(state, member, job, lane, now))
    room = count
    if not fits(state, ahead.samples, count):
        later_than_s = float(job.due_in_s(np.array([ahead.stop - 1 - job.low]))[0])
        room = room_for(state, ahead.samples, count, later_than_s=later_than_s, now=now)
    if room:
        lane.pending[0] = ahead._replace(indices=ahead.indices[room:])
        request(state, member, ahead.samples, ahead.indices[:room], job.name, now)
    if room == count:
        state.wake(job, lane)
    else:
        state.crowding.lanes[job.name, lane.rank] = None


def _executor_for(state: State, job: Job, lane: Lane, now: float) -> Member | None:
    """Who is to have what a lane has found; ``None`` if that waits, and then it is noted until when."""
    roster, soon = state.roster_of(job.dataset), lane.next_ahead < lane.low + _FIRST_BATCHES
    slack_s = _slack_s(lane, now) if lane.pace.known or soon else math.inf
    samples = min(lane.pending[0].indices.size, job.plan.batch_size, state.settings.request_samples)
    member = roster.choose(now, slack_s=slack_s, soon=soon, samples=samples)
    if member is None:
        if not roster.patient:
            roster.stands_otherwise(now)  # than from now on
        roster.patient[job.name, lane.rank] = None
        hasty_s = now + roster.hasty_in_s(now, slack_s=slack_s, samples=samples) + _MOMENT_S
        roster.hasty_s = min(roster.hasty_s, hasty_s)
    return member


def _slack_s(lane: Lane, now: float) -> float:
    """How long there is until a lane wants what it has found; the next batch is late by definition, since a
    reader may ask for it at once.
    """
    return lane.deadline_s() - now if lane.next_ahead > lane.low else 0.0


def _wake_crowded(state: State, now: float) -> None:
    """Let the lanes that wait for room look for it again, once that may help."""
    if state.crowding.lanes and state.crowding.over(state.events, now):
        lanes, state.crowding.lanes = state.crowding.lanes, {}
        for name, rank in lanes:
            found = state.lane(name, rank)
            if found is not None:
                state.wake(*found)


def _request_samples(state: State, member: Member, job: Job, lane: Lane, now: float) -> int:
    """Where readers wait again and again, functions are too few, and nothing is gained by small requests."""
    return request_size(
        member.latency,
        wanted=min(lane.pending[0].indices.size, job.plan.batch_size),
        idle=member.idle(now),
        slack_s=math.inf if lane.caution > _HOPELESS else _slack_s(lane, now),
        most=state.settings.request_samples,
    )


def _release_due(state: State, now: float) -> None:
    """What has waited for its next attempt is absent from now on, so that a miss of it counts."""
    for demand in state.demands.become_due(now):
        samples = state.set_of(demand.samples)
        samples.move(samples.among(demand.indices, SampleState.WAITING), SampleState.ABSENT)


def _meet_demands(state: State, now: float) -> bool:
    """Request what is demanded; ``False`` if a reader waits for room, which then is nobody else's."""
    put_off: list[tuple[Demand, NDArray[np.int64]]] = []
    lacks_room = False
    while (
        not lacks_room
        and watch_spending(state, now) is not Spending.STOPPED
        and state.fleet.places(now) > 0
        and (demand := state.demands.take_due()) is not None
    ):
        wanted = _wanted(state, demand)
        if not wanted.size:
            continue
        roster = state.roster_of(demand.samples.dataset)
        member = roster.choose(now, failed_by=demand.failed_by)
        if member is None:  # those that have places are of no use for it
            put_off.append((demand, wanted))
            continue
        places = roster.places(now)
        share = 1 if demand.alone else min(state.settings.request_samples, math.ceil(wanted.size / places))
        if demand.urgent:
            wanted, share = _suspects_alone(state, demand, wanted, share)
            room = urgent_room_for(state, demand.samples, share, now)
        else:
            wanted, later_than_s = _soonest_first(state, demand, wanted, share)
            room = room_for(state, demand.samples, share, later_than_s=later_than_s, now=now)
        if room:
            request(state, member, demand.samples, wanted[:room], demand.job, now)
        if room or demand.urgent:
            state.demands.put_back(demand, wanted[room:])
        else:
            _leave_to_lanes(state, demand, wanted)
        lacks_room = not room and demand.urgent
    for demand, wanted in reversed(put_off):
        state.demands.put_back(demand, wanted)
    return not lacks_room


def _wanted(state: State, demand: Demand) -> NDArray[np.int64]:
    """What of a demand is still to be asked for; nothing, if nobody reads that dataset any more."""
    samples = state.sets.get(demand.samples)
    if samples is None:
        return np.empty(0, dtype=np.int64)
    wanted = samples.among(demand.indices, SampleState.ABSENT)
    return wanted if state.wants(demand.samples.dataset) else wanted[:0]


def _suspects_alone(
    state: State, demand: Demand, wanted: NDArray[np.int64], share: int
) -> tuple[NDArray[np.int64], int]:
    """First what has never failed; then, one by one, what has: it may have crashed its function."""
    suspect = state.set_of(demand.samples).attempts[wanted] > 0
    innocents = int(np.count_nonzero(~suspect))
    return np.concatenate((wanted[~suspect], wanted[suspect])), min(share, innocents) if innocents else 1


def _leave_to_lanes(state: State, demand: Demand, wanted: NDArray[np.int64]) -> None:
    """There is no room for a retry, since all that is there is needed sooner: look ahead to it again."""
    job = state.jobs.get(demand.job)
    if job is not None:
        position = job.low + int(next_use(demand.samples, wanted, job).min())
        for lane in job.lanes.values():
            lane.look_back(position)
            state.crowding.lanes[job.name, lane.rank] = None


def _soonest_first(
    state: State, demand: Demand, wanted: NDArray[np.int64], share: int
) -> tuple[NDArray[np.int64], float]:
    """What is wanted in the order of its next use, and the next use of the last that is asked for now."""
    if fits(state, demand.samples, share):
        return wanted, 0.0
    job = state.jobs.get(demand.job)
    uses_s = next_use_s(demand.samples, wanted, [job] if job is not None else state.jobs.values())
    order = np.argsort(uses_s, kind="stable")
    return wanted[order], float(uses_s[order[share - 1]])
