"""Makes room in the cache: whether samples fit into the budget, after dropping what is needed later.

Which samples are dropped is :mod:`superdl.coordinator.core.eviction`'s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.coordinator.core.actions import Drop
from superdl.coordinator.core.eviction import choose_victims
from superdl.coordinator.core.samples import SampleState

if TYPE_CHECKING:
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import State

__all__ = ["fits", "relieve", "room_for", "urgent_room_for"]

_UNNEEDED_SHARE = 1 / 32
"""Share of the budget freed by one search where no job needs what goes, so that searches are few."""

_NEEDED_SHARE = 1 / 128
"""The same where it is needed again."""

_ANY_TIME_S = -1.0
_NOT_NOW_S = 0.0


def fits(state: State, key: SetKey, count: int) -> bool:
    """Whether ``count`` more samples fit as things are."""
    return state.free_bytes >= math.ceil(state.set_of(key).sample_bytes * count)


def relieve(state: State, now: float) -> None:
    """Come back to the budget, where records were larger than expected or others take more of the cache.

    What readers wait for stays: else, with a cache that is full of others' records, no batch would ever be
    complete.
    """
    if state.free_bytes < 0:
        _evict(state, -state.free_bytes, later_than_s=_NOT_NOW_S, now=now)


def room_for(state: State, key: SetKey, count: int, *, later_than_s: float, now: float) -> int:
    """How many of ``count`` more samples fit, dropping what is needed later than in ``later_than_s``."""
    size_bytes = state.set_of(key).sample_bytes
    missing = math.ceil(size_bytes * count) - state.free_bytes
    if missing > 0 and not state.crowding.futile(state.events, later_than_s, now):
        spare = int(state.budget_bytes * _NEEDED_SHARE)
        _evict(state, max(missing, spare), later_than_s=later_than_s, now=now)
        if not fits(state, key, count):
            state.crowding.note(state.events, later_than_s, now, jobs=len(state.jobs))
    return _fitting(state.free_bytes, size_bytes, count)


def urgent_room_for(state: State, key: SetKey, count: int, now: float) -> int:
    """How many of ``count`` samples fit for which a reader waits: all may go that no other reader waits for.

    0 while other requests are under way or readers fetch what was produced for them: both bring room. Else
    there is nothing left to drop: then others have taken the memory, for which the readers of this job must
    not wait, or one sample is larger than the budget, which nothing will change.
    """
    size_bytes = state.set_of(key).sample_bytes
    spare = int(state.budget_bytes * _NEEDED_SHARE)
    for later_than_s, least in ((_NOT_NOW_S, spare), (_ANY_TIME_S, 0)):
        missing = math.ceil(size_bytes * count) - state.free_bytes
        if missing > 0:
            _evict(state, max(missing, least), later_than_s=later_than_s, now=now)
    fitting = _fitting(state.free_bytes, size_bytes, count)
    if fitting or state.requests or _awaited_and_there(state, now):
        return fitting
    return max(1, _fitting(state.free_bytes + state.foreign_bytes, size_bytes, count))


def _awaited_and_there(state: State, now: float) -> bool:
    return any(
        state.set_of(key).among(indices, SampleState.RESIDENT).size
        for key, indices in state.awaited.by_set(now).items()
    )


def _fitting(free_bytes: int, size_bytes: float, count: int) -> int:
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
        spared=state.awaited.by_set(now),
    )
    for victim in victims:
        samples = state.set_of(victim.samples)
        samples.move(victim.indices, SampleState.ABSENT)
        samples.dropped[victim.indices] = True
        state.dropped_samples += victim.indices.size
        state.actions.append(Drop(victim.samples, victim.indices))
