"""Neighbours: samples beside a requested one in the same object, which the same GET can fetch.

If samples are members of shards, a *run* is a sequence of them within some MiB of one object. With a global
shuffle they are needed at random times, each with a GET of its own. So a request for part of a run also takes
the run's other absent samples, and a cold epoch takes about one GET per run.

Neighbours are needed late, and must not delay anything that is needed sooner:

* They must stay until they are needed: the cache has room for all that recurs, or the store takes what is
  decoded. For a random recipe there must also be room for the whole epoch.
* A rank's first look-ahead takes none, and neither do samples that a reader misses, nor, as always, retries.
* The request must be in time with all its neighbours. If readers wait again and again this is impossible;
  then neighbours come once functions need less than half a minute for all that is left. Otherwise the readers
  of a large dataset would wait for most of it, as one batch has samples of very many runs.
* The more expensive of several executors takes none, and no more is in flight than look-ahead may fill.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core.diagnosis import needed_bytes
from superdl.coordinator.core.lookahead import WINDOW_SHARE
from superdl.coordinator.core.room import next_use_s, room_for
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.jobs import Cursor
    from superdl.coordinator.core.samples import Bools, Ints, SampleSet, SetKey
    from superdl.coordinator.core.state import State

RUN_BYTES = 16 * 2**20
"""Maximum number of an object's bytes fetched with one GET."""

_SLACK_SHARE = 0.5
"""Share of the time until the first sample is needed that a request may take."""

_SOON_DONE_S = 30.0
"""A quarter of the default time that a reader waits for a batch."""


def runs_of(
    objects: NDArray[Any],
    offsets: NDArray[Any],
    lengths: NDArray[Any],
    run_bytes: int = RUN_BYTES,
    *,
    whole: Bools | None = None,
) -> Ints | None:
    """Return where runs begin in a catalog, ascending from 0; ``None`` if each is one sample.

    A run begins in one of the equal windows that an object is cut into, and ends with less than ``run_bytes``
    read, unless a sample has more than half of that. A row group, which is read whole, is a run.

    Args:
        objects: integers ``[n]``, the object of each sample; equal ones are adjacent.
        offsets: integers ``[n]``, where each sample begins in it, ascending in each object.
        lengths: integers ``[n]``, bytes of each sample.
        run_bytes: maximum number of bytes of one GET.
        whole: bools ``[n]``, samples that are rows: their offsets are the numbers of row groups.
    """
    if not objects.size:
        return None
    spans = np.ones(objects.size, dtype=np.bool_) if whole is None else ~whole
    # A window and a sample that begins at its end are at most run_bytes together.
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
    wanted: Ints,
    *,
    slack_s: float,
    later_than_s: float,
    now: float,
) -> Ints:
    """Return the first samples with the absent rest of their runs, or ``wanted`` unchanged.

    Whatever is not returned is left for later.

    Args:
        state: the core's state.
        executor: the executor that decodes.
        cursor: the rank that looks ahead.
        key: the sample set.
        wanted: absent samples, most urgent first; as many as a request takes, and there is room for them.
        slack_s: the time until the first is needed, infinite if it cannot be in time.
        later_than_s: samples needed later than this may be dropped to make room.
        now: the time.
    """
    runs = state.datasets[key.dataset].runs
    if runs is None or cursor.fresh or cursor.job.fill is not None or not executor.latency.answers:
        return wanted
    samples = state.set_of(key)
    if slack_s == math.inf and _time_left_s(state, executor, samples) > _SOON_DONE_S:
        return wanted
    taken = _whole_runs(state, samples, runs, wanted)
    added_bytes = math.ceil(samples.sample_bytes * taken.size)
    if (
        executor.latency.expected_s(taken.size) > _SLACK_SHARE * slack_s
        or state.reserved_bytes + added_bytes > WINDOW_SHARE * state.budget_bytes
        or state.eligible_for(key.dataset).has_cheaper(executor)
        or not _keeps(state, executor, samples)
        or room_for(state, key, taken.size, later_than_s=later_than_s, now=now) < taken.size
    ):
        return wanted
    return taken


def _whole_runs(state: State, samples: SampleSet, runs: Ints, wanted: Ints) -> Ints:
    """Return whole runs of the first requested samples, until they are at least as many samples.

    Each run, in catalog order, has its requested samples and the other absent ones that a job will need and
    that have never failed.
    """
    most = state.most_samples(samples.key)
    taken, remaining = wanted[:0], wanted
    while remaining.size and taken.size < wanted.size:
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
    """Return the bounds of a sample's run, or of its equal part if the run exceeds ``most``."""
    place = int(np.searchsorted(runs, index, side="right"))
    start, stop = int(runs[place - 1]), int(runs[place]) if place < runs.size else size
    length = math.ceil((stop - start) / math.ceil((stop - start) / most))
    start += (index - start) // length * length
    return start, min(stop, start + length)


def _time_left_s(state: State, executor: ExecutorState, samples: SampleSet) -> float:
    """Return the seconds that functions need for all that is neither cached nor stored."""
    missing = samples.state.size - max(samples.resident_count, samples.stored_count)
    functions = sum(
        member.concurrency.capacity for member in state.eligible_for(samples.key.dataset).executors
    )
    return missing * executor.latency.sample_s / max(functions, 1)


def _keeps(state: State, executor: ExecutorState, samples: SampleSet) -> bool:
    """Return whether samples that are decoded early will not have to be decoded again."""
    store = executor.store
    if samples.key.epoch == EVERY_EPOCH and store is not None and store.keeps and not samples.has_lost_packs:
        return True
    epoch_bytes = 0.0 if samples.key.epoch == EVERY_EPOCH else samples.sample_bytes * samples.state.size
    return needed_bytes(state) + epoch_bytes <= state.budget_bytes
