"""Check the core's memory and each of its sample sets. Everything here must hold after every event."""

import math
from collections import Counter

import numpy as np

from superdl.coordinator.core.background import due
from superdl.coordinator.core.dispatching import wake_times_s
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState


def problems(core):
    """Yield each invariant that does not hold."""
    state = core.state
    for samples in state.sets.values():
        yield from problems_of(samples)
    yield from _memory(state)
    yield from _waits(state)
    yield from _executors(state)
    yield from _teams(state)
    yield from _cursors(state)
    yield from _stalls(state)
    yield from _money(state)
    yield from _store(state)
    yield from _stuck_work(state, core.now_s)


def problems_of(samples):
    """Yield each contradiction within a sample set."""
    resident = samples.having(SampleState.RESIDENT)
    if resident.size != samples.resident_count:
        yield f"{samples.key}: {resident.size} samples are resident, {samples.resident_count} are counted"
    if (samples.cached_bytes[resident] == 0).any():
        yield f"{samples.key}: a resident sample has no footprint"
    if int(samples.cached_bytes.sum(dtype=np.int64)) != samples.resident_bytes:
        yield f"{samples.key}: footprints do not add up to {samples.resident_bytes} bytes"
    kept = (samples.state == SampleState.RESIDENT) | (samples.state == SampleState.CHECKING)
    if samples.pointed is not None and samples.pointed[~kept].any():
        yield f"{samples.key}: a sample that is not cached has a pointer"
    if samples.cached_bytes[~kept].any():
        yield f"{samples.key}: a sample that is not cached has a footprint"


def _stalls(state):
    for job in state.jobs.values():
        with_a_cause = sum(job.stalls.batches.values())
        if with_a_cause != job.counters.stalls:
            yield f"{job.name} has {job.counters.stalls} stalls, but {with_a_cause} causes"


def _memory(state):
    if state.reserved_bytes != sum(request.claim.reserved_bytes for request in _unpaired(state.requests)):
        yield f"{state.reserved_bytes} bytes are reserved, but not by the requests in flight"


def _waits(state):
    expected = {
        SampleState.IN_FLIGHT: sum(
            int(np.count_nonzero(request.claim.unsettled)) for request in _unpaired(state.requests)
        ),
        SampleState.CHECKING: sum(audit.indices.size for audit in state.audits.values()),
    }
    for waited, held in expected.items():
        counted = sum(samples.count(waited) for samples in state.sets.values())
        if held != counted:
            yield f"{counted} samples are {waited.name}, but {held} are expected"


def _unpaired(requests):
    """Return the first of each pair of racing requests, and all requests that do not race."""
    for number, request in requests.items():
        if request.rival not in requests or number < (request.rival or 0):
            yield request


def _teams(state):
    in_flight = Counter(request.team for request in state.requests.values() if request.order.kind.fills_cache)
    for team in state.teams:
        if team.in_flight != in_flight[team.facts.name]:
            yield f"team {team.facts.name}: {team.in_flight} requests in flight are counted wrongly"


def _executors(state):
    for executor in state.fleet.executors:
        theirs = [request for request in state.requests.values() if request.order.executor == executor.number]
        samples = sum(request.order.indices.size for request in theirs)
        if not executor.decodes and any(request.order.kind.decodes for request in theirs):
            yield f"the store-only executor {executor.name} gets requests to decode"
        if (len(theirs), samples) != (executor.in_flight, executor.samples_in_flight):
            yield (
                f"{len(theirs)} requests and {samples} samples are in flight at {executor.name}, "
                f"{executor.in_flight} and {executor.samples_in_flight} are counted"
            )


def _stuck_work(state, now):
    """Yield work that is stuck after an event although an executor is free for it."""
    for job in state.jobs.values():
        eligible = state.eligible_for(job.dataset)
        for cursor in job.cursors.values():
            key = cursor.key
            ready = key in eligible.ready[job.team]
            queued = ready or key in eligible.deferred or key in state.room_search.waiting
            if cursor.pending and not cursor.lapsed and not queued:
                yield f"{key} has pending samples, but is in no queue"
    for eligible in state.fleet.groups:
        free = [executor for executor in eligible.executors if eligible.free_slots_of(executor, now) > 0]
        blocked = state.misses.unserved or state.ledger.spending is not Spending.FREELY
        may_ask = sum(len(ranks) for team, ranks in eligible.ready.items() if state.turn(team) is not None)
        if may_ask and free and not blocked:
            yield f"{may_ask} ranks may look ahead, and {free[0].name} has a free slot"
        until_s = eligible.deferred.soonest_s()
        if until_s is not None and until_s < min(wake_times_s(state, now), default=math.inf):
            yield f"{len(eligible.deferred)} ranks wait for a cheaper executor forever"
        # With a store, stored samples may wait for a dearer executor that can restore them. So may samples
        # that failed at this one.
        waits = any(
            cursor.key in eligible.deferred
            and not (cursor.pending and cursor.pending[0].failed_by is not None)
            for cursor in state.cursors
        )
        waits = waits and not state.settings.store
        if waits and free and not blocked and not eligible.has_cheaper(free[0]):
            yield f"{len(eligible.deferred)} ranks wait, and no executor is cheaper than {free[0].name}"
    if state.ledger.spending is Spending.FREELY and due(state, now) is not None:
        yield "samples wait to be saved although an executor is idle"


def _cursors(state):
    cursors = [cursor for job in state.jobs.values() for cursor in job.cursors.values()]
    window_bytes = sum(cursor.window_bytes for cursor in cursors)
    if window_bytes != state.window_bytes:
        yield f"windows take {window_bytes} bytes, but {state.window_bytes} are counted"
    for cursor in cursors:
        if not cursor.watermark <= cursor.lookahead:
            yield f"rank {cursor.rank}: look-ahead {cursor.lookahead} is behind {cursor.watermark}"


def _money(state):
    """Check that the ledger's cost categories add up to its total."""
    spent_usd = state.ledger.spent().usd
    if not math.isclose(spent_usd, state.ledger.total_usd, rel_tol=1e-6, abs_tol=1e-9):
        yield f"the kinds of costs are {spent_usd} USD of {state.ledger.total_usd}"


def _store(state):
    """Check that only storable samples have locations and that only jobs that see the store use it."""
    for key, samples in state.sets.items():
        if samples.packs is None:
            continue
        if key.epoch != EVERY_EPOCH or not state.settings.store:
            yield f"{key}: locations are known of samples that cannot be stored"
        if int(np.count_nonzero(samples.packs)) != samples.stored_count:
            yield f"{key}: {samples.stored_count} locations are counted wrongly"
    for job in state.jobs.values():
        if job.straight != all(cursor.sees_store for cursor in job.cursors.values()):
            yield f"{job.name} is straight={job.straight}, unlike its ranks"
