"""Diagnosis for users: why a batch was late, and how much memory would end thrash.

Each batch that had missing samples gets one cause once it was read. The cause follows from the state at the
first miss (had the samples been requested, were functions idle) and from what functions did until the batch
was read. Searching thousands of requests would be exact but cost milliseconds for each stalled batch. No
decision depends on causes, so a wrong one misleads people but no plan.

The memory recommended against thrash has to be right: with that much the thrash ends, with a tenth less it
does not. Seeded mixes of jobs verify this in the simulator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.journal import Cause, Stall, Work
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.lookahead import LEAST_BATCHES, WINDOW_SHARE, batches_wanted, share_of
from superdl.coordinator.core.restoring import share_in_cache, waits_for_the_store
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from superdl.coordinator.core.jobs import Cursor, Job
    from superdl.coordinator.core.queues import BatchPlace
    from superdl.coordinator.core.samples import Ints, SampleSet
    from superdl.coordinator.core.state import State

_NOT_ASKED_FOR = frozenset({SampleState.UNKNOWN, SampleState.CHECKING, SampleState.ABSENT})
_HEADROOM_SHARE = 0.1
_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE_MAX = 0.25
_MARGIN = 1.02
"""Unseen records may be larger than those seen so far."""

_FRESH_MARGIN = 1.06
"""Windows move in whole batches and requests; read samples stay until room is needed."""

_ROUNDS = 64
_WHERE = {RequestKind.RESTORE: "from the store, ", RequestKind.SAVE: "into the store, "}


def history(state: State, name: str, rank: int, epoch: int, position: int) -> list[tuple[float, str]]:
    """Return the remembered history of a batch: times and descriptions, oldest first."""
    cursor = state.cursor(name, rank)
    if cursor is None:
        return []
    job = cursor.job
    place, key = job.absolute(epoch, position), job.samples_of(epoch)
    events = [
        (note.at_s, note.kind.value.format(note.number))
        for note in cursor.notes
        if note.start <= place < note.stop
    ]
    indices = job.plan.batch(epoch, position, rank).indices
    requests = [request for request in state.recent_requests if request.order.samples == key]
    # One call for all of them: thousands of requests are remembered.
    named = np.isin(np.concatenate([indices[:0], *(request.order.indices for request in requests)]), indices)
    ends = np.cumsum([0, *(request.order.indices.size for request in requests)])
    for request, begin, end in zip(requests, ends[:-1], ends[1:], strict=True):
        count = int(np.count_nonzero(named[begin:end]))
        if not count:
            continue
        racing = f", racing request {request.order.hedge_of}" if request.order.hedge_of is not None else ""
        account = f"on account of {request.order.job}{racing}"
        source = _WHERE.get(request.order.kind, "")
        events.append(
            (
                request.made_s,
                f"request {request.order.request_id} for {count} of its samples, {source}{account}",
            )
        )
        if request.ended_s is not None:
            events.append((request.ended_s, f"request {request.order.request_id} ended: {request.ending}"))
    return sorted(events, key=lambda entry: entry[0])


def batch_missed(state: State, place: BatchPlace, samples: SampleSet, indices: Ints, now: float) -> None:
    """Note what caused a batch's first missing samples; later misses do not count."""
    stalls, cursor = state.stalls, state.cursor(place.job, place.rank)
    if place in stalls.waits or not indices.size or cursor is None:
        return
    cause = _cause_at_once(state, cursor, samples, indices, now)
    stalls.begin(place, cause, cursor.job.dataset)


def stall_ended(state: State, place: BatchPlace, job: Job, wait_us: int, now: float) -> None:
    """Close the stall of a batch that has now been read, and count it for its job."""
    first = state.stalls.waits.pop(place, None)
    cause = Cause.UNKNOWN
    if first is not None:
        cause = first.cause or _bottleneck(state, job, first.work, now)
    job.stalls.add(Stall(place.rank, place.epoch, place.position, cause, wait_us))


def _cause_at_once(
    state: State, cursor: Cursor, samples: SampleSet, indices: Ints, now: float
) -> Cause | None:
    """Return the cause if the state of most missing samples decides it, or ``None`` if functions were working
    on them or on others before them.
    """
    counts = np.bincount(samples.state[indices], minlength=len(SampleState))
    commonest = SampleState(int(counts.argmax()))
    if commonest is SampleState.WAITING:
        return Cause.THROTTLE if _is_limited(state, cursor.job, now) else Cause.RETRY
    from_store = waits_for_the_store(state, samples, indices, now)
    if commonest not in _NOT_ASKED_FOR:  # also if a record arrived after the reader looked
        return Cause.STORE if from_store else None
    if cursor.fresh:
        return Cause.COLD_START
    if state.ledger.spending is not Spending.FREELY or state.turn(cursor.job.team) is None:
        return Cause.SPENDING
    if samples.dropped[indices].any() or cursor.key in state.room_search.waiting:
        return Cause.CACHE_MEMORY
    idle = state.eligible_for(cursor.job.dataset).idle(now) > 0
    not_asked_for = Cause.LATE_PLANNING if idle else None
    return Cause.STORE if from_store else not_asked_for


def _bottleneck(state: State, job: Job, before: Work, now: float) -> Cause:
    """Return what functions spent their time on since ``before``."""
    whole = state.stalls.work_for(job.dataset)
    done = whole.since(before)
    if not whole.answers or done.cold_starts * 2 > done.answers:
        return Cause.COLD_START
    if state.thrash.thrashing:
        return Cause.CACHE_MEMORY
    if done.throttled or _is_limited(state, job, now):
        return Cause.THROTTLE
    if done.store_us > done.fetch_us + done.decode_us:
        return Cause.STORE
    seen = done if done.fetch_us + done.decode_us else whole
    return Cause.SOURCE if seen.waits_for_the_source else Cause.DECODE


def _is_limited(state: State, job: Job, now: float) -> bool:
    """Return whether an executor takes fewer concurrent requests than it has functions."""
    executors = state.eligible_for(job.dataset).executors
    return any(executor.concurrency.limit(now) < executor.concurrency.capacity for executor in executors)


def needed_bytes(state: State) -> int:
    """Return the budget in bytes at which no recurring sample would be dropped.

    It covers everything that recurs for any reader at any look-ahead, except what all readers take from the
    store. For random recipes it adds the look-ahead with that budget, and what the first of several jobs has
    read and the last has not.
    """
    kept = _MARGIN * _recurring_bytes(state) + state.foreign_bytes + state.withheld_bytes
    fresh_jobs: dict[bytes, list[Job]] = {}
    for job in state.jobs.values():
        if job.random:
            fresh_jobs.setdefault(job.dataset, []).append(job)
    if not fresh_jobs:
        return int(kept)
    for jobs in fresh_jobs.values():
        read = [job.watermark * job.plan.batch_size * job.plan.replicas for job in jobs]
        kept += (max(read) - min(read)) * _batch_bytes(state, jobs[0]) / jobs[0].plan.batch_size
    batches = {
        cursor.key: batches_wanted(state, cursor, caution=1.0)
        for job in state.jobs.values()
        for cursor in job.cursors.values()
    }
    wanted_bytes = sum(
        number * _batch_bytes(state, state.jobs[name]) for (name, _), number in batches.items()
    )
    budget = kept
    for _ in range(_ROUNDS):  # windows grow with the budget, up to the need
        scarcity = WINDOW_SHARE * budget / max(wanted_bytes, 1.0)
        windows = (
            max(
                _batch_bytes(state, job)
                * sum(
                    max(
                        share_of(batches[job.name, rank], scarcity),
                        cursor.yielded - cursor.watermark + LEAST_BATCHES,
                    )
                    for rank, cursor in job.cursors.items()
                )
                for job in jobs
            )
            for jobs in fresh_jobs.values()
        )
        enough = _MARGIN * (kept + _FRESH_MARGIN * sum(windows))
        if enough <= budget:
            break
        budget = enough
    return int(budget)


def headroom_bytes(limit: int) -> int:
    """Return the part of a server's memory limit to leave for client buffers, in bytes."""
    return int(max(limit * _HEADROOM_SHARE, min(_HEADROOM_BYTES, limit * _HEADROOM_SHARE_MAX)))


def maxmemory_for(budget: int) -> int:
    """Return the smallest server memory, in bytes, that leaves ``budget`` for records."""
    if budget <= _HEADROOM_BYTES * (1 / _HEADROOM_SHARE_MAX - 1):
        return math.ceil(budget / (1 - _HEADROOM_SHARE_MAX))
    return max(budget + _HEADROOM_BYTES, math.ceil(budget / (1 - _HEADROOM_SHARE)))


def _recurring_bytes(state: State) -> float:
    recurring = 0.0
    for key, samples in state.sets.items():
        if key.epoch == EVERY_EPOCH and (jobs := state.jobs_of(key.dataset)):
            absent = samples.state.size - samples.resident_count
            share = max(share_in_cache(job, samples) for job in jobs)
            recurring += share * (samples.resident_bytes + samples.sample_bytes * absent)
    return recurring


def _batch_bytes(state: State, job: Job) -> float:
    """Return the memory that a batch of a job takes, in bytes."""
    epoch, _ = job.epoch_and_position(job.watermark)
    return state.set_of(job.samples_of(epoch)).sample_bytes * job.plan.batch_size


def exceeding_text(source: str, size_bytes: int, budget_bytes: int, *, kept: bool) -> str:
    """Describe a dataset that is larger than the cache; ``kept``: a store holds it."""
    size, budget, maxmemory = map(_mebibytes, (size_bytes, budget_bytes, maxmemory_for(size_bytes)))
    what = "comes from the store, and nothing is lost" if kept else "is decoded again in each epoch"
    remedy = "" if kept else " or a store (SUPER_STORE)"
    return (
        f"{source} takes about {size} decoded, and the cache has {budget} for records: the rest {what}; "
        f"cache_bytes (SUPER_CACHE_BYTES) of {maxmemory}{remedy} would hold all of it"
    )


def thrash_text(state: State) -> str:
    """Describe the thrash: how much memory there is, and how much would end it."""
    needed = needed_bytes(state)
    now, enough, maxmemory = map(_mebibytes, (state.budget_bytes, needed, maxmemory_for(needed)))
    return (
        f"thrash: samples are dropped from the cache ({now} for records) and soon produced again; {enough} "
        f"for records would end it: give the cache server {maxmemory}, by its maxmemory and by "
        "cache_bytes where that is set"
    )


def _mebibytes(size_bytes: float) -> str:
    return f"{math.ceil(size_bytes / 2**20):,} MiB"
