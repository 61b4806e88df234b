"""Neighbours: what lies beside a wanted sample in one object, and comes along with the same GET.

Where samples are members of shards, a *run* is those that follow one another in some MiB of one object. With
a global shuffle they are wanted at random times, each with a GET of its own. So a request for some of a run
takes along what is absent of it, and a cold epoch takes about one GET for each run.

What comes along is wanted late, and must harm nothing that is wanted sooner:

* It keeps until it is wanted: the cache has room for all that recurs, or the store takes what is decoded. Of
  a random recipe there must be room for the whole epoch beside that.
* The first look-ahead of a rank goes without, and so does what a reader misses, as always a retry.
* It must be in time with all that comes along. Where readers wait again and again this cannot be; there
  neighbours come once all that is left takes functions less than half a minute. Else the readers of a large
  dataset would wait for most of it, as one batch has samples of very many runs.
* The dearer of several executors takes nothing along, and no more is on its way than looking ahead may fill.
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
"""Of an object, what is fetched with one GET at most."""

_SLACK_SHARE = 0.5
"""Of the time until the first is wanted, what a request may take."""

_SOON_DONE_S = 30.0
"""A quarter of what a reader waits for a batch, unless it is told otherwise."""


def runs_of(
    objects: NDArray[Any],
    offsets: NDArray[Any],
    lengths: NDArray[Any],
    run_bytes: int = RUN_BYTES,
    *,
    whole: Bools | None = None,
) -> Ints | None:
    """The places in a catalog where runs begin, ascending, the first of them 0; ``None`` if no run has two.

    A run begins in one of the equal windows that an object is cut into, and ends with less than ``run_bytes``
    read, unless a sample has more than half of that. What is read whole, a row group, is a run.

    Args:
        objects: integers ``[n]``, which object each sample lies in; those of one object stand together.
        offsets: integers ``[n]``, where in it each sample begins, ascending in each object.
        lengths: integers ``[n]``, bytes of each sample.
        run_bytes: what one GET brings at most.
        whole: bools ``[n]``, which samples are rows: their offsets are the numbers of row groups.
    """
    if not objects.size:
        return None
    spans = np.ones(objects.size, dtype=np.bool_) if whole is None else ~whole
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
    """Of what is to be decoded, the first with what is absent of their runs, or ``wanted`` as it is.

    All but what is returned is left for later.

    Args:
        state: all that is known.
        executor: who is to decode.
        cursor: the rank that looks ahead.
        key: the sample set.
        wanted: absent samples, the first wanted first; as many as a request takes, for which there is room.
        slack_s: the time until the first is wanted, infinite if it cannot be in time.
        later_than_s: what is needed later than that may be dropped for it.
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
    """The runs of the first that are wanted, until they are as many samples as these: of each run, in the
    order of the catalog, what is wanted and what else is absent that a job will want and nobody suspects.
    """
    most = state.most_samples(samples.key)
    taken, left = wanted[:0], wanted
    while left.size and taken.size < wanted.size:
        start, stop = _piece(runs, samples.state.size, int(left[0]), most)
        near = np.arange(start, stop)
        others = near[
            (samples.state[near] == SampleState.ABSENT)
            & (samples.attempts[near] == 0)
            & ~samples.stored(near)
            & np.isfinite(next_use_s(samples.key, near, state.jobs.values()))
        ]
        is_near = (left >= start) & (left < stop)
        run = np.union1d(left[is_near], others)
        if taken.size + run.size <= most:
            taken = np.concatenate((taken, run))
        left = left[~is_near]
    return taken


def _piece(runs: Ints, size: int, index: int, most: int) -> tuple[int, int]:
    """From where to where the run of a sample goes; of a run of more than ``most``, the equal part."""
    place = int(np.searchsorted(runs, index, side="right"))
    start, stop = int(runs[place - 1]), int(runs[place]) if place < runs.size else size
    length = math.ceil((stop - start) / math.ceil((stop - start) / most))
    start += (index - start) // length * length
    return start, min(stop, start + length)


def _time_left_s(state: State, executor: ExecutorState, samples: SampleSet) -> float:
    """In what time functions could produce all that is neither in the cache nor in the store."""
    missing = samples.state.size - max(samples.resident_count, samples.stored_count)
    functions = sum(one.concurrency.capacity for one in state.eligible_for(samples.key.dataset).executors)
    return missing * executor.latency.sample_s / max(functions, 1)


def _keeps(state: State, executor: ExecutorState, samples: SampleSet) -> bool:
    """Whether what is decoded early need not be decoded again."""
    store = executor.store
    if samples.key.epoch == EVERY_EPOCH and store is not None and store.keeps and not samples.has_lost_packs:
        return True
    epoch_bytes = 0.0 if samples.key.epoch == EVERY_EPOCH else samples.sample_bytes * samples.state.size
    return needed_bytes(state) + epoch_bytes <= state.budget_bytes
