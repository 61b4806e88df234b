"""Turn demand into requests, team by team: readers' misses first, then look-ahead by deadline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.background import due_saves, next_save_s, room_to_fill
from superdl.coordinator.core.cache import enforce_budget, fits, room_for, update_shares, urgent_room_for
from superdl.coordinator.core.capacity import request_size
from superdl.coordinator.core.events import Warn
from superdl.coordinator.core.fleet import Deadline, pick
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.lookahead import find_absent, with_their_neighbours
from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.queues import BatchPlace
from superdl.coordinator.core.requests import make, make_save, race_stragglers
from superdl.coordinator.core.restoring import ways, with_their_packs
from superdl.coordinator.core.retrying import release_due
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.record import SPENDING_CAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Cursor, Job, Pending
    from superdl.coordinator.core.restoring import Way
    from superdl.coordinator.core.samples import Ints, SetKey
    from superdl.coordinator.core.state import State

_ALWAYS_LATE = 8.0  # a caution above this means that readers always wait
_WARN_EVERY_S = 300.0
_MOMENT_S = 1e-3  # added to deadlines, to be sure that they have passed
# While latency and pace are unknown, use a more expensive executor only for this many batches ahead.
_FIRST_BATCHES = 8


def expire_tombstones(state: State, now: float) -> None:
    """Mark samples whose tombstones have expired as absent."""
    while state.expiries and state.expiries[0][0] <= now:
        _, key, indices = state.expiries.popleft()
        samples = state.sets.get(key)
        if samples is not None:
            again = samples.among(indices, SampleState.FAILED)
            samples.move(again, SampleState.ABSENT)
            for index in again.tolist():
                state.failures.pop((key, index), None)


def dispatch(state: State, now: float) -> None:
    """Create requests while executors and the cache have room, then any saves that are due."""
    _produce(state, now)
    if update_spending(state, now) is Spending.FREELY:
        for executor, key, indices in due_saves(state, now):
            make_save(state, executor, key, indices, now)
            if update_spending(state, now) is not Spending.FREELY:
                return


def _produce(state: State, now: float) -> None:
    if state.teams.several:
        update_shares(state, now)
    enforce_budget(state, now)
    release_due(state, now)
    state.stragglers.become_late(now, state.requests)
    spending = update_spending(state, now)
    if spending is Spending.STOPPED:
        _refuse_readers(state, now)
        return
    if spending is Spending.FREELY:
        race_stragglers(state, now)
    if state.room_search.waiting and state.room_search.over(state.events, now):  # a search may find room
        cursors, state.room_search.waiting = state.room_search.waiting, {}
        state.wake_all(cursors)
    wake_deferred(state, now)
    skipped: set[BatchPlace] = set()
    # Only keep the executors busy, because later decisions are better.
    while (first := _first(state, skipped, now)) is not None:
        if isinstance(first, BatchPlace):
            if not _serve_reader(state, first, skipped, now):
                break
        elif (ahead := find_absent(state, first, now)) is not None:
            _look_ahead(state, first, ahead, now)


def _first(state: State, skipped: set[BatchPlace], now: float) -> BatchPlace | Cursor | None:
    # Within a team, batches that readers are waiting for come before look-ahead.
    spending = update_spending(state, now)
    if spending is Spending.STOPPED:
        return None
    place = _first_missed(state, skipped) if state.fleet.has_free_slot(now) else None
    soonest = state.fleet.soonest(now, state.turn) if spending is Spending.FREELY else None
    if place is not None and (soonest is None or state.teams.turn(state.team_of(place.job)) <= soonest.turn):
        return place
    key = soonest.ranks.pop() if soonest is not None else None
    return None if key is None else state.cursor(*key)


def _first_missed(state: State, skipped: set[BatchPlace]) -> BatchPlace | None:
    unserved = (place for place in state.misses.unserved if place not in skipped)
    if not state.teams.several:
        return next(unserved, None)
    first = dict[str, BatchPlace]()
    for place in unserved:
        first.setdefault(state.team_of(place.job), place)
    return first[min(first, key=state.teams.turn)] if first else None


def wake_deferred(state: State, now: float) -> None:
    """Wake ranks that are waiting for a cheaper executor if the choice of executor may have changed."""
    for eligible in state.fleet.groups:
        if len(eligible.deferred):
            changed = eligible.has_changed(now)
            state.wake_all(eligible.deferred.pop_due(math.inf if changed else now))


def _look_ahead(state: State, cursor: Cursor, ahead: Pending, now: float) -> None:
    """Request a rank's absent samples, unless another rank takes precedence or the samples can wait."""
    job, soonest, turn = cursor.job, state.fleet.soonest(now, state.turn), state.turn(cursor.job.team)
    if soonest is not None and turn is not None and (turn, cursor.deadline_s()) > soonest[:2]:
        state.wake(cursor)
        return
    soon = cursor.next_ahead < cursor.watermark + _FIRST_BATCHES
    deadline = Deadline(
        slack_s=_slack_s(cursor, now) if cursor.pace.known or soon else math.inf,
        soon=soon,
        samples=min(job.plan.batch_size, state.settings.request_samples),
    )
    way, executor, waits_s = _assign(
        state, ahead.samples, ahead.indices, deadline, now, failed_by=ahead.failed_by
    )
    if executor is None:
        eligible = state.eligible_for(job.dataset)
        if not len(eligible.deferred):
            eligible.has_changed(now)  # take a snapshot for later calls
        eligible.deferred.add(cursor.key, now + waits_s + _MOMENT_S)
        return
    count = min(way.indices.size, _request_samples(state, executor, cursor, ahead, way, now))
    room = count
    if job.fill is not None:
        room = room_to_fill(state, job, ahead.samples, count)
    elif not fits(state, ahead.samples, count):
        room = room_for(state, ahead.samples, count, later_than_s=_due_in_s(job, ahead), now=now)
    if room:
        taken = _complete_groups(state, executor, cursor, ahead, way, room, now)
        cursor.pending[0] = ahead._replace(indices=ahead.indices[~np.isin(ahead.indices, taken)])
        make(state, executor, ahead.samples, taken, job, now, restore=way.executors.restores)
    if room == count:
        state.wake(cursor)
    else:
        state.room_search.waiting[cursor.key] = None


def _complete_groups(
    state: State, executor: ExecutorState, cursor: Cursor, ahead: Pending, way: Way, room: int, now: float
) -> Ints:
    # Complete packs or runs if that delays nothing that is needed sooner.
    key, taken = ahead.samples, way.indices[:room]
    if (
        way.executors.restores
        and not ahead.alone
        and cursor.next_ahead >= cursor.watermark + _FIRST_BATCHES
        and _slack_s(cursor, now) > 0
    ):
        return with_their_packs(state, key, taken)
    if way.executors.restores or ahead.alone or state.datasets[key.dataset].runs is None:
        return taken
    return with_their_neighbours(
        state,
        executor,
        cursor,
        key,
        taken,
        slack_s=_useful_slack_s(cursor, now),
        later_than_s=_due_in_s(cursor.job, ahead),
        now=now,
    )


def _due_in_s(job: Job, ahead: Pending) -> float:
    return float(job.due_in_s(np.array([ahead.stop - 1 - job.watermark]))[0])


def _assign(
    state: State, key: SetKey, indices: Ints, deadline: Deadline, now: float, failed_by: int | None = None
) -> tuple[Way, ExecutorState | None, float]:
    """Choose a way to get absent samples, and an available executor for it.

    If the executor is ``None``, the last value is the maximum time to wait, in seconds.
    """
    waits_s, executor = math.inf, None
    for way in ways(state, key, indices, now):
        fitting = deadline._replace(samples=min(deadline.samples, way.indices.size))
        executor, ends_in_s = pick(way.executors, fitting, now, failed_by=failed_by)
        if executor is not None:
            break
        waits_s = min(waits_s, ends_in_s)
    return way, executor, waits_s


def _slack_s(cursor: Cursor, now: float) -> float:
    # A reader may request a late batch at any moment.
    return cursor.deadline_s() - now if cursor.next_ahead > cursor.watermark else 0.0


def _useful_slack_s(cursor: Cursor, now: float) -> float:
    # With too few functions, readers always wait, and small requests do not help.
    return math.inf if cursor.caution > _ALWAYS_LATE else _slack_s(cursor, now)


def _request_samples(
    state: State, executor: ExecutorState, cursor: Cursor, ahead: Pending, way: Way, now: float
) -> int:
    if ahead.alone:
        return 1
    return request_size(
        way.executors.latency_of(executor),
        requested=min(way.indices.size, cursor.job.plan.batch_size),
        idle=executor.idle,
        slack_s=_useful_slack_s(cursor, now),
        most=state.most_samples(ahead.samples),
    )


def _serve_reader(state: State, place: BatchPlace, skipped: set[BatchPlace], now: float) -> bool:
    """Request a batch's missing samples, or skip the batch. Return ``False`` if it must wait for room.

    The caller must then stop, so that nothing else takes the room.
    """
    key, absent = _absent(state, place)
    if not absent.size:
        state.misses.served(place)
        return True
    job = state.jobs[place.job]
    payer = _payer_of(state, job, key, absent)
    if payer is None:
        _refuse(state, job.team, key, absent, now)
        return True
    way, executor, _ = _assign(state, key, absent, Deadline(), now)
    if executor is None:
        skipped.add(place)
        return True
    count = min(state.settings.request_samples, math.ceil(way.indices.size / way.executors.free_slots(now)))
    ordered, count = _unsuspected_first(state, key, way.indices, count)
    room = urgent_room_for(state, key, count, now)
    if room:
        make(state, executor, key, ordered[:room], payer, now, restore=way.executors.restores)
    return room > 0


def _payer_of(state: State, job: Job, key: SetKey, requested: Ints) -> Job | None:
    """Return ``job`` if its team may spend, otherwise another job that needs the samples, or ``None``."""
    if state.turn(job.team) is not None:
        return job
    others = (other for other in state.jobs_of(key.dataset) if state.turn(other.team) is not None)
    return next((other for other in others if (other.next_use(key, requested) < NEVER_SOON).all()), None)


def _absent(state: State, place: BatchPlace) -> tuple[SetKey, Ints]:
    """Return a batch's missing samples that still need a request, or none if the job has closed."""
    _, key, missed = state.misses[place]
    samples = state.sets.get(key)
    if samples is None or place.job not in state.jobs:
        return key, missed[:0]
    return key, samples.among(missed, SampleState.ABSENT)


def _refuse(state: State, team: str, key: SetKey, absent: Ints, now: float) -> None:
    text, limited = state.teams.refusal(team), state.teams[team]
    state.write_tombstones(key, absent, (text,) * absent.size, now, reason=SPENDING_CAP)
    if now >= limited.warned_s + _WARN_EVERY_S:
        limited.warned_s = now
        state.actions.append(Warn(text))


def _unsuspected_first(state: State, key: SetKey, missed: Ints, count: int) -> tuple[Ints, int]:
    """Put samples that have failed last. Request those one at a time, as any may crash the function."""
    suspect = state.set_of(key).attempts[missed] > 0
    untried = int(np.count_nonzero(~suspect))
    return np.concatenate((missed[~suspect], missed[suspect])), min(count, untried) if untried else 1


def update_spending(state: State, now: float) -> Spending:
    """Update and return the level of spending. Warns when a cap is near."""
    if state.ledger.capped:
        warning = state.ledger.update(state.in_flight, now)
        if warning is not None:
            state.actions.append(Warn(warning))
    return state.ledger.spending


def _refuse_readers(state: State, now: float) -> None:
    if state.is_producing:
        return
    # A tombstone makes readers fail at once.
    text = state.ledger.refusal()
    for place in list(state.misses.unserved):
        key, absent = _absent(state, place)
        if absent.size:
            state.write_tombstones(key, absent, (text,) * absent.size, now, reason=SPENDING_CAP)
        state.misses.served(place)


def wake_times_s(state: State, now: float) -> Iterator[float]:
    """Yield the times at which work becomes due or possible without an event."""
    for due_s in (
        state.expiries[0][0] if state.expiries else None,
        state.retries.soonest_s(),
        state.leases.soonest_s(),
        state.stragglers.next_late_s(),
    ):
        if due_s is not None:
            yield due_s
    for possible_s in _opportunities(state, now):
        if possible_s is not None and possible_s > now:
            yield possible_s


def _opportunities(state: State, now: float) -> Iterator[float | None]:
    waiting = state.misses.unserved
    if waiting or state.room_search.waiting:
        yield state.room_search.over_at_s(state.events)
        yield state.misses.next_expiry_s(now)
    for eligible in state.fleet.groups:
        if waiting or any(map(len, eligible.ready.values())) or len(eligible.deferred):
            yield from eligible.wake_times_s(now)
        yield eligible.deferred.soonest_s()
    if state.ledger.spending is not Spending.FREELY:
        yield state.ledger.freely_at_s(now, state.in_flight)
    yield next_save_s(state)
