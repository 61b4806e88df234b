"""What jobs tell: opened, closed, asked for batches, read them, missed samples.

Reports come from the network and may be late, lost, or older than a coordinator that was restarted: one that
speaks of no batch of the plan is no news.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import stalls
from superdl.coordinator.core.actions import Drop
from superdl.coordinator.core.auditing import audit
from superdl.coordinator.core.demands import BatchPlace
from superdl.coordinator.core.jobs import Job, Lane
from superdl.coordinator.core.journal import Kind, LaneNote
from superdl.coordinator.core.leases import renew
from superdl.coordinator.core.pace import Pace
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from superdl.coordinator.core.events import BatchesAsked, BatchRead, DatasetAdded, JobClosed, JobOpened
    from superdl.coordinator.core.state import State

__all__ = ["batch_read", "batches_asked", "dataset_added", "job_closed", "job_opened"]

_UNREPORTED_BATCHES = 256
"""So many batches given out may be unread at once; those before them were read, though no report says so."""

_DOUBTFUL = np.zeros(len(SampleState), dtype=np.bool_)
_DOUBTFUL[[SampleState.UNKNOWN, SampleState.RESIDENT, SampleState.FAILED]] = True

_EPOCHS_MAX = 2**40


def dataset_added(state: State, event: DatasetAdded, now: float) -> None:
    """Remember a dataset; again is no change."""
    state.datasets.setdefault(event.dataset, event)
    state.unused_datasets.discard(event.dataset)


def job_opened(state: State, event: JobOpened, now: float) -> None:
    """Open a job or add a rank to it; looking ahead begins at once, where the event says reading will."""
    job = state.jobs.get(event.job)
    if job is None:
        random = state.datasets[event.dataset].random
        job = state.jobs[event.job] = Job(event.job, event.dataset, random, event.plan)
    lane = job.lanes.get(event.rank)
    start = job.absolute(event.epoch, event.position)
    if lane is not None:
        lane.reach = max(lane.reach, start)
    if lane is not None and start < lane.low:  # another process, which begins anew
        lane.seek(start, now)
    if lane is None:
        lane = Lane(event.rank, start, start, start, start, last_seen_s=now, last_read_s=now, pace=Pace(now))
        lane.reach = start
        job.lanes[event.rank] = lane
        job.lapsed_changed()
        state.lanes += 1
        state.lanes_of[job.dataset] += 1
        state.ledger.joined(job.name)
    renew(state, job, lane, now)
    state.wake(job, lane)


def job_closed(state: State, event: JobClosed, now: float) -> None:
    """Forget a rank, and the job with its last one; what it has in the cache stays until memory is short."""
    found = state.lane(event.job, event.rank)
    if found is None:
        return
    job, lane = found
    del job.lanes[lane.rank]
    state.want(lane, 0)
    state.lanes -= 1
    state.lanes_of[job.dataset] -= 1
    state.rest(job, lane.rank)
    state.crowding.forget()
    if job.lanes:
        job.lapsed_changed()
    else:
        del state.jobs[job.name]
        state.ledger.left(job.name)
        state.thrash.forget()
        for key in [
            key for key, samples in state.sets.items() if samples.idle and key.dataset == job.dataset
        ]:
            if key.epoch != EVERY_EPOCH and not state.is_at(key):
                del state.sets[key]


def batches_asked(state: State, event: BatchesAsked, now: float) -> None:
    """A page of the plan went out. Asking again is no news; asking elsewhere moves the lane there."""
    found = state.lane(event.job, event.rank)
    if found is None:
        return
    job, lane = found
    renew(state, job, lane, now)
    start, stop = job.absolute(event.epoch, event.start), job.absolute(event.epoch, event.stop)
    yielded = job.absolute(event.epoch, event.yielded)
    if start > lane.asked or _goes_back(lane, yielded):
        lane.seek(yielded, now)
    if stop > lane.asked:
        lane.notes.append(LaneNote(now, Kind.PLANNED, max(start, lane.asked), stop))
    lane.asked = max(lane.asked, stop)
    lane.reach = max(lane.reach, stop)
    lane.yielded = max(lane.yielded, yielded)
    if event.yielded > 0:  # an epoch that goes on has ended the one before it
        lane.skip_to(job.absolute(event.epoch, 0))
    lane.skip_to(lane.yielded - _UNREPORTED_BATCHES)
    state.wake(job, lane)


def _goes_back(lane: Lane, yielded: int) -> bool:
    """Whether a sampler began anew at an earlier place: it has given out less than it had, and less than was
    read. A call that a report overtook says no less than the one before.
    """
    return yielded < lane.low and yielded < lane.yielded


def batch_read(state: State, event: BatchRead, now: float) -> None:
    """A read report came: the lane moves on, misses are seen to at once."""
    found = state.lane(event.job, event.rank)
    if found is None:
        return
    job, lane = found
    if not (0 <= event.position < job.plan.batches_per_epoch and 0 <= event.epoch < _EPOCHS_MAX):
        return
    position = job.absolute(event.epoch, event.position)
    # Nobody can have read what nobody was given; an earlier coordinator may have given out a little more.
    if position >= lane.reach + _UNREPORTED_BATCHES:
        return
    renew(state, job, lane, now)
    place = BatchPlace(job.name, event.rank, event.epoch, event.position)
    if event.done:
        counters = job.counters
        counters.batches_read += 1
        counters.cache_hits += event.hits
        counters.cache_misses += event.samples - event.hits
        counters.read_us += event.read_us
        counters.wait_us += event.wait_us
        counters.read_bytes += event.size_bytes
        if event.hits < event.samples:
            counters.stalls += 1
            stalls.read(state, place, job, event.wait_us, now)
        state.ledger.used(job.dataset, job.name, event.samples, event.size_bytes, now)
        state.awaited.discard(place)
        if position < lane.asked:
            lane.notes.append(LaneNote(now, Kind.READ, position, position + 1, event.hits))
            lane.read(position, now, stalled=event.hits < event.samples)
        state.wake(job, lane)
    elif event.missed.size:
        lane.notes.append(LaneNote(now, Kind.MISSED, position, position + 1, event.missed.size))
        _missed(state, job, place, event, now)


def _missed(state: State, job: Job, place: BatchPlace, event: BatchRead, now: float) -> None:
    batch = job.plan.batch(event.epoch, event.position, event.rank).indices
    missed = event.missed[(event.missed >= 0) & (event.missed < batch.size)]
    corrupt = event.corrupt[(event.corrupt >= 0) & (event.corrupt < batch.size)]
    key = job.samples_of(event.epoch)
    if not state.admits(key, waited_for=True):  # the reader says so again
        return
    samples = state.set_of(key)
    spoilt = state.unique(batch[corrupt])
    dropped = samples.among(spoilt, SampleState.ABSENT)
    if dropped.size:  # so that a tombstone, which replaces nothing, may take its place
        state.actions.append(Drop(key, dropped))
    wanted = state.unique(batch[missed])
    stalls.missed(state, place, samples, wanted, now)
    state.awaited.report(place, key, wanted, now)
    state.demands.add_urgent(now, key, samples.among(wanted, SampleState.ABSENT), place)
    # The report may be older than the sample, or forged, so the cache is asked before a record is believed
    # spoilt or lost.
    audit(state, key, spoilt[_DOUBTFUL[samples.state[spoilt]]], place, whole=True)
    audit(state, key, wanted[_DOUBTFUL[samples.state[wanted]]], place)
