"""The cache: audits, read-backs of new records, and eviction.

Samples whose next use is furthest in the future are dropped first (Belady, 1966).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.events import Audit, Drop, ReadBack, Warn
from superdl.coordinator.core.jobs import Pending, next_use_s
from superdl.coordinator.core.queues import BatchPlace, CursorSpan
from superdl.coordinator.core.restoring import accept, usable
from superdl.coordinator.core.retrying import recheck
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from superdl.coordinator.core.events import (
        Audited,
        CacheEvicted,
        CacheGrew,
        CacheReset,
        CacheResized,
        RecordReadBack,
    )
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Ints, SampleSet, SetKey
    from superdl.coordinator.core.state import Request, State

_READ_BACK_EVERY_S = 5.0
_CORRUPT_EVERY_S = 0.5  # the same while an executor's records are corrupt
_READ_BACK_BYTES_MAX = 16 * 2**20


def audit(
    state: State, key: SetKey, indices: Ints, requester: BatchPlace | CursorSpan, *, whole: bool = False
) -> None:
    """Request an audit of the samples, if there are any."""
    if not indices.size:
        return
    state.set_of(key).move(indices, SampleState.CHECKING)
    action = Audit(next(state.numbers), key, indices, whole, requester)
    state.audits[action.audit_id] = action
    state.actions.append(action)


def audited(state: State, event: Audited, now: float) -> None:
    """Apply an audit's result, and request absent samples again."""
    pending = state.audits.pop(event.audit_id, None)
    if pending is None:
        return
    samples, before_bytes = state.set_of(pending.samples), state.resident_bytes
    present, tombstoned = usable(state, samples, event, now, whole=pending.whole), event.record_bytes < 0
    state.add_resident(pending.samples, accept(state, samples, pending.indices, event, present), now)
    samples.move(pending.indices[tombstoned], SampleState.FAILED)
    lost = ~(present | tombstoned)
    absent = pending.indices[lost]
    samples.move(absent, SampleState.ABSENT)
    samples.attempts[absent] = 0
    corrupt = pending.indices[lost & ((event.record_bytes > 0) | pending.whole)]
    if corrupt.size:  # a tombstone does not replace a record
        state.actions.append(Drop(pending.samples, corrupt))
    # Until this audit, records of an earlier coordinator counted as foreign memory.
    added_bytes = state.resident_bytes - before_bytes
    state.foreign_bytes = max(0, state.foreign_bytes - max(0, added_bytes))
    if absent.size:
        _handle_absent(state, pending, absent)
    rank = state.cursor(*pending.requester[:2])
    if rank is not None and rank.job.fill is not None:  # filling is limited by pending audits
        state.wake(rank)


def _handle_absent(state: State, finished: Audit, absent: Ints) -> None:
    requester = finished.requester
    if isinstance(requester, BatchPlace):
        state.stalls.record_lost(requester)
    else:
        cursor = state.cursor(requester.job, requester.rank)
        if cursor is not None and cursor.watermark < requester.stop <= cursor.lookahead:
            cursor.add_pending(Pending(requester.start, requester.stop, finished.samples, absent))
            state.wake(cursor)
    # Other ranks may have skipped the samples during the audit.
    others = (other for other in state.cursors_of(finished.samples.dataset) if other.key != requester[:2])
    recheck(state, finished.samples, absent, others)


def cache_reset(state: State, event: CacheReset, now: float) -> None:
    """Mark all samples as absent, except those in flight or being audited."""
    for samples in state.sets.values():
        for lost in (SampleState.RESIDENT, SampleState.FAILED):
            samples.move(samples.having(lost), SampleState.ABSENT)
        unknown = samples.having(SampleState.UNKNOWN)
        samples.move(unknown, SampleState.CHECKING)
        samples.move(unknown, SampleState.ABSENT)
    state.failures.clear()
    state.expiries.clear()
    state.foreign_bytes = 0
    state.emptied = True
    state.room_search.reset()
    state.restart_lookahead(state.cursors)


def cache_evicted(state: State, event: CacheEvicted, now: float) -> None:
    """Mark resident samples for an audit when a rank next reaches them."""
    for samples in state.sets.values():
        samples.doubt()
    state.restart_lookahead(state.cursors)


def cache_grew(state: State, event: CacheGrew, now: float) -> None:
    """Update the estimate of the memory used by others."""
    # Requests in flight have pushed an unknown part of their reserved bytes. Keep the last estimate if it is
    # possible. Once foreign memory must have grown, assume that half was pushed.
    least, most = event.excess_bytes - state.reserved_bytes, event.excess_bytes
    estimate = state.foreign_bytes if state.foreign_bytes >= least else (least + most) // 2
    state.foreign_bytes = max(0, min(estimate, most))


def cache_resized(state: State, event: CacheResized, now: float) -> None:
    """Adopt the cache's new budget, and release half of the memory withheld after refused writes."""
    grew = event.budget_bytes > state.budget_bytes
    state.budget_bytes = max(1, event.budget_bytes)
    state.withheld_bytes //= 2
    if not grew:
        return
    state.room_search.reset()
    for cursor in state.cursors:
        state.wake(cursor)


def choose_to_read_back(
    state: State, request: Request, indices: Ints, record_bytes: Ints, now: float
) -> None:
    """Request a read-back of one record from a result, if a read-back is due.

    For the cost of a GET, this detects corruption on the write path, which would affect every reader.
    """
    executor = state.fleet.executors[request.order.executor]
    every_s = _CORRUPT_EVERY_S if executor.breaker.corrupts else _READ_BACK_EVERY_S
    if not indices.size or now < executor.read_back_s + every_s:
        return
    executor.read_back_s = now
    at = state.events % indices.size  # a different record each time
    if record_bytes[at] <= _READ_BACK_BYTES_MAX:
        state.actions.append(ReadBack(request.order.samples, int(indices[at]), request.order.executor))


def record_read_back(state: State, event: RecordReadBack, now: float) -> None:
    """Handle a read-back. Drops a corrupt record, and sets its executor aside until a record is intact."""
    executor = state.fleet.executors[event.executor]
    if not event.fault:
        executor.breaker.record_intact()
        return
    if not executor.breaker.corrupts:  # warn once until it recovers
        set_aside = ", and the executor is set aside" if len(state.fleet.executors) > 1 else ""
        text = (
            f"a record that the executor {executor.name} just wrote to the cache was corrupt when read back "
            f"({event.fault}). The sample is produced again{set_aside}. Something between the functions, the "
            "cache and the coordinator changes bytes"
        )
        state.actions.append(Warn(text))
    executor.breaker.record_corrupt(f"its records are corrupt when read back: {event.fault}", now)
    samples = state.sets.get(event.samples)
    if samples is None:
        return
    corrupt = samples.among(np.array([event.index]), SampleState.RESIDENT)
    if corrupt.size:
        state.drop(samples, corrupt)
        reading = state.cursors_of(event.samples.dataset)
        recheck(state, event.samples, corrupt, reading, failed_by=event.executor)


# A search frees at least these shares of the budget, so that searches are rare
_UNNEEDED_SHARE = 1 / 32  # of samples that no job needs
_NEEDED_SHARE = 1 / 128
_SHARES_EVERY_S = 0.2
_ANY_TIME_S = -1.0  # before the next use of any sample
_NOT_NOW_S = 0.0  # before the next use of samples that are not needed now
CANDIDATES_LEAST = 2048
_CANDIDATES_PER_VICTIM = 8
_CANDIDATES_MAX = 65_536
_CANDIDATES_PER_SET = 1024  # on average; fewer take as long, because each job looks up a whole set at once
_FRESH_TIMES = 8  # consider this many times more samples of a random recipe
_LOOKUPS_MAX = 1_000_000  # next uses to compute in a search, over all jobs


def fits(state: State, key: SetKey, count: int) -> bool:
    """Return whether ``count`` samples fit without dropping any."""
    return state.free_bytes >= math.ceil(state.set_of(key).sample_bytes * count)


def enforce_budget(state: State, now: float) -> None:
    """Drop samples until the cache is within its budget, sparing those that a reader is waiting for."""
    if state.free_bytes < 0:
        _evict(state, -state.free_bytes, later_than_s=_NOT_NOW_S, now=now)


def room_for(state: State, key: SetKey, count: int, *, later_than_s: float, now: float) -> int:
    """Make room by dropping samples needed after ``later_than_s``. Return how many of ``count`` fit."""
    size_bytes = state.set_of(key).sample_bytes
    if not state.room_search.futile(state.events, later_than_s, now):
        _make_room(state, size_bytes * count, later_than_s=later_than_s, now=now)
        if not fits(state, key, count):
            state.room_search.failed(state.events, later_than_s, now, jobs=len(state.jobs))
    return fitting(state.free_bytes, size_bytes, count)


def urgent_room_for(state: State, key: SetKey, count: int, now: float) -> int:
    """Make room for ``count`` samples that a reader is waiting for, and return how many fit.

    Returns at least 1 unless a request in flight or a pending read can still free room.
    """
    size_bytes = state.set_of(key).sample_bytes
    for later_than_s in (_NOT_NOW_S, _ANY_TIME_S):
        _make_room(state, size_bytes * count, later_than_s=later_than_s, now=now)
    fit = fitting(state.free_bytes, size_bytes, count)
    # Requests in flight will free room, and so will readers that fetch their samples.
    if fit or state.is_producing or _missed_and_resident(state, now):
        return fit
    # Either others use the memory, and readers must not wait for them, or a sample exceeds the budget.
    return max(1, fitting(state.free_bytes + state.foreign_bytes, size_bytes, count))


def _missed_and_resident(state: State, now: float) -> bool:
    return any(
        state.set_of(key).among(indices, SampleState.RESIDENT).size
        for key, indices in state.misses.by_set(now).items()
    )


def fitting(free_bytes: int, size_bytes: float, count: int) -> int:
    """Return how many of ``count`` samples of ``size_bytes`` fit into ``free_bytes``."""
    return count if free_bytes >= math.ceil(size_bytes * count) else max(0, int(free_bytes / size_bytes))


def _make_room(state: State, size_bytes: float, *, later_than_s: float, now: float) -> None:
    missing = math.ceil(size_bytes) - state.free_bytes
    if missing > 0:
        least = 0 if later_than_s == _ANY_TIME_S else int(state.budget_bytes * _NEEDED_SHARE)
        _evict(state, max(missing, least), later_than_s=later_than_s, now=now)


def _evict(state: State, size_bytes: int, *, later_than_s: float, now: float) -> None:
    state.evictions += 1
    victims = choose_victims(
        state.sets,
        state.jobs.values(),
        size_bytes=size_bytes,
        later_than_s=later_than_s,
        turn=state.evictions,
        unneeded_bytes=int(state.budget_bytes * _UNNEEDED_SHARE),
        spared=state.misses.by_set(now),
    )
    for key, indices in victims.items():
        samples = state.set_of(key)
        state.drop(samples, indices)
        samples.dropped[indices] = True
        state.dropped_samples += indices.size


def update_shares(state: State, now: float) -> None:
    """Check which teams exceed their cache share. Teams that read the same dataset split its memory."""
    if now < state.room_search.shares_again_s:
        return
    state.room_search.shares_again_s = now + _SHARES_EVERY_S
    readers: dict[bytes, set[str]] = {}
    for job in state.jobs.values():
        readers.setdefault(job.dataset, set()).add(job.team)
    held_bytes = dict.fromkeys(sorted(set().union(*readers.values())), 0.0)
    for key, samples in state.sets.items():
        teams = readers.get(key.dataset, ())
        for team in teams:
            held_bytes[team] += samples.resident_bytes / len(teams)
    shares = {team: state.teams[team].facts.share for team in held_bytes}
    most_bytes = {team: share / sum(shares.values()) * state.budget_bytes for team, share in shares.items()}
    for job in state.jobs.values():
        job.beyond_share = held_bytes[job.team] > most_bytes[job.team]


def choose_victims(
    sets: Mapping[SetKey, SampleSet],
    jobs: Iterable[Job],
    *,
    size_bytes: int,
    later_than_s: float,
    turn: int,
    spared: Mapping[SetKey, Ints],
    unneeded_bytes: int = 0,
) -> dict[SetKey, Ints]:
    """Choose samples to drop, by set, furthest next use first, until ``size_bytes`` are free.

    Chooses more, up to ``unneeded_bytes``, if no job will need them. Skips ``spared`` samples and those
    needed by ``later_than_s``. If there are very many, considers a subset that varies with ``turn``.
    """
    jobs = list(jobs)
    # Consider only several times the amount to drop, so that dropping a sample from a large cache costs no
    # more than from a small one.
    stride = _stride(sets, max(size_bytes, unneeded_bytes), jobs=len(jobs))
    keys: list[SetKey] = []
    owners, indices, scores, sizes = [], [], [], []
    for samples in sets.values():
        if not samples.resident_count:
            continue
        # Most samples of a random recipe are used up, so consider more of them.
        step = stride if samples.key.epoch == EVERY_EPOCH else math.ceil(stride / _FRESH_TIMES)
        candidates = samples.having(SampleState.RESIDENT)[turn % step :: step]
        if samples.key in spared:
            candidates = np.setdiff1d(candidates, spared[samples.key])
        if candidates.size:
            owners.append(np.full(candidates.size, len(keys)))
            keys.append(samples.key)
            indices.append(candidates)
            stored = None if samples.packs is None else samples.stored(candidates)
            scores.append(next_use_s(samples.key, candidates, jobs, stored))
            sizes.append(samples.cached_bytes[candidates].astype(np.int64))
    if not keys:
        return {}
    owner, index, score, size = map(np.concatenate, (owners, indices, scores, sizes))
    order = np.argsort(-score, kind="stable")
    order = order[score[order] > later_than_s]
    freed = np.cumsum(size[order])
    enough, plenty = (int(count) + 1 for count in np.searchsorted(freed, (size_bytes, unneeded_bytes)))
    chosen = order[: max(enough, min(plenty, int(np.count_nonzero(np.isinf(score[order])))))]
    by_set = {key: index[chosen[owner[chosen] == number]] for number, key in enumerate(keys)}
    return {key: victims for key, victims in by_set.items() if victims.size}


def _stride(sets: Mapping[SetKey, SampleSet], size_bytes: int, *, jobs: int) -> int:
    holding = [samples.resident_count for samples in sets.values() if samples.resident_count]
    count, least = sum(holding), max(CANDIDATES_LEAST, _CANDIDATES_PER_SET * len(holding))
    if count <= least:
        return 1
    sample_bytes = sum(samples.resident_bytes for samples in sets.values()) / count
    enough = int(_CANDIDATES_PER_VICTIM * size_bytes / sample_bytes)
    limit = min(enough, _CANDIDATES_MAX, _LOOKUPS_MAX // max(jobs, 1))
    return math.ceil(count / max(limit, least))
