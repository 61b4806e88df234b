"""Room in the cache: samples are dropped by farthest next use (Belady 1966)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.events import Drop
from superdl.coordinator.core.plan import NEVER_SOON
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Bools, Ints, SampleSet, SetKey
    from superdl.coordinator.core.state import State

# Share of the budget that a search frees of unneeded samples, so that searches are few
_UNNEEDED_SHARE = 1 / 32
_NEEDED_SHARE = 1 / 128  # the same for samples that will be needed again
_SHARES_EVERY_S = 0.2
_ANY_TIME_S = -1.0  # even samples that are needed now are later than this
_NOT_NOW_S = 0.0  # only samples that are not needed now are later than this
CANDIDATES_LEAST = 2048  # up to this number of resident samples, all are considered
_CANDIDATES_PER_VICTIM = 8
_CANDIDATES_MAX = 65_536
# Minimum on average: fewer cost as much time, since each job looks up all of a set at once
_CANDIDATES_PER_SET = 1024
_FRESH_TIMES = 8  # factor by which more of a random recipe's samples are considered
_LOOKUPS_MAX = 1_000_000  # maximum number of next uses computed in one search, over all jobs


def fits(state: State, key: SetKey, count: int) -> bool:
    """Return whether ``count`` more samples fit without dropping any."""
    return state.free_bytes >= math.ceil(state.set_of(key).sample_bytes * count)


def relieve(state: State, now: float) -> None:
    """Return to the budget after records were larger than expected or others took memory."""
    # Samples that readers wait for stay: else no batch would ever be complete in a cache full of others'
    # records.
    if state.free_bytes < 0:
        _evict(state, -state.free_bytes, later_than_s=_NOT_NOW_S, now=now)


def room_for(state: State, key: SetKey, count: int, *, later_than_s: float, now: float) -> int:
    """Return how many of ``count`` samples fit, dropping those needed after ``later_than_s``."""
    size_bytes = state.set_of(key).sample_bytes
    missing = math.ceil(size_bytes * count) - state.free_bytes
    if missing > 0 and not state.room_search.futile(state.events, later_than_s, now):
        spare = int(state.budget_bytes * _NEEDED_SHARE)
        _evict(state, max(missing, spare), later_than_s=later_than_s, now=now)
        if not fits(state, key, count):
            state.room_search.failed(state.events, later_than_s, now, jobs=len(state.jobs))
    return fitting(state.free_bytes, size_bytes, count)


def urgent_room_for(state: State, key: SetKey, count: int, now: float) -> int:
    """Return how many of ``count`` samples that a reader waits for fit; all others may be dropped."""
    size_bytes = state.set_of(key).sample_bytes
    spare = int(state.budget_bytes * _NEEDED_SHARE)
    for later_than_s, least in ((_NOT_NOW_S, spare), (_ANY_TIME_S, 0)):
        missing = math.ceil(size_bytes * count) - state.free_bytes
        if missing > 0:
            _evict(state, max(missing, least), later_than_s=later_than_s, now=now)
    fit = fitting(state.free_bytes, size_bytes, count)
    # Requests in flight bring room, and so do readers that fetch what was produced for them.
    if fit or state.is_producing or _missed_and_resident(state, now):
        return fit
    # Nothing is left to drop: others have taken the memory, and this job's readers must not wait for that, or
    # one sample is larger than the budget, which nothing will change.
    return max(1, fitting(state.free_bytes + state.foreign_bytes, size_bytes, count))


def _missed_and_resident(state: State, now: float) -> bool:
    return any(
        state.set_of(key).among(indices, SampleState.RESIDENT).size
        for key, indices in state.misses.by_set(now).items()
    )


def fitting(free_bytes: int, size_bytes: float, count: int) -> int:
    """Return how many of ``count`` samples of that size fit into the free bytes."""
    return count if free_bytes >= math.ceil(size_bytes * count) else max(0, int(free_bytes / size_bytes))


def _evict(state: State, wanted_bytes: int, *, later_than_s: float, now: float) -> None:
    state.evictions += 1
    victims = choose_victims(
        state.sets,
        state.jobs.values(),
        wanted_bytes=wanted_bytes,
        later_than_s=later_than_s,
        turn=state.evictions,
        unneeded_bytes=int(state.budget_bytes * _UNNEEDED_SHARE),
        spared=state.misses.by_set(now),
    )
    for key, indices in victims.items():
        samples = state.set_of(key)
        samples.move(indices, SampleState.ABSENT)
        samples.dropped[indices] = True
        state.dropped_samples += indices.size
        state.actions.append(Drop(key, indices))


def see_shares(state: State, now: float) -> None:
    """Check now and then which teams hold more than their share; a dataset is split among its teams."""
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


def next_use(key: SetKey, indices: Ints, job: Job) -> Ints:
    """Return batches from the slowest rank to each next use; ``NEVER_SOON`` beyond the next epoch."""
    epoch, position = job.epoch_and_position(job.watermark)
    if key.epoch == EVERY_EPOCH:
        return job.plan.next_use(indices, epoch, position)
    if key.epoch < epoch:
        return np.full(indices.size, NEVER_SOON)
    start = position if key.epoch == epoch else 0
    batches = job.plan.next_use(indices, key.epoch, start)
    ahead = (key.epoch - epoch) * job.plan.batches_per_epoch - position + start
    return np.where(batches < job.plan.batches_per_epoch - start, batches + ahead, NEVER_SOON)


def next_use_s(
    key: SetKey, indices: Ints, jobs: Iterable[Job], stored: Bools | None = None
) -> NDArray[np.float64]:
    """Return the seconds until any job needs each sample in the cache; infinite if not within an epoch."""
    # Plans are known, so next uses are computed from the permutations: nothing is
    # stored, and recency does not matter.
    soonest = np.full(indices.size, np.inf)
    for job in jobs:
        if job.dataset == key.dataset and job.fill is None:
            batches = next_use(key, indices, job)
            never = batches >= NEVER_SOON
            # A straight job needs a stored sample only if a sampler may already know its place.
            if stored is not None and job.straight:
                never |= stored & (batches + job.watermark >= job.asked)
            np.minimum(soonest, np.where(never, np.inf, job.due_in_s(batches)), out=soonest)
    return soonest


def choose_victims(
    sets: Mapping[SetKey, SampleSet],
    jobs: Iterable[Job],
    *,
    wanted_bytes: int,
    later_than_s: float,
    turn: int,
    spared: Mapping[SetKey, Ints],
    unneeded_bytes: int = 0,
) -> dict[SetKey, Ints]:
    """Choose resident samples to drop, by set, until ``wanted_bytes`` are free, the
    farthest next use first.

    Of samples that no job will need, up to ``unneeded_bytes``. Candidates have a
    next use farther than ``later_than_s`` and are not ``spared``; of very many,
    ``turn`` varies which are considered.
    """
    jobs = list(jobs)
    # Of very many, only a part several times larger than the amount to drop: the
    # cost of dropping a sample does not grow with the cache.
    stride = _stride(sets, max(wanted_bytes, unneeded_bytes), jobs=len(jobs))
    keys: list[SetKey] = []
    places, indices, scores, sizes = [], [], [], []
    for samples in sets.values():
        if not samples.resident_count:
            continue
        # Most samples of a random recipe are used up; others must not hide them.
        step = stride if samples.key.epoch == EVERY_EPOCH else math.ceil(stride / _FRESH_TIMES)
        candidates = samples.having(SampleState.RESIDENT)[turn % step :: step]
        if samples.key in spared:
            candidates = np.setdiff1d(candidates, spared[samples.key])
        if candidates.size:
            places.append(np.full(candidates.size, len(keys)))
            keys.append(samples.key)
            indices.append(candidates)
            stored = None if samples.packs is None else samples.stored(candidates)
            scores.append(next_use_s(samples.key, candidates, jobs, stored))
            sizes.append(samples.stored_bytes[candidates].astype(np.int64))
    if not keys:
        return {}
    place, index, score, size = map(np.concatenate, (places, indices, scores, sizes))
    order = np.argsort(-score, kind="stable")
    order = order[score[order] > later_than_s]
    freed = np.cumsum(size[order])
    enough, plenty = (int(count) + 1 for count in np.searchsorted(freed, (wanted_bytes, unneeded_bytes)))
    chosen = order[: max(enough, min(plenty, int(np.count_nonzero(np.isinf(score[order])))))]
    by_set = {key: index[chosen[place[chosen] == number]] for number, key in enumerate(keys)}
    return {key: victims for key, victims in by_set.items() if victims.size}


def _stride(sets: Mapping[SetKey, SampleSet], wanted_bytes: int, *, jobs: int) -> int:
    holding = [samples.resident_count for samples in sets.values() if samples.resident_count]
    count, least = sum(holding), max(CANDIDATES_LEAST, _CANDIDATES_PER_SET * len(holding))
    if count <= least:
        return 1
    sample_bytes = sum(samples.resident_bytes for samples in sets.values()) / count
    enough = int(_CANDIDATES_PER_VICTIM * wanted_bytes / sample_bytes)
    limit = min(enough, _CANDIDATES_MAX, _LOOKUPS_MAX // max(jobs, 1))
    return math.ceil(count / max(limit, least))
