"""Keeps to the caps on spending: first what nobody waits for is not asked for, at the hard cap nothing is.

What readers wait for then gets a tombstone that names the cap, so that they fail at once and say why. What
is in the cache can be read all the while.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.coordinator.core.actions import Warn, WriteTombstones
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.samples import SampleState
from superdl.super_wire.record import SPENDING_CAP

if TYPE_CHECKING:
    from superdl.coordinator.core.state import State

__all__ = ["refuse_demands", "watch_spending"]

_WARN_EVERY_S = 300.0


def watch_spending(state: State, now: float) -> Spending:
    """See how freely money may be spent now, and warn when that gets less."""
    settings = state.settings
    if settings.max_usd == settings.max_usd_per_hour == math.inf:
        return Spending.FREELY
    state.spending = state.ledger.spending(state.in_flight)
    if state.spending is Spending.FREELY or now < state.warn_again_s:
        return state.spending
    if state.spending is Spending.STOPPED and state.requests:  # it may turn out cheaper
        return state.spending
    state.warn_again_s = now + _WARN_EVERY_S
    spent = f"{state.ledger.total_usd:.4f} USD of max_usd {settings.max_usd:g} are spent"
    if state.spending is Spending.STOPPED:
        text = f"{spent}, and a request more might pass the cap: nothing more is produced"
    else:
        text = (
            f"{spent}, and a cap (the other is max_usd_per_hour {settings.max_usd_per_hour:g}) is near: only "
            "what readers wait for is produced"
        )
    state.actions.append(Warn(text))
    return state.spending


def refuse_demands(state: State, now: float) -> None:
    """Tell the readers that wait that the hard cap is reached, once what is in flight has been paid for."""
    if state.samples_in_flight:
        return
    ttl_s = state.settings.tombstone_ttl_s
    while (demand := state.demands.take_due()) is not None:
        samples = state.sets.get(demand.samples)
        if not demand.urgent or samples is None:
            continue
        refused = samples.among(demand.indices, SampleState.ABSENT)
        if not refused.size:
            continue
        text = (
            f"{state.ledger.total_usd:.4f} USD are spent on this cache, by coordinators before a restart "
            f"too, and max_usd is {state.settings.max_usd:g}, which a request more might pass: to go on, "
            "start the coordinator with a higher one (--max-usd, SUPER_MAX_USD)"
        )
        samples.move(refused, SampleState.FAILED)
        for index in refused.tolist():
            state.remember_failure(demand.samples, index, text)
        messages = (text,) * refused.size
        state.actions.append(WriteTombstones(demand.samples, refused, messages, ttl_s, reason=SPENDING_CAP))
        state.expiries.append((now + ttl_s, demand.samples, refused))
