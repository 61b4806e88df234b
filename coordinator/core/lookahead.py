"""Look-ahead: a rank's window, the samples to request for it, and their neighbours.

In a shard, a *run* is a sequence of samples within a few MiB. A request for part of a run also
includes the rest of it, the *neighbours*, so a cold epoch takes about one GET per run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core.cache import audit, room_for
from superdl.coordinator.core.jobs import Pending, next_use_s
from superdl.coordinator.core.queues import CursorSpan
from superdl.coordinator.core.restoring import needed_in_cache, share_in_cache
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState
from superdl.coordinator.core.state import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Cursor, Job
    from superdl.coordinator.core.samples import Bools, Ints, SampleSet, SetKey
    from superdl.coordinator.core.state import State

WINDOW_SHARE = 0.5  # of the budget for all look-ahead windows; the rest keeps recurring samples
_SAFETY = 2.0  # factor on the batches read during a slow request
_SPARE_BATCHES = 8
_SPAN_BATCHES = 8  # batches to look at together
_STRIDE_SHARE = 4
_FILL_AUDITS = 8  # maximum pending audits of a filling job
LEAST_BATCHES = 2  # minimum look-ahead beyond the batches that the sampler has yielded


def _window_end(state: State, cursor: Cursor) -> int:
    job = cursor.job
    if job.fill is not None:  # no readers: one epoch, limited by pending audits
        state.set_window_bytes(cursor, 0)
        audits = sum(audit.requester.job == job.name for audit in state.audits.values())
        return cursor.lookahead if audits >= _FILL_AUDITS else job.plan.batches_per_epoch
    epoch, _ = job.epoch_and_position(cursor.lookahead)
    samples = state.set_of(job.samples_of(epoch))
    batch_bytes = samples.sample_bytes * job.plan.batch_size
    batches = window_batches(state, cursor, caution=cursor.caution)
    state.set_window_bytes(cursor, int(batches * batch_bytes * share_in_cache(job, samples)))
    scarcity = WINDOW_SHARE * state.budget_bytes / max(state.window_bytes, 1)
    # Readers wait for batches that the sampler has yielded, even if their reports are late.
    end = max(cursor.watermark + share_of(batches, scarcity), cursor.yielded + LEAST_BATCHES)
    return min(end, job.end)


def share_of(batches: int, scarcity: float) -> int:
    """Return how many of a rank's ``batches`` fit into its share of the budget."""
    return max(LEAST_BATCHES, batches if scarcity >= 1 else int(batches * scarcity))


def window_batches(state: State, cursor: Cursor, *, caution: float) -> int:
    """Return the look-ahead in batches: what is read during a slow request (Little's law), plus spares."""
    job = cursor.job
    samples = min(state.settings.request_samples, job.plan.batch_size)
    slow_s = state.eligible_for(job.dataset).slow_s(samples)
    if slow_s is None:
        return state.settings.lookahead_batches
    needed = _SPARE_BATCHES + math.ceil(caution * _SAFETY * slow_s / cursor.pace.interval_s)
    return min(state.settings.lookahead_batches, needed)


def find_absent(state: State, cursor: Cursor, now: float) -> Pending | None:
    """Return a rank's next absent samples, or ``None`` if its window has none."""
    job = cursor.job
    while True:
        epoch = job.epoch_and_position(cursor.lookahead)[0]
        is_read = epoch == job.epoch_and_position(cursor.watermark)[0]
        if not state.admits(job.samples_of(epoch), waited_for=is_read):
            state.room_search.waiting[cursor.key] = None
            return None
        while cursor.pending:
            ahead = cursor.pending[0]
            if ahead.stop > cursor.watermark:  # otherwise its batches were read meanwhile
                samples = state.set_of(ahead.samples)
                absent = needed_in_cache(job, samples, samples.among(ahead.indices, SampleState.ABSENT))
                if absent.size:
                    cursor.pending[0] = ahead._replace(indices=absent)
                    return cursor.pending[0]
            cursor.pending.popleft()
        end = _window_end(state, cursor)
        room = end - cursor.lookahead
        yielded = cursor.lookahead < cursor.yielded + LEAST_BATCHES  # readers may be waiting
        stride = max(1, min(_SPAN_BATCHES, (end - cursor.watermark) // _STRIDE_SHARE))
        if room <= 0 or (room < stride and not yielded and job.fill is None):
            return None
        epoch, position = job.epoch_and_position(cursor.lookahead)
        # Look at the first batches one at a time, because a span has the deadline of its first batch.
        batches = 1 if cursor.lookahead - cursor.watermark < LEAST_BATCHES else _SPAN_BATCHES
        stop = min(position + min(batches, end - cursor.lookahead), job.plan.batches_per_epoch)
        span = job.plan.span(epoch, position, stop, cursor.rank)
        key = job.samples_of(epoch)
        samples = state.set_of(key)
        is_distinct = job.plan.draws is None and not span.padding.any()
        indices = span.indices if is_distinct else unique(span.indices)
        states = samples.state[indices]
        if cursor.lookahead >= cursor.counted:
            job.counters.samples_reused += int((states == SampleState.RESIDENT).sum())
            cursor.counted = cursor.lookahead + stop - position
            if key.epoch == EVERY_EPOCH:
                state.thrash.add(key.dataset, now, needed=indices.size)
        # Samples cached by an earlier coordinator may not have been saved.
        state.add_resident(key, indices[states == SampleState.RESIDENT], now)
        start, cursor.lookahead = cursor.lookahead, cursor.lookahead + stop - position
        absent = needed_in_cache(job, samples, indices[states == SampleState.ABSENT])
        cursor.pending.append(Pending(start, cursor.lookahead, key, absent))
        text = f"looked ahead to it and its neighbours: {absent.size} samples were absent"
        cursor.note(now, start, cursor.lookahead, text)
        requester = CursorSpan(job.name, cursor.rank, start, cursor.lookahead)
        audit(state, key, samples.to_check(needed_in_cache(job, samples, indices)), requester)


_HEADROOM_SHARE = 0.1
_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE_MAX = 0.25
_MARGIN = 1.02  # future records may be larger
_FRESH_MARGIN = 1.06  # windows move by whole batches, and read samples stay until room is needed


def needed_bytes(state: State) -> int:
    """Return the smallest budget, in bytes, that avoids dropping recurring samples."""
    # All recurring samples, except those that all readers read from the store. For random recipes, add the
    # look-ahead, and samples that the first of several jobs has read and the last has not. In the simulator,
    # thrashing ends with this budget, but not with 10% less.
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
    batches = {cursor.key: window_batches(state, cursor, caution=1.0) for cursor in state.cursors}
    window_bytes = sum(
        number * _batch_bytes(state, state.jobs[name]) for (name, _), number in batches.items()
    )
    budget, enough = -1.0, kept
    while enough > budget:  # windows grow with the budget up to their full size
        budget = enough
        scarcity = WINDOW_SHARE * budget / max(window_bytes, 1.0)
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
    return int(budget)


def _recurring_bytes(state: State) -> float:
    recurring = 0.0
    for key, samples in state.sets.items():
        if key.epoch == EVERY_EPOCH and (jobs := state.jobs_of(key.dataset)):
            absent = samples.state.size - samples.resident_count
            share = max(share_in_cache(job, samples) for job in jobs)
            recurring += share * (samples.resident_bytes + samples.sample_bytes * absent)
    return recurring


def _batch_bytes(state: State, job: Job) -> float:
    epoch, _ = job.epoch_and_position(job.watermark)
    return state.set_of(job.samples_of(epoch)).sample_bytes * job.plan.batch_size


def headroom_bytes(limit: int) -> int:
    """Return how many bytes of a server's memory are reserved for client buffers."""
    return int(max(limit * _HEADROOM_SHARE, min(_HEADROOM_BYTES, limit * _HEADROOM_SHARE_MAX)))


def maxmemory_for(budget: int) -> int:
    """Return the smallest server memory, in bytes, that leaves ``budget`` bytes for records."""
    if budget <= _HEADROOM_BYTES * (1 / _HEADROOM_SHARE_MAX - 1):
        return math.ceil(budget / (1 - _HEADROOM_SHARE_MAX))
    return max(budget + _HEADROOM_BYTES, math.ceil(budget / (1 - _HEADROOM_SHARE)))


def exceeding_text(source: str, size_bytes: int, budget_bytes: int, *, kept: bool) -> str:
    """Describe a dataset that does not fit into the cache. ``kept`` means that it is kept in a store."""
    size, budget, maxmemory = map(_mebibytes, (size_bytes, budget_bytes, maxmemory_for(size_bytes)))
    what = "is read from the store, so nothing is lost" if kept else "is decoded again in every epoch"
    remedy = "" if kept else ", or configure a store (SUPER_STORE)"
    return (
        f"{source} takes about {size} when decoded, but the cache has {budget} for records. The rest {what}. "
        f"To keep all of it, set cache_bytes (SUPER_CACHE_BYTES) to {maxmemory}{remedy}"
    )


def thrash_text(state: State) -> str:
    """Describe how much memory a thrashing cache has and needs."""
    needed = needed_bytes(state)
    now, enough, maxmemory = map(_mebibytes, (state.budget_bytes, needed, maxmemory_for(needed)))
    return (
        f"the cache is thrashing: it has {now} for records, so samples are dropped and soon produced again. "
        f"It needs {enough}: set the cache server's maxmemory, and cache_bytes if it is set, to {maxmemory}"
    )


def _mebibytes(size_bytes: float) -> str:
    return f"{math.ceil(size_bytes / 2**20):,} MiB"


RUN_BYTES = 16 * 2**20  # maximum number of bytes of an object to fetch with one GET
_SLACK_SHARE = 0.5  # maximum duration of a request, as a share of the time until its first sample is needed
_SOON_DONE_S = 30.0  # a quarter of the default read timeout


def runs_of(
    objects: NDArray[Any],
    offsets: NDArray[Any],
    lengths: NDArray[Any],
    run_bytes: int = RUN_BYTES,
    *,
    whole: Bools | None = None,
) -> Ints | None:
    """Return the index of each run's first sample, ascending from 0, or ``None`` if every run is one sample.

    Args:
        objects: int ``[n]``, the object of each sample. Samples of the same object are adjacent.
        offsets: int ``[n]``, where each sample starts in its object, ascending within an object.
        lengths: int ``[n]``, sample sizes in bytes.
        run_bytes: maximum size of a GET in bytes.
        whole: bool ``[n]``, a mask of samples that are rows. Their offsets are row group numbers.
    """
    if not objects.size:
        return None
    # A row group is a run. Other runs are the samples that begin in the same fixed window of an object.
    spans = np.ones(objects.size, dtype=np.bool_) if whole is None else ~whole
    # A window plus a sample that begins at its end must not exceed run_bytes.
    window_bytes = max(run_bytes - int(lengths.max(where=spans, initial=0)), run_bytes // 2, 1)
    windows = offsets.astype(np.int64) // np.where(spans, window_bytes, 1)
    begins = np.ones(objects.size, dtype=np.bool_)
    begins[1:] = (objects[1:] != objects[:-1]) | (windows[1:] != windows[:-1])
    return None if begins.all() else np.flatnonzero(begins)


def with_their_neighbours(
    state: State,
    executor: ExecutorState,
    cursor: Cursor,
    key: SetKey,
    requested: Ints,
    *,
    slack_s: float,
    later_than_s: float,
    now: float,
) -> Ints:
    """Return the most urgent samples with their absent neighbours, or ``requested`` unchanged.

    ``requested`` contains absent samples that fit into the cache, most urgent first. ``slack_s`` is the
    time until the first is needed, or infinity if it will be late in any case. Samples needed after
    ``later_than_s`` may be dropped to make room.
    """
    runs = state.datasets[key.dataset].runs
    # Neighbours must not delay samples that are needed sooner, so a rank's first look-ahead requests none.
    if runs is None or cursor.fresh or cursor.job.fill is not None or not executor.latency.results:
        return requested
    samples = state.set_of(key)
    # If readers always wait, request neighbours only when functions will soon be done. A batch has samples
    # from many runs, so readers would otherwise wait for most of the dataset.
    if slack_s == math.inf and _time_left_s(state, executor, samples) > _SOON_DONE_S:
        return requested
    completed = _whole_runs(state, samples, runs, requested)
    added_bytes = math.ceil(samples.sample_bytes * completed.size)
    # Neighbours must arrive in time and stay until they are needed, without exceeding the look-ahead's share
    # of the cache or using a more expensive executor.
    if (
        executor.latency.expected_s(completed.size) > _SLACK_SHARE * slack_s
        or state.reserved_bytes + added_bytes > WINDOW_SHARE * state.budget_bytes
        or state.eligible_for(key.dataset).has_cheaper(executor)
        or not _keeps(state, executor, samples)
        or room_for(state, key, completed.size, later_than_s=later_than_s, now=now) < completed.size
    ):
        return requested
    return completed


def _whole_runs(state: State, samples: SampleSet, runs: Ints, requested: Ints) -> Ints:
    """Return complete runs of the first requested samples, until there are as many samples as requested."""
    # Include absent samples that a job will need and that have never failed.
    most = state.most_samples(samples.key)
    taken, remaining = requested[:0], requested
    while remaining.size and taken.size < requested.size:
        start, stop = _piece(runs, samples.state.size, int(remaining[0]), most)
        near = np.arange(start, stop)
        others = near[
            (samples.state[near] == SampleState.ABSENT)
            & (samples.attempts[near] == 0)
            & ~samples.stored(near)
            & np.isfinite(next_use_s(samples.key, near, state.jobs.values()))
        ]
        is_near = (remaining >= start) & (remaining < stop)
        run = np.union1d(remaining[is_near], others)
        if taken.size + run.size <= most:
            taken = np.concatenate((taken, run))
        remaining = remaining[~is_near]
    return taken


def _piece(runs: Ints, size: int, index: int, most: int) -> tuple[int, int]:
    """Return the bounds of a sample's run, or of the part that contains it if the run exceeds ``most``."""
    after = int(np.searchsorted(runs, index, side="right"))
    start, stop = int(runs[after - 1]), int(runs[after]) if after < runs.size else size
    length = math.ceil((stop - start) / math.ceil((stop - start) / most))
    start += (index - start) // length * length
    return start, min(stop, start + length)


def _time_left_s(state: State, executor: ExecutorState, samples: SampleSet) -> float:
    missing = samples.state.size - max(samples.resident_count, samples.stored_count)
    functions = sum(
        member.concurrency.capacity for member in state.eligible_for(samples.key.dataset).executors
    )
    return missing * executor.latency.sample_s / max(functions, 1)


def _keeps(state: State, executor: ExecutorState, samples: SampleSet) -> bool:
    """Return whether neighbours will still be available when they are needed."""
    store = executor.store
    if samples.key.epoch == EVERY_EPOCH and store is not None and store.keeps:
        return True
    # A random recipe also needs room for the whole epoch.
    epoch_bytes = 0.0 if samples.key.epoch == EVERY_EPOCH else samples.sample_bytes * samples.state.size
    return needed_bytes(state) + epoch_bytes <= state.budget_bytes
