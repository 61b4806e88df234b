"""Turning what is wanted into requests: of the team whose turn it is, misses first, then retries, then the
rank with the first deadline.

No more requests are in flight than keep the executors busy, so that what is decided late is decided well; and
none is made without room for its samples in the cache, nor beyond what may be spent. At the hard cap on
spending, what readers wait for gets a tombstone that names the cap: they fail at once and say why. What is in
the cache can be read all the while.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.events import Warn
from superdl.coordinator.core.filling import room_to_fill
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.lookahead import find_absent
from superdl.coordinator.core.neighbours import with_their_neighbours
from superdl.coordinator.core.requesting import payer_of, race_stragglers, request
from superdl.coordinator.core.restoring import ways, with_their_packs
from superdl.coordinator.core.retrying import release_due
from superdl.coordinator.core.room import (
    fits,
    next_use,
    next_use_s,
    relieve,
    room_for,
    see_shares,
    urgent_room_for,
)
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.saving import next_save_s, save_one
from superdl.coordinator.core.timing import request_size
from superdl.super_wire.record import SPENDING_CAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from superdl.coordinator.core.fleet import ExecutorState, Soonest
    from superdl.coordinator.core.jobs import Ahead, Cursor, Job
    from superdl.coordinator.core.queues import Retry
    from superdl.coordinator.core.restoring import Way
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import State

__all__ = ["dispatch", "expire_tombstones", "wake_times_s", "watch_spending"]

_ALWAYS_LATE = 8.0
_WARN_EVERY_S = 300.0
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
    """Make requests while executors have places and the cache has room; last, what is to be saved."""
    _produce(state, now)
    while watch_spending(state, now) is Spending.FREELY and save_one(state, now):
        pass


def _produce(state: State, now: float) -> None:
    if state.teams.several:
        see_shares(state, now)
    relieve(state, now)
    release_due(state, now)
    state.stragglers.become_late(now, state.requests)
    spending = watch_spending(state, now)
    if spending is Spending.STOPPED:
        _refuse_retries(state, now)
        return
    if spending is Spending.FREELY:
        race_stragglers(state, now)
    _wake_waiting_for_room(state, now)
    _wake_deferred(state, now)
    lacks_room, left_over = _request_retries(state, now)
    while not lacks_room and (soonest := _soonest(state, now)) is not None:
        key = soonest.eligible.ready.pop(soonest.team)
        if key is None:  # never: it has a deadline
            break
        cursor = state.jobs[key[0]].cursors[key[1]]
        ahead = find_absent(state, cursor, now)
        if ahead is not None:
            _look_ahead(state, cursor, ahead, now)
        if state.teams.several and not left_over:
            lacks_room, left_over = _request_retries(state, now)


def _soonest(state: State, now: float) -> Soonest | None:
    """The rank that goes first of those that may look ahead."""
    if watch_spending(state, now) is not Spending.FREELY:
        return None
    return state.fleet.soonest(now, state.turn)


def _wake_deferred(state: State, now: float) -> None:
    """Let the ranks that wait for a cheaper executor look again, once that may come to something else."""
    for eligible in state.fleet.groups:
        if len(eligible.deferred):
            changed = eligible.has_changed(now)
            state.wake_those(eligible.deferred.take_until(math.inf if changed else now))


def _look_ahead(state: State, cursor: Cursor, ahead: Ahead, now: float) -> None:
    """Request what a rank has found, as much of it as one request takes, unless another rank goes first, or
    it waits for a cheaper executor.
    """
    job, soonest, turn = cursor.job, state.fleet.soonest(now, state.turn), state.turn(cursor.job.team)
    cursor.pending.appendleft(ahead)
    if soonest is not None and turn is not None and (turn, cursor.deadline_s()) > soonest[:2]:
        state.wake(cursor)
        return
    waits_s = math.inf
    for way in ways(state, ahead.samples, ahead.indices, now):
        executor, ends_in_s = _executor_for(state, cursor, way, now)
        if executor is not None:
            break
        waits_s = min(waits_s, ends_in_s)
    else:
        eligible = state.eligible_for(job.dataset)
        if not len(eligible.deferred):
            eligible.has_changed(now)  # than from now on
        eligible.deferred.add(cursor.key, now + waits_s + _MOMENT_S)
        return
    count = min(way.indices.size, _request_samples(state, executor, cursor, ahead.samples, way, now))
    room = count
    if job.fill is not None:
        room = room_to_fill(state, job, ahead.samples, count)
    elif not fits(state, ahead.samples, count):
        room = room_for(state, ahead.samples, count, later_than_s=_due_in_s(job, ahead), now=now)
    if room:
        taken, left = _with_what_comes_along(state, executor, cursor, ahead, way, room, now)
        cursor.pending[0] = ahead._replace(indices=left)
        request(state, executor, ahead.samples, taken, job.name, now, restore=way.restore)
    if room == count:
        state.wake(cursor)
    else:
        state.room_search.waiting[cursor.key] = None


def _with_what_comes_along(
    state: State, executor: ExecutorState, cursor: Cursor, ahead: Ahead, way: Way, room: int, now: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What a request has: the first samples of a way, with the rest of their packs or runs where that harms
    nothing that is wanted sooner; and what is left of all that a rank has found.
    """
    key, taken = ahead.samples, way.indices[:room]
    if way.restore and cursor.next_ahead >= cursor.watermark + _FIRST_BATCHES and _slack_s(cursor, now) > 0:
        return with_their_packs(state, key, taken), ahead.indices
    if way.restore or state.datasets[key.dataset].runs is None:
        return taken, way.without(room)
    taken = with_their_neighbours(
        state,
        executor,
        cursor,
        key,
        taken,
        slack_s=_useful_slack_s(cursor, now),
        later_than_s=_due_in_s(cursor.job, ahead),
        now=now,
    )
    return taken, ahead.indices


def _due_in_s(job: Job, ahead: Ahead) -> float:
    """When the last batch of what a rank has found is wanted."""
    return float(job.due_in_s(np.array([ahead.stop - 1 - job.watermark]))[0])


def _executor_for(state: State, cursor: Cursor, way: Way, now: float) -> tuple[ExecutorState | None, float]:
    """Who is to have what a rank has found; ``None`` if that waits, and for how long at most, in seconds."""
    job, soon = cursor.job, cursor.next_ahead < cursor.watermark + _FIRST_BATCHES
    slack_s = _slack_s(cursor, now) if cursor.pace.known or soon else math.inf
    samples = min(way.indices.size, job.plan.batch_size, state.settings.request_samples)
    executor = way.executors.choose(now, slack_s=slack_s, soon=soon, samples=samples)
    if executor is not None:
        return executor, 0.0
    return None, way.executors.deferral_ends_in_s(now, slack_s=slack_s, samples=samples)


def _slack_s(cursor: Cursor, now: float) -> float:
    """How long there is until a rank wants what it has found; the next batch is late by definition, since a
    reader may ask for it at once.
    """
    return cursor.deadline_s() - now if cursor.next_ahead > cursor.watermark else 0.0


def _useful_slack_s(cursor: Cursor, now: float) -> float:
    """Where readers wait again and again, functions are too few, and nothing is gained by small requests."""
    return math.inf if cursor.caution > _ALWAYS_LATE else _slack_s(cursor, now)


def _wake_waiting_for_room(state: State, now: float) -> None:
    """Let the ranks that wait for room look for it again, once that may help."""
    if state.room_search.waiting and state.room_search.over(state.events, now):
        cursors, state.room_search.waiting = state.room_search.waiting, {}
        state.wake_those(cursors)


def _request_samples(
    state: State, executor: ExecutorState, cursor: Cursor, key: SetKey, way: Way, now: float
) -> int:
    return request_size(
        way.executors.latency_of(executor),
        wanted=min(way.indices.size, cursor.job.plan.batch_size),
        idle=executor.idle(now),
        slack_s=_useful_slack_s(cursor, now),
        most=state.most_samples(key),
    )


def _request_retries(state: State, now: float) -> tuple[bool, bool]:
    """Request what is demanded. Return whether a reader waits for room, which then is nobody else's, and
    whether retries are left that nobody with a place can take.
    """
    put_off: list[tuple[Retry, NDArray[np.int64]]] = []
    lacks_room = False
    while (
        not lacks_room
        and watch_spending(state, now) is not Spending.STOPPED
        and state.fleet.has_place(now)
        and (retry := _next_retry(state, now)) is not None
    ):
        wanted = _wanted(state, retry)
        if not wanted.size:
            continue
        payer = payer_of(state, retry, wanted)
        if payer is None:
            _refuse(state, retry, wanted, now)
            continue
        for way in ways(state, retry.samples, wanted, now):
            executor = way.executors.choose(now, failed_by=retry.failed_by)
            if executor is not None:
                break
        else:  # those that have places are of no use for it
            put_off.append((retry, wanted))
            continue
        places, mine = way.executors.places(now), way.indices
        share = 1 if retry.alone else min(state.settings.request_samples, math.ceil(mine.size / places))
        if retry.urgent:
            mine, share = _suspects_alone(state, retry, mine, share)
            room = urgent_room_for(state, retry.samples, share, now)
        else:
            mine, later_than_s = _soonest_first(state, retry, mine, share)
            room = room_for(state, retry.samples, share, later_than_s=later_than_s, now=now)
        if room:
            request(state, executor, retry.samples, mine[:room], payer, now, restore=way.restore)
        if room or retry.urgent:
            state.retry_queue.put_back(retry, way._replace(indices=mine).without(room))
        else:
            _leave_to_lookahead(state, retry, wanted)
        lacks_room = not room and retry.urgent
    for retry, wanted in reversed(put_off):
        state.retry_queue.put_back(retry, wanted)
    return lacks_room, bool(put_off)


def _next_retry(state: State, now: float) -> Retry | None:
    """The retry that goes first, removed; ``None`` if there is none, or if it is another team's turn."""
    waiting = state.retry_queue.teams
    if not waiting:
        return None
    team = min(sorted(waiting), key=state.teams.turn)
    if state.teams.several:
        soonest = _soonest(state, now)
        if soonest is not None and soonest.turn < state.teams.turn(team):
            return None
    return state.retry_queue.take_due(team)


def _refuse(state: State, retry: Retry, wanted: NDArray[np.int64], now: float) -> None:
    """A team may spend no more: say so to its reader, if one waits, and to people."""
    text, team = state.teams.refusal(retry.team), state.teams[retry.team]
    if retry.urgent:
        state.fail_for_a_while(retry.samples, wanted, (text,) * wanted.size, now, reason=SPENDING_CAP)
    if now >= team.warned_s + _WARN_EVERY_S:
        team.warned_s = now
        state.actions.append(Warn(text))


def _wanted(state: State, retry: Retry) -> NDArray[np.int64]:
    """What of a retry is still to be asked for; nothing, if nobody reads that dataset any more."""
    samples = state.sets.get(retry.samples)
    if samples is None:
        return np.empty(0, dtype=np.int64)
    wanted = samples.among(retry.indices, SampleState.ABSENT)
    return wanted if state.wants(retry.samples.dataset) else wanted[:0]


def _suspects_alone(
    state: State, retry: Retry, wanted: NDArray[np.int64], share: int
) -> tuple[NDArray[np.int64], int]:
    """First what has never failed; then, one by one, what has: it may have crashed its function."""
    suspect = state.set_of(retry.samples).attempts[wanted] > 0
    untried = int(np.count_nonzero(~suspect))
    return np.concatenate((wanted[~suspect], wanted[suspect])), min(share, untried) if untried else 1


def _leave_to_lookahead(state: State, retry: Retry, wanted: NDArray[np.int64]) -> None:
    """There is no room for a retry, since all that is there is needed sooner: look ahead to it again."""
    job = state.jobs.get(retry.job)
    if job is not None:
        position = job.watermark + int(next_use(retry.samples, wanted, job).min())
        for cursor in job.cursors.values():
            cursor.look_back(position)
            state.room_search.waiting[cursor.key] = None


def _soonest_first(
    state: State, retry: Retry, wanted: NDArray[np.int64], share: int
) -> tuple[NDArray[np.int64], float]:
    """What is wanted in the order of its next use, and the next use of the last that is asked for now."""
    if fits(state, retry.samples, share):
        return wanted, 0.0
    job = state.jobs.get(retry.job)
    uses_s = next_use_s(retry.samples, wanted, [job] if job is not None else state.jobs.values())
    order = np.argsort(uses_s, kind="stable")
    return wanted[order], float(uses_s[order[share - 1]])


def watch_spending(state: State, now: float) -> Spending:
    """See how freely money may be spent now, and warn when that gets less."""
    if state.ledger.capped:
        warning = state.ledger.watch(state.in_flight, now)
        if warning is not None:
            state.actions.append(Warn(warning))
    return state.ledger.spending


def _refuse_retries(state: State, now: float) -> None:
    """Tell the readers that wait that the hard cap is reached, once what is in flight has been paid for."""
    if state.samples_in_flight:
        return
    text = state.ledger.refusal()
    while teams := state.retry_queue.teams:
        retry = state.retry_queue.take_due(min(teams))
        samples = state.sets.get(retry.samples)
        if not retry.urgent or samples is None:
            continue
        refused = samples.among(retry.indices, SampleState.ABSENT)
        if refused.size:
            state.fail_for_a_while(retry.samples, refused, (text,) * refused.size, now, reason=SPENDING_CAP)


def wake_times_s(state: State, now: float) -> Iterator[float]:
    """All times at which something becomes due or possible by the passing of time alone; they lie ahead."""
    for due_s in (
        state.expiries[0][0] if state.expiries else None,
        state.retry_queue.next_due_s,
        state.leases.soonest_s(),
        state.stragglers.next_late_s(),
    ):
        if due_s is not None:
            yield due_s
    for possible_s in _opportunities(state, now):
        if possible_s is not None and possible_s > now:
            yield possible_s


def _opportunities(state: State, now: float) -> Iterator[float | None]:
    waiting = state.retry_queue.waiting
    if waiting or state.room_search.waiting:
        yield state.room_search.over_at_s(state.events)
        yield state.misses.next_expiry_s(now)
    for eligible in state.fleet.groups:
        if waiting or len(eligible.ready) or len(eligible.deferred):
            yield from eligible.wake_times_s(now)
        yield eligible.deferred.soonest_s()
    if state.ledger.spending is not Spending.FREELY:
        yield state.ledger.freely_at_s(now, state.in_flight)
    yield next_save_s(state)
