"""How much memory for records the jobs that are there need, so that nothing that recurs is ever dropped.

It is told where they have less (see :mod:`superdl.coordinator.core.thrash`), so it has to be true: with that
much the thrash ends, and with a tenth less it does not. Seeded mixes of jobs show it, in the simulated world.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.coordinator.core.lookahead import LEAST_BATCHES, WINDOW_SHARE, batches_wanted, share_of
from superdl.coordinator.core.samples import EVERY_EPOCH

if TYPE_CHECKING:
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.state import State

__all__ = ["headroom_bytes", "maxmemory_for", "needed_bytes", "thrash_text"]

_HEADROOM_SHARE = 0.1
_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE_MAX = 0.25

_MARGIN = 1.02
"""Records that have not been seen may be larger than those that have."""

_FRESH_MARGIN = 1.06
"""Windows move by batches and requests, and what was read goes only when room is looked for."""

_ROUNDS = 64


def needed_bytes(state: State) -> int:
    """The budget with which nothing would be dropped that recurs.

    That is all that recurs, whoever reads it and however far it is looked ahead. Beside it, of random
    recipes, what lanes look ahead to with that budget, and what the first of several jobs has read and the
    last has yet to read.
    """
    kept = _MARGIN * _recurring_bytes(state) + state.foreign_bytes + state.withheld_bytes
    fresh_jobs: dict[bytes, list[Job]] = {}
    for job in state.jobs.values():
        if job.random:
            fresh_jobs.setdefault(job.dataset, []).append(job)
    if not fresh_jobs:
        return int(kept)
    for jobs in fresh_jobs.values():
        read = [job.low * job.plan.batch_size * job.plan.replicas for job in jobs]
        kept += (max(read) - min(read)) * _batch_bytes(state, jobs[0]) / jobs[0].plan.batch_size
    batches = {
        (job.name, lane.rank): batches_wanted(state, job, lane, caution=1.0)
        for job in state.jobs.values()
        for lane in job.lanes.values()
    }
    wanted = sum(number * _batch_bytes(state, state.jobs[name]) for (name, _), number in batches.items())
    budget = kept
    for _ in range(_ROUNDS):  # the windows grow with the budget, by whole batches up to what is wanted
        scarcity = WINDOW_SHARE * budget / max(wanted, 1.0)
        windows = (
            max(
                _batch_bytes(state, job)
                * sum(
                    max(share_of(batches[job.name, rank], scarcity), lane.yielded - lane.low + LEAST_BATCHES)
                    for rank, lane in job.lanes.items()
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
    """What is left of a server's memory for the buffers of clients."""
    return int(max(limit * _HEADROOM_SHARE, min(_HEADROOM_BYTES, limit * _HEADROOM_SHARE_MAX)))


def maxmemory_for(budget: int) -> int:
    """The least memory of a server that leaves so much for records."""
    if budget <= _HEADROOM_BYTES * (1 / _HEADROOM_SHARE_MAX - 1):
        return math.ceil(budget / (1 - _HEADROOM_SHARE_MAX))
    return max(budget + _HEADROOM_BYTES, math.ceil(budget / (1 - _HEADROOM_SHARE)))


def _recurring_bytes(state: State) -> float:
    recurring = 0.0
    for key, samples in state.sets.items():
        if key.epoch == EVERY_EPOCH and state.wants(key.dataset):
            absent = samples.state.size - samples.resident_count
            recurring += samples.resident_bytes + samples.sample_bytes * absent
    return recurring


def _batch_bytes(state: State, job: Job) -> float:
    """Memory that a batch of a job takes."""
    epoch, _ = job.epoch_and_position(job.low)
    return state.set_of(job.samples_of(epoch)).sample_bytes * job.plan.batch_size


def thrash_text(state: State) -> str:
    """What to tell people: how much is there, and how much would end it."""
    needed = needed_bytes(state)
    now, enough, maxmemory = (
        f"{math.ceil(size / 2**20):,} MiB" for size in (state.budget_bytes, needed, maxmemory_for(needed))
    )
    return (
        f"thrash: samples are dropped from the cache ({now} for records) and soon produced again; {enough} "
        f"for records would end it: give the server a maxmemory of {maxmemory}, and raise cache_bytes "
        "where it is set"
    )
