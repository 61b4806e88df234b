"""Saving: executors that see the store write there what others decoded into the cache.

A *save* has cached samples written to a pack, in the order in which they came. It has the lowest priority: an
executor gets one only if it has an idle function, for at most half of its functions, and no save is large. No
one waits for a save, and it takes no room; so it is never raced, and unsaved samples are retried later, at
the end of the queue. If the store takes nothing, the circuit breaker for writing leaves it alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.coordinator.core.events import OUTCOME_ORDER
from superdl.coordinator.core.restoring import distrust, is_usable
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.events import Prefetch, RequestDone
    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.samples import Bools, Ints, SetKey
    from superdl.coordinator.core.state import Request, State

_NOT_CACHED = OUTCOME_ORDER.index(Outcome.NOT_CACHED)
_WAIT_S = 1.0
"""Maximum wait of a sample for others, so that packs are few."""

_PACK_BYTES = 32 * 2**20


class Save(NamedTuple):
    """Cached samples for an executor to write to a pack."""

    executor: ExecutorState
    samples: SetKey
    indices: Ints


def take_due(state: State, now: float) -> Iterator[Save]:
    """Take from the queue the saves that can be made now, longest waiting first. Request each before the
    next.
    """
    while (next_due := due(state, now)) is not None:
        key, executor = next_due
        taken, samples = state.unsaved.take(key, _pack_samples(state, key)), state.sets.get(key)
        if samples is None:  # the whole set is gone
            continue
        resident = samples.among(taken[~samples.stored(taken)], SampleState.RESIDENT)
        for other in _saves(state):  # skip what was dropped and has come again since
            if other.samples == key:
                resident = resident[~np.isin(resident, other.indices)]
        if resident.size:
            yield Save(executor, key, resident)


def is_saving(state: State) -> bool:
    """Return whether any sample is on its way from the cache to the store, or will be."""
    return state.unsaved.first() is not None or bool(_saves(state))


def _saves(state: State) -> list[Prefetch]:
    """Return the saves in flight."""
    orders = (request.order for request in state.requests.values())
    return [order for order in orders if order.kind is RequestKind.SAVE]


def due(state: State, now: float) -> tuple[SetKey, ExecutorState] | None:
    """Return a set with enough for a pack, and an idle executor; ``None`` if there is none."""
    first = state.unsaved.first()
    if first is None:
        return None
    key, since_s = first
    is_due = now >= since_s + _WAIT_S or state.unsaved.holds(key, _pack_samples(state, key))
    executor = saver(state, now) if is_due else None
    return None if executor is None else (key, executor)


def _pack_samples(state: State, key: SetKey) -> int:
    """Return the number of samples of a set in one save."""
    samples = state.sets.get(key)
    if samples is None:
        return 1
    return max(1, min(state.most_samples(key), int(_PACK_BYTES / samples.sample_bytes)))


def saver(state: State, now: float) -> ExecutorState | None:
    """Return the executor for a save, even of a source that it may not read; ``None`` if none is idle or
    able.
    """
    saves = Counter(order.executor for order in _saves(state))
    for executor in state.fleet.executors:
        access = executor.store
        if access is None or executor.idle(now) <= 0 or executor.places(now) <= 0:
            continue
        half = max(1, executor.concurrency.capacity // 2)
        if saves[executor.number] < half and is_usable(state, access.writing, now):
            return executor
    return None


def next_save_s(state: State) -> float | None:
    """Return when the next save can be made without an event; ``None`` if nothing waits."""
    first = state.unsaved.first()
    if first is None:
        return None
    seeing = [executor.store for executor in state.fleet.executors if executor.store is not None]
    return max(first[1] + _WAIT_S, min(access.writing.open_until_s() for access in seeing))


def saved(event: RequestDone) -> Bools:
    """Return which samples of a save are in its pack."""
    if event.pack and event.stored is not None:
        return event.stored
    return np.zeros(event.outcomes.size, dtype=np.bool_)


def answered(state: State, request: Request, event: RequestDone, now: float) -> None:
    """Handle a save's answer: retry unsaved samples, except those no longer cached."""
    unsaved = ~saved(event) & (event.outcomes != _NOT_CACHED)
    if unsaved.any() and not event.store_trouble:
        reason = next(iter(event.messages.values()), "no pack was written")
        distrust(state, request, reason, now)
    try_again(state, request, unsaved, now)


def try_again(state: State, request: Request, left: Bools, now: float) -> None:
    """Queue unsaved samples again if they are still in the cache."""
    key = request.order.samples
    samples = state.sets.get(key)
    if samples is not None:
        state.has_come(key, samples.among(request.order.indices[left], SampleState.RESIDENT), now)
