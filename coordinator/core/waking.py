"""When the core wants to be told that time has passed, if nothing else happens before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.coordinator.core.ledger import Spending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.state import State

__all__ = ["wake_times_s"]


def wake_times_s(state: State, now: float) -> Iterator[float]:
    """All times at which something becomes due or possible by the passing of time alone; they lie ahead."""
    for due_s in (
        state.expiries[0][0] if state.expiries else None,
        state.demands.next_due_s,
        state.leases.next_end_s(),
        state.stragglers.next_late_s(),
    ):
        if due_s is not None:
            yield due_s
    for possible_s in _opportunities(state, now):
        if possible_s is not None and possible_s > now:
            yield possible_s


def _opportunities(state: State, now: float) -> Iterator[float | None]:
    waiting = state.demands.waiting
    if waiting or state.crowding.lanes:
        yield state.crowding.over_at_s(state.events)
        yield state.awaited.next_expiry_s(now)
    for roster in state.fleet.rosters:
        if waiting or len(roster.hungry) or roster.patient:
            yield from roster.wake_times_s(now)
        if roster.patient:
            yield roster.hasty_s
    if state.spending is not Spending.FREELY:
        yield state.ledger.freely_at_s(now, state.in_flight)
