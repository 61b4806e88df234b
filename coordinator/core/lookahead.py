"""How far a lane looks ahead, and what it finds there that must be asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.coordinator.core.auditing import audit
from superdl.coordinator.core.jobs import Ahead, LaneSpan
from superdl.coordinator.core.journal import Kind, LaneNote
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from superdl.coordinator.core.jobs import Job, Lane
    from superdl.coordinator.core.state import State

__all__ = ["LEAST_BATCHES", "WINDOW_SHARE", "batches_wanted", "find_absent", "share_of", "window_end"]

WINDOW_SHARE = 0.5
"""Share of the budget that all look-ahead together may fill; the rest keeps what will be used again."""

_SAFETY = 2.0
_SPARE_BATCHES = 8
_SPAN_BATCHES = 8
_STRIDE_SHARE = 4
LEAST_BATCHES = 2
"""Beyond what the sampler has given out, so much is looked ahead at the least."""


def window_end(state: State, job: Job, lane: Lane) -> int:
    """Where looking ahead ends: as many batches ahead as the job will read while a slow request is answered
    (Little's law), bounded by settings and by this lane's share of the budget.

    It is beyond what the sampler has given out, for which readers wait, however long the reports of reading
    stay away.
    """
    epoch, _ = job.epoch_and_position(lane.frontier)
    batch_bytes = state.set_of(job.samples_of(epoch)).sample_bytes * job.plan.batch_size
    wanted = batches_wanted(state, job, lane, caution=lane.caution)
    state.want(lane, int(wanted * batch_bytes))
    scarcity = WINDOW_SHARE * state.budget_bytes / state.wanted_bytes
    return max(lane.low + share_of(wanted, scarcity), lane.yielded + LEAST_BATCHES)


def share_of(batches: int, scarcity: float) -> int:
    """How many of the batches that a lane would look ahead there is room for."""
    return max(LEAST_BATCHES, batches if scarcity >= 1 else int(batches * scarcity))


def _stride(lane: Lane, end: int) -> int:
    """Looking at several batches at once is much cheaper: a few are left until there are more."""
    return max(1, min(_SPAN_BATCHES, (end - lane.low) // _STRIDE_SHARE))


def batches_wanted(state: State, job: Job, lane: Lane, *, caution: float) -> int:
    """Batches that the job will read in the time of a slow request, with some to spare, but no more than are
    allowed; that many without measurements.
    """
    samples = min(state.settings.request_samples, job.plan.batch_size)
    slow_s = state.roster_of(job.dataset).slow_s(samples)
    if slow_s is None:
        return state.settings.lookahead_batches
    needed = _SPARE_BATCHES + math.ceil(caution * _SAFETY * slow_s / lane.interval_s)
    return min(state.settings.lookahead_batches, needed)


def find_absent(state: State, job: Job, lane: Lane, now: float) -> Ahead | None:
    """The next absent samples in the lane's window, removed from the lane; ``None`` if all is seen to.

    The frontier moves over what is resident or on its way. What nobody has asked the cache about is
    audited first, and returns to the lane if it is absent.
    """
    while True:
        epoch = job.epoch_and_position(lane.frontier)[0]
        is_read = epoch == job.epoch_and_position(lane.low)[0]
        if not state.admits(job.samples_of(epoch), waited_for=is_read):
            state.crowding.lanes[job.name, lane.rank] = None
            return None
        while lane.pending:
            ahead = lane.pending.popleft()
            if ahead.stop > lane.low:  # else it was read without us
                absent = state.set_of(ahead.samples).among(ahead.indices, SampleState.ABSENT)
                if absent.size:
                    return ahead._replace(indices=absent)
        end = window_end(state, job, lane)
        room = end - lane.frontier
        given_out = lane.frontier < lane.yielded + LEAST_BATCHES  # readers may wait for it
        if room <= 0 or (room < _stride(lane, end) and not given_out):
            return None
        epoch, position = job.epoch_and_position(lane.frontier)
        # The first batches one by one, since the deadlines of a span are that of its first batch.
        batches = 1 if lane.frontier - lane.low < LEAST_BATCHES else _SPAN_BATCHES
        stop = min(position + min(batches, end - lane.frontier), job.plan.batches_per_epoch)
        span = job.plan.span(epoch, position, stop, lane.rank)
        key = job.samples_of(epoch)
        samples = state.set_of(key)
        indices = state.unique(span.indices) if span.padding.any() else span.indices
        states = samples.state[indices]
        if lane.frontier >= lane.counted:
            job.counters.samples_reused += int((states == SampleState.RESIDENT).sum())
            lane.counted = lane.frontier + stop - position
            if key.epoch == EVERY_EPOCH:
                state.thrash.needed(key.dataset, indices.size, now)
        start, lane.frontier = lane.frontier, lane.frontier + stop - position
        absent = indices[states == SampleState.ABSENT]
        lane.pending.append(Ahead(start, lane.frontier, key, absent))
        lane.notes.append(LaneNote(now, Kind.LOOKED, start, lane.frontier, absent.size))
        asker = LaneSpan(job.name, lane.rank, start, lane.frontier)
        if (states == SampleState.CHECKING).any():  # what is found absent is to be told to this lane too
            state.passers.setdefault(key, {})[job.name, lane.rank] = None
        audit(state, key, samples.to_check(indices), asker)
