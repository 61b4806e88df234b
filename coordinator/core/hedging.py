"""Which stragglers a second request races.

A straggler takes longer than nearly all do; a second request for the same samples races it. The first answer
wins; what the other one brings changes nothing but the account (Dean and Barroso, "The Tail at Scale", 2013).
Hedges are made where a function is idle or a reader waits, and never more of them than a share of all
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.fleet import EligibleExecutors
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from superdl.coordinator.core.fleet import ExecutorState
    from superdl.coordinator.core.samples import SetKey
    from superdl.coordinator.core.state import Request, State

__all__ = ["late_at_s", "stragglers_to_race"]

_LATE_LEAST_S = 0.05
_RESTORE_LATE_LEAST_S = 2.0
_LOOK_EVERY_S = 0.05


def late_at_s(state: State, request: Request, now: float) -> float | None:
    """When a request that is sent now will be a straggler; ``None`` if that cannot be said."""
    order, executor = request.order, state.fleet.executors[request.order.executor]
    able = (
        EligibleExecutors((executor,), restores=True)
        if order.kind is RequestKind.RESTORE
        else state.eligible_for(order.samples.dataset)
    )
    late_s = able.late_s(executor, order.indices.size, state.settings.hedge_quantile)
    if order.kind is RequestKind.RESTORE:
        late_s = max(late_s or 0.0, _RESTORE_LATE_LEAST_S)
    return None if late_s is None else now + max(late_s, _LATE_LEAST_S)


def stragglers_to_race(state: State, now: float) -> Iterator[tuple[Request, ExecutorState]]:
    """The stragglers that deserve a rival, and who is to have it; what is yielded is raced before the next:
    a share of all requests, while functions are idle or a reader waits.
    """
    watched = state.stragglers
    if not len(watched) or not state.settings.hedge_share:
        return
    misses: Mapping[SetKey, NDArray[np.int64]] = {}
    if len(state.misses) and now >= watched.look_again_s:
        watched.look_again_s = now + _LOOK_EVERY_S
        misses = state.misses.by_set(now)
    for number in watched.late:
        late = state.requests[number]
        dataset = late.order.samples.dataset
        # Nothing is decoded for nothing but idleness that the store will bring.
        idle = late.order.kind.decodes and state.fleet.idle(now) > 0
        affordable = watched.affordable(state.settings.hedge_share) > 0
        deserved = affordable and (idle or _is_missed(state, late, misses))
        if not state.wants(dataset) or not (deserved or _is_unproven(state, late)):
            continue
        executor, _ = state.eligible_for(dataset).choose(now, other_than=late.order.executor)
        if executor is not None and state.turn(late.team) is not None:
            watched.raced(number)
            yield late, executor


def _is_unproven(state: State, request: Request) -> bool:
    """Whether the executor of a straggler has never answered, though there is another: no share of all
    requests bounds its rivals, but that it is soon set aside.
    """
    executor = state.fleet.executors[request.order.executor]
    return (
        not executor.latency.answers
        and not (executor.store and executor.store.latency.answers)
        and len(state.eligible_for(request.order.samples.dataset).executors) > 1
    )


def _is_missed(state: State, request: Request, misses: Mapping[SetKey, NDArray[np.int64]]) -> bool:
    key = request.order.samples
    if key not in misses:
        return False
    in_flight = state.set_of(key).among(misses[key], SampleState.IN_FLIGHT)
    return bool(np.isin(in_flight, request.order.indices).any())
