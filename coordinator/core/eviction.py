"""What to drop under pressure: first what no job will need, then what is needed last (Belady 1966).

Plans are known, so the next use of every resident sample is computed from the permutations; nothing about it
is stored, and recency has no say. Of very many resident samples a part is looked at, another one each time,
some times larger than what is to be dropped: so the cost of dropping a sample does not grow with the cache,
and what goes is among the last to be needed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import SampleSet, SetKey

__all__ = ["CANDIDATES_LEAST", "Victims", "choose_victims", "next_use", "next_use_s"]

CANDIDATES_LEAST = 2048
"""Up to so many resident samples, all are looked at."""

_CANDIDATES_PER_VICTIM = 8
_CANDIDATES_MAX = 65_536
_CANDIDATES_PER_SET = 1024
"""On average at least: fewer cost as much time, since each job is asked about all of a set at once."""

_FRESH_TIMES = 8
"""So many times more of what a random recipe has left is looked at."""

_LOOKUPS_MAX = 1_000_000
"""Next uses computed in one search, over all jobs."""


class Victims(NamedTuple):
    """Samples of one set to drop, and the memory that this frees."""

    samples: SetKey
    indices: NDArray[np.int64]
    freed_bytes: int


def next_use(key: SetKey, indices: NDArray[np.int64], job: Job) -> NDArray[np.int64]:
    """Batches from the slowest rank to the next use of each sample; ``NEVER_SOON`` beyond the next epoch."""
    epoch, position = job.epoch_and_position(job.low)
    if key.epoch == EVERY_EPOCH:
        return job.plan.next_use(indices, epoch, position)
    if key.epoch < epoch:
        return np.full(indices.size, NEVER_SOON)
    start = position if key.epoch == epoch else 0
    batches = job.plan.next_use(indices, key.epoch, start)
    ahead = (key.epoch - epoch) * job.plan.batches_per_epoch - position + start
    return np.where(batches < job.plan.batches_per_epoch - start, batches + ahead, NEVER_SOON)


def next_use_s(key: SetKey, indices: NDArray[np.int64], jobs: Iterable[Job]) -> NDArray[np.float64]:
    """Seconds until any job needs each sample, as its pace goes; infinite where none will within an epoch."""
    soonest = np.full(indices.size, np.inf)
    for job in jobs:
        if job.dataset == key.dataset:
            batches = next_use(key, indices, job)
            np.minimum(soonest, np.where(batches >= NEVER_SOON, np.inf, job.due_in_s(batches)), out=soonest)
    return soonest


def choose_victims(
    sets: Mapping[SetKey, SampleSet],
    jobs: Iterable[Job],
    *,
    wanted_bytes: int,
    later_than_s: float,
    turn: int,
    spared: Mapping[SetKey, NDArray[np.int64]],
    unneeded_bytes: int = 0,
) -> list[Victims]:
    """Resident samples to drop until ``wanted_bytes`` are free, the farthest next use first.

    Args:
        sets: all sample sets.
        jobs: all open jobs.
        wanted_bytes: memory to free; less is freed where there are not enough candidates.
        later_than_s: only samples whose next use is farther than this are candidates.
        turn: varies which candidates are looked at where there are more than :data:`CANDIDATES_LEAST`.
        spared: samples that are no candidates, by set.
        unneeded_bytes: memory to free if what no job will need is enough for that.
    """
    jobs = list(jobs)
    stride = _stride(sets, max(wanted_bytes, unneeded_bytes), jobs=len(jobs))
    keys: list[SetKey] = []
    places, found, scores, sizes = [], [], [], []
    for samples in sets.values():
        if not samples.resident_count:
            continue
        # Of a random recipe most is used up, and must not hide behind what is needed again.
        step = stride if samples.key.epoch == EVERY_EPOCH else math.ceil(stride / _FRESH_TIMES)
        candidates = samples.having(SampleState.RESIDENT)[turn % step :: step]
        if samples.key in spared:
            candidates = np.setdiff1d(candidates, spared[samples.key])
        if candidates.size:
            places.append(np.full(candidates.size, len(keys)))
            keys.append(samples.key)
            found.append(candidates)
            scores.append(next_use_s(samples.key, candidates, jobs))
            sizes.append(samples.stored_bytes[candidates].astype(np.int64))
    if not keys:
        return []
    place, index, score, size = map(np.concatenate, (places, found, scores, sizes))
    order = np.argsort(-score, kind="stable")
    order = order[score[order] > later_than_s]
    freed = np.cumsum(size[order])
    enough, plenty = (int(count) + 1 for count in np.searchsorted(freed, (wanted_bytes, unneeded_bytes)))
    chosen = order[: max(enough, min(plenty, int(np.count_nonzero(np.isinf(score[order])))))]
    victims = []
    for number, key in enumerate(keys):
        mine = chosen[place[chosen] == number]
        if mine.size:
            victims.append(Victims(key, index[mine], int(size[mine].sum())))
    return victims


def _stride(sets: Mapping[SetKey, SampleSet], wanted_bytes: int, *, jobs: int) -> int:
    """Of how many resident samples one is a candidate."""
    holding = [samples.resident_count for samples in sets.values() if samples.resident_count]
    count, least = sum(holding), max(CANDIDATES_LEAST, _CANDIDATES_PER_SET * len(holding))
    if count <= least:
        return 1
    sample_bytes = sum(samples.resident_bytes for samples in sets.values()) / count
    enough = int(_CANDIDATES_PER_VICTIM * wanted_bytes / sample_bytes)
    limit = min(enough, _CANDIDATES_MAX, _LOOKUPS_MAX // max(jobs, 1))
    return math.ceil(count / max(limit, least))
