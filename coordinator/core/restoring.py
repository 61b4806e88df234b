"""The core's view of the store: stored samples, the executors that restore them, and failures.

A job is *straight* if all its readers can access the store. Its stored samples are cached only after a
miss. If all jobs of a dataset are straight, decoded samples are cached as *pointers* into their packs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.events import CACHED, OUTCOME_ORDER, Drop, Warn
from superdl.coordinator.core.fleet import EligibleExecutors
from superdl.coordinator.core.jobs import next_use_s
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState, SetKey
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.capacity import CircuitBreaker
    from superdl.coordinator.core.events import Audited, PacksLost, RecordsStored, RequestDone
    from superdl.coordinator.core.fleet import ExecutorState, StoreAccess
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Bools, Ints, SampleSet
    from superdl.coordinator.core.state import Request, State

_NO_POINTERS_S = 60.0  # push records for this long after a reader could not follow a pointer
_NOT_STORED = OUTCOME_ORDER.index(Outcome.NOT_STORED)
_STORE_ERROR = OUTCOME_ORDER.index(Outcome.STORE_ERROR)
_READING = "the executor {} cannot read the store: {}; samples are decoded until it can"
_WRITING = "the executor {} cannot write to the store: {}; decoded samples are not kept until it can"


class Way(NamedTuple):
    """Samples to decode or restore, and the executors that can do so."""

    indices: Ints
    executors: EligibleExecutors


def records_stored(state: State, event: RecordsStored, now: float) -> None:
    """Record locations in the store, unless the dataset has no job. Its next job will resend them."""
    dataset = state.datasets.get(event.dataset)
    if dataset is None or dataset.random or not state.settings.store or not event.indices.size:
        return
    state.set_of(SetKey(event.dataset, EVERY_EPOCH)).place(event.indices, event.packs)


def packs_lost(state: State, event: PacksLost, now: float) -> None:
    """Forget the locations of samples in lost packs."""
    for samples in state.sets.values():
        if samples.packs is not None:
            lost = np.isin(samples.packs, event.packs) & (samples.packs != 0)
            forget(state, samples, np.flatnonzero(lost))


def forget(state: State, samples: SampleSet, indices: Ints) -> None:
    """Forget locations, and make ranks of straight jobs recheck samples that they may have skipped."""
    if not indices.size:
        return
    samples.place(indices, 0)
    state.drop(samples, samples.pointers_among(indices))
    state.restart_lookahead(cursor for cursor in state.cursors_of(samples.key.dataset) if cursor.job.straight)


def all_straight(state: State, dataset: bytes) -> bool:
    """Return whether all readers of a dataset can access the store."""
    return all(job.straight for job in state.jobs_of(dataset))


def withdraw_pointers(state: State, dataset: bytes) -> None:
    """Drop all pointers if any job's readers may be unable to follow them, and make its ranks recheck."""
    samples = state.sets.get(SetKey(dataset, EVERY_EPOCH))
    if samples is None or samples.pointed is None or all_straight(state, dataset):
        return
    pointed = samples.pointers_among(np.flatnonzero(samples.pointed))
    if not pointed.size:
        return
    state.drop(samples, pointed)
    state.restart_lookahead(cursor for cursor in state.cursors_of(dataset) if not cursor.job.straight)


def usable(state: State, samples: SampleSet, event: Audited, now: float, *, whole: bool) -> Bools:
    """Return a mask of usable audited samples. Pointers are usable only if all readers can follow them.

    ``whole`` means that a reader reported corruption, for example a pointer that it could not follow.
    """
    present: Bools = event.record_bytes > 0
    if event.pointers is None:
        return present
    if whole and event.pointers.any():
        samples.pointers_from_s = now + _NO_POINTERS_S
    may_follow = not whole and all_straight(state, samples.key.dataset)
    return present if may_follow else present & ~event.pointers


def accept(
    state: State, samples: SampleSet, indices: Ints, event: RequestDone | Audited, cached: Bools
) -> Ints:
    """Mark cached samples as resident records or pointers, and return those cached as records."""
    if event.pointers is None:
        samples.store(indices[cached], event.record_bytes[cached])
        return indices[cached]
    whole, pointed = cached & ~event.pointers, cached & event.pointers
    samples.store(indices[whole], event.record_bytes[whole])
    samples.store(indices[pointed], event.record_bytes[pointed], pointers=True)
    withdraw_pointers(state, samples.key.dataset)
    return indices[whole]


def accept_late(state: State, samples: SampleSet, indices: Ints, event: RequestDone, written: Bools) -> None:
    """Delete samples that the loser of a race wrote after they had been dropped.

    Also update samples whose record the loser replaced with a pointer, or vice versa.
    """
    late = samples.among(indices[written], SampleState.ABSENT)
    if late.size:
        state.actions.append(Drop(samples.key, late))
    over = written & (samples.state[indices] == SampleState.RESIDENT)
    if (event.pointers is not None or samples.pointed is not None) and over.any():
        samples.move(indices[over], SampleState.CHECKING)
        accept(state, samples, indices, event, over)


def needed_in_cache(job: Job, samples: SampleSet, indices: Ints) -> Ints:
    """Return those of ``indices`` that a job needs in the cache before its readers reach them."""
    to_store = job.fill is not None and job.fill.to_store
    if not (job.straight or to_store) or samples.packs is None:
        return indices
    return indices[~samples.stored(indices)]


def share_in_cache(job: Job, samples: SampleSet) -> float:
    """Return the share of a set that a job needs in the cache before its readers reach it."""
    return 1.0 - samples.stored_count / samples.state.size if job.straight else 1.0


def ways(state: State, key: SetKey, indices: Ints, now: float) -> Iterator[Way]:
    """Yield the ways to get absent samples: decoding first, because it takes longer, then restoring."""
    eligible, samples = state.eligible_for(key.dataset), state.sets[key]
    stored = samples.stored(indices)
    executors = _restorers(state, eligible, now) if stored.any() else None
    if executors is None:
        yield Way(indices, eligible)
        return
    decoded, restored = indices[~stored], indices[stored]
    if state.settings.whole_packs and samples.packs is not None:  # request the samples of a pack together
        restored = restored[np.argsort(samples.packs[restored], kind="stable")]
    if decoded.size:
        yield Way(decoded, eligible)
    yield Way(restored, executors)


def _restorers(state: State, eligible: EligibleExecutors, now: float) -> EligibleExecutors | None:
    """Return the healthy executors that can restore, or ``None``."""
    able = [
        executor
        for executor in (*eligible.executors, *eligible.store_only)
        if executor.store is not None
        and executor.concurrency.capacity
        and is_usable(state, executor.store.reading, now)
        and not (executor.decodes and executor.breaker.tripped and eligible.can_reassign(executor))
        and not executor.is_resting(now)
    ]
    return EligibleExecutors(able, restores=True) if able else None


def is_usable(state: State, breaker: CircuitBreaker, now: float) -> bool:
    """Return whether the store can be used. A failure is followed by a pause and one trial request."""
    return not breaker.tripped or (now >= breaker.open_until_s() and breaker.probe not in state.requests)


def with_their_packs(state: State, key: SetKey, requested: Ints) -> Ints:
    """Return the first requested samples, plus absent samples of the same packs that a job will need.

    Takes as many packs as fit into a request and into the free memory.
    """
    samples = state.set_of(key)
    fitting = int(state.free_bytes / samples.sample_bytes)
    if not state.settings.whole_packs or samples.packs is None or fitting <= requested.size:
        return requested
    most = min(state.settings.request_samples, fitting)
    packs = samples.packs[requested]
    parts: list[Ints] = []
    count = 0
    for pack in dict.fromkeys(packs.tolist()):
        inside = samples.among(samples.samples_in_pack(pack), SampleState.ABSENT)
        if parts and count + inside.size > most:
            break
        of_pack = requested[packs == pack]
        parts += [of_pack, np.setdiff1d(inside, of_pack)[: most - count - of_pack.size]]
        count += parts[-2].size + parts[-1].size
    completed = np.concatenate(parts)
    is_requested = np.isin(completed, requested)
    uses_s = next_use_s(key, completed, state.jobs.values(), np.ones(completed.size, dtype=np.bool_))
    return completed[is_requested | np.isfinite(uses_s)]


def kind_for(
    state: State, executor: ExecutorState, samples: SampleSet, indices: Ints, now: float, *, restore: bool
) -> RequestKind:
    """Choose a request's kind, based on whether its executor and the readers can access the store."""
    if restore:
        return RequestKind.RESTORE
    access = executor.store
    if (
        access is None
        or samples.key.epoch != EVERY_EPOCH
        or samples.stored(indices).all()
        or not is_usable(state, access.writing, now)
    ):
        return RequestKind.DECODE
    if (
        access.writing.tripped
        or state.settings.whole_packs
        or now < samples.pointers_from_s
        or not all_straight(state, samples.key.dataset)
    ):
        return RequestKind.DECODE_TO_STORE
    return RequestKind.DECODE_TO_POINTERS


def answered(state: State, request: Request, access: StoreAccess, event: RequestDone, now: float) -> None:
    """Update the store's known contents and health from a result."""
    samples = state.set_of(request.order.samples)
    if event.pack and event.stored is not None and request.order.samples.epoch == EVERY_EPOCH:
        samples.place(request.order.indices[event.stored], event.pack)
    if request.order.kind.writes_pack:
        if (event.outcomes == CACHED).any():
            access.keeps = event.pack > 0
        if event.store_trouble:
            distrust(state, request, event.store_trouble, now, refused=True)
        elif event.pack:
            access.writing.worked()
    if request.order.kind is not RequestKind.RESTORE:
        return
    forget(state, samples, request.order.indices[event.outcomes == _NOT_STORED])
    failed = np.flatnonzero(event.outcomes == _STORE_ERROR)
    if failed.size:
        reason = event.store_trouble or event.messages.get(int(failed[0]), "it did not respond")
        distrust(state, request, reason, now, refused=True)
    elif (event.outcomes == CACHED).any():
        access.reading.worked()


def distrust(state: State, request: Request, reason: str, now: float, *, refused: bool = False) -> None:
    """Blame the store for a failed or refused request. Warns when the store is set aside."""
    executor = state.fleet.executors[request.order.executor]
    breaker = executor.breaker_for(request.order.kind)
    if breaker is None:
        return
    was_tripped = breaker.tripped
    blame = breaker.refused if refused else breaker.failed
    blame(reason, request.sent_s, now)
    if breaker.tripped and not was_tripped:
        text = _WRITING if request.order.kind.writes_pack else _READING
        state.actions.append(Warn(text.format(executor.name, reason)))


def store_trouble(state: State) -> str:
    """Describe any problems that executors have with the store, or return an empty string."""
    return ". ".join(
        text.format(executor.name, breaker.reason)
        for executor in state.fleet.executors
        if executor.store is not None
        for breaker, text in ((executor.store.reading, _READING), (executor.store.writing, _WRITING))
        if breaker.tripped
    )


def waits_for_the_store(state: State, samples: SampleSet, indices: Ints, now: float) -> bool:
    """Return whether most of a reader's missing samples will be restored from the store."""
    if samples.packs is None:
        return False
    coming = np.isin(samples.state[indices], (SampleState.ABSENT, SampleState.IN_FLIGHT))
    most = 2 * np.count_nonzero(samples.stored(indices) & coming) > indices.size
    return bool(most) and _restorers(state, state.eligible_for(samples.key.dataset), now) is not None
