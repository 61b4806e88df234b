"""What must hold of the core's memory after every event; for tests and the simulator."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.waking import wake_times_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.core.state import RequestInFlight, State

__all__ = ["idlers", "problems"]


def problems(state: State) -> Iterator[str]:
    """Invariants that do not hold: nothing, unless there is a bug."""
    for samples in state.sets.values():
        yield from samples.problems()
    yield from _memory(state)
    yield from _waits(state)
    yield from _executors(state)
    yield from _lanes(state)
    yield from _stalls(state)
    yield from _money(state)


def _stalls(state: State) -> Iterator[str]:
    for job in state.jobs.values():
        with_a_cause = sum(job.stalls.batches.values())
        if with_a_cause != job.counters.stalls:
            yield f"{job.name} has {job.counters.stalls} stalls, and causes of {with_a_cause}"


def _memory(state: State) -> Iterator[str]:
    if state.resident_bytes != sum(samples.resident_bytes for samples in state.sets.values()):
        yield f"{state.resident_bytes} bytes are resident, but not in the sample sets"
    if state.reserved_bytes != sum(request.reserved_bytes for request in state.requests.values()):
        yield f"{state.reserved_bytes} bytes are reserved, but not by the requests in flight"


def _waits(state: State) -> Iterator[str]:
    awaited = {
        SampleState.IN_FLIGHT: sum(
            int(np.count_nonzero(request.unsettled)) for request in _unpaired(state.requests)
        ),
        SampleState.CHECKING: sum(audit.indices.size for audit in state.audits.values()),
    }
    for expected, held in awaited.items():
        counted = sum(samples.count(expected) for samples in state.sets.values())
        if held != counted:
            yield f"{counted} samples are {expected.name}, {held} are being waited for"
    if state.samples_in_flight != awaited[SampleState.IN_FLIGHT]:
        yield f"{state.samples_in_flight} samples are counted as in flight"


def _unpaired(requests: dict[int, RequestInFlight]) -> Iterator[RequestInFlight]:
    """Of two requests that race, the first; and all that do not."""
    for number, request in requests.items():
        if request.rival not in requests or number < (request.rival or 0):
            yield request


def _executors(state: State) -> Iterator[str]:
    for member in state.fleet.members:
        theirs = [request for request in state.requests.values() if request.executor == member.number]
        samples = sum(request.indices.size for request in theirs)
        if (len(theirs), samples) != (member.in_flight, member.samples_in_flight):
            yield (
                f"{len(theirs)} requests and {samples} samples are in flight at {member.name}, "
                f"{member.in_flight} and {member.samples_in_flight} are counted"
            )


def idlers(state: State, now: float) -> Iterator[str]:
    """Work that is left lying after an event, though somebody could do it: nothing, unless there is a bug."""
    for job in state.jobs.values():
        roster = state.roster_of(job.dataset)
        for lane in job.lanes.values():
            key = (job.name, lane.rank)
            queued = key in roster.hungry or key in roster.patient or key in state.crowding.lanes
            if lane.pending and not lane.lapsed and not queued:
                yield f"{key} has found something to look ahead to, and nobody will look at it again"
    for roster in state.fleet.rosters:
        free = [member for member in roster.members if roster.places_of(member, now) > 0]
        blocked = state.demands.waiting or state.spending is not Spending.FREELY
        if len(roster.hungry) and free and not blocked:
            yield f"{len(roster.hungry)} lanes may look ahead, and {free[0].name} has a place"
        if roster.patient and roster.hasty_s < min(wake_times_s(state, now), default=math.inf):
            yield f"{len(roster.patient)} lanes wait for a cheaper executor, and nothing ends that in time"
        if roster.patient and free and not blocked and not roster.is_worth_waiting(free[0]):
            yield f"{len(roster.patient)} lanes wait for an executor that is not cheaper than {free[0].name}"


def _lanes(state: State) -> Iterator[str]:
    lanes = [lane for job in state.jobs.values() for lane in job.lanes.values()]
    if not len(lanes) == state.lanes == state.lanes_of.total():
        yield f"{len(lanes)} lanes are open, {state.lanes} and {state.lanes_of.total()} are counted"
    wanted_bytes = sum(lane.wanted_bytes for lane in lanes)
    if wanted_bytes != state.wanted_bytes:
        yield f"lanes want {wanted_bytes} bytes, {state.wanted_bytes} are counted"
    for lane in lanes:
        if not lane.low <= lane.frontier:
            yield f"rank {lane.rank}: frontier {lane.frontier} is behind {lane.low}"
    for job in state.jobs.values():
        if job.lapsed != all(lane.lapsed for lane in job.lanes.values()):
            yield f"{job.name} has lapsed, or not, against its ranks"


def _money(state: State) -> Iterator[str]:
    borne_usd = sum(map(state.ledger.job_usd, state.ledger.jobs()))
    if not math.isclose(borne_usd, state.ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
        yield f"jobs bear {borne_usd} USD of {state.ledger.total_usd}"
