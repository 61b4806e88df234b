"""Audits: ask the cache what it really holds, and read back some fresh records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.events import Audit, Drop, ReadBack, Warn
from superdl.coordinator.core.jobs import Ahead, CursorSpan
from superdl.coordinator.core.queues import BatchPlace
from superdl.coordinator.core.restoring import take_in, usable
from superdl.coordinator.core.retrying import want_again
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.state import AuditInFlight

if TYPE_CHECKING:
    from superdl.coordinator.core.events import (
        Audited,
        CacheEvicted,
        CacheGrew,
        CacheReset,
        CacheResized,
        RecordReadBack,
    )
    from superdl.coordinator.core.samples import Ints, SetKey
    from superdl.coordinator.core.state import Request, State

_EVERY_S = 5.0  # between two records of an executor
_DOUBTED_EVERY_S = 0.5  # while its records do not read back
_BYTES_MAX = 16 * 2**20  # larger records are not read back


def audit(
    state: State, key: SetKey, indices: Ints, asker: BatchPlace | CursorSpan, *, whole: bool = False
) -> None:
    """Ask the cache about samples that may be there; do nothing if there are none."""
    if not indices.size:
        return
    state.set_of(key).move(indices, SampleState.CHECKING)
    number = next(state.numbers)
    state.audits[number] = AuditInFlight(key, indices, asker, whole)
    state.actions.append(Audit(number, key, indices, whole))


def audited(state: State, event: Audited, now: float) -> None:
    """Apply the cache's answer, and handle the samples that are absent."""
    pending = state.audits.pop(event.audit_id, None)
    if pending is None:
        return
    samples, before_bytes = state.set_of(pending.samples), state.resident_bytes
    present, tombstoned = usable(state, samples, event, now, whole=pending.whole), event.record_bytes < 0
    state.has_come(pending.samples, take_in(state, samples, pending.indices, event, present), now)
    samples.move(pending.indices[tombstoned], SampleState.FAILED)
    lost = ~(present | tombstoned)
    absent = pending.indices[lost]
    samples.move(absent, SampleState.ABSENT)
    samples.attempts[absent] = 0
    spoilt = pending.indices[lost & ((event.record_bytes > 0) | pending.whole)]
    if spoilt.size:  # delete it, since a tombstone does not replace a record
        state.actions.append(Drop(pending.samples, spoilt))
    # Records left by an earlier coordinator counted as foreign memory until this audit.
    found_bytes = state.resident_bytes - before_bytes
    state.foreign_bytes = max(0, state.foreign_bytes - max(0, found_bytes))
    if absent.size:
        _see_to(state, pending, absent)
    rank = state.cursor(*pending.asker[:2])
    if rank is not None and rank.job.fill is not None:  # it waits for all its audits
        state.wake(rank)
    if pending.samples in state.audit_watchers and not any(
        other.samples == pending.samples for other in state.audits.values()
    ):
        del state.audit_watchers[pending.samples]


def _see_to(state: State, asked: AuditInFlight, absent: Ints) -> None:
    asker = asked.asker
    if isinstance(asker, BatchPlace):
        state.stalls.record_lost(asker)
    else:
        cursor = state.cursor(asker.job, asker.rank)
        if cursor is not None and cursor.watermark < asker.stop <= cursor.lookahead:
            cursor.put(Ahead(asker.start, asker.stop, asked.samples, absent))
            state.wake(cursor)
    watchers = [state.cursor(*key) for key in state.audit_watchers.get(asked.samples, {}) if key != asker[:2]]
    want_again(state, asked.samples, absent, filter(None, watchers))


def cache_reset(state: State, event: CacheReset, now: float) -> None:
    """Mark known samples as absent; audits in flight will report theirs as absent too."""
    for samples in state.sets.values():
        for lost in (SampleState.RESIDENT, SampleState.FAILED):
            samples.move(samples.having(lost), SampleState.ABSENT)
        unknown = samples.having(SampleState.UNKNOWN)
        samples.move(unknown, SampleState.CHECKING)
        samples.move(unknown, SampleState.ABSENT)
    state.failures.clear()
    state.expiries.clear()
    state.foreign_bytes = 0
    state.emptied = True
    state.room_search.reset()
    state.look_again(state.cursors)


def cache_evicted(state: State, event: CacheEvicted, now: float) -> None:
    """Mark resident samples as unknown; each rank audits them again when it reaches them."""
    for samples in state.sets.values():
        samples.doubt()
    state.look_again(state.cursors)


def cache_grew(state: State, event: CacheGrew, now: float) -> None:
    """Reduce our share of the cache by what the server uses beyond our account."""
    # Requests in flight have already pushed an unknown part of what is reserved for them. So the last
    # estimate stands as long as it is possible. Once foreign memory must have grown, assume that half was
    # pushed.
    least, most = event.excess_bytes - state.reserved_bytes, event.excess_bytes
    believed = state.foreign_bytes if state.foreign_bytes >= least else (least + most) // 2
    state.foreign_bytes = max(0, min(believed, most))


def cache_resized(state: State, event: CacheResized, now: float) -> None:
    """Adopt the cache's new budget: make room at once if it shrank, use the rest if it grew."""
    # Halve what is withheld after refused writes: the servers' own figures explain most refusals.
    grew = event.budget_bytes > state.budget_bytes
    state.budget_bytes = max(1, event.budget_bytes)
    state.withheld_bytes //= 2
    if not grew:
        return
    state.room_search.reset()
    for cursor in state.cursors:
        state.wake(cursor)


def choose_to_read_back(
    state: State, request: Request, indices: Ints, record_bytes: Ints, now: float
) -> None:
    """Have one record of an answer read back, if it is time for that."""
    # Something on the write path may corrupt bytes, and every reader of every record would run
    # into it. Reading back one record in some seconds detects this for the price of one GET.
    executor = state.fleet.executors[request.order.executor]
    every_s = _DOUBTED_EVERY_S if executor.breaker.corrupts else _EVERY_S
    if not indices.size or now < executor.read_back_s + every_s:
        return
    executor.read_back_s = now
    place = state.events % indices.size  # any would do: a different one each time
    if record_bytes[place] <= _BYTES_MAX:
        state.actions.append(ReadBack(request.order.samples, int(indices[place]), request.order.executor))


def record_read_back(state: State, event: RecordReadBack, now: float) -> None:
    """Handle the result of reading back a record."""
    executor = state.fleet.executors[event.executor]
    if not event.fault:
        executor.breaker.reads_back()
        return
    others = ", and it is set aside" if len(state.fleet.executors) > 1 else ""
    if not executor.breaker.corrupts:  # warn once, until it recovers
        text = (
            f"a record that the executor {executor.name} has just written to the cache does not read back: "
            f"{event.fault}; the sample is produced again{others}: something on the way between functions, "
            "cache and coordinator changes bytes"
        )
        state.actions.append(Warn(text))
    # If there is another executor, this one is set aside until one of its records
    # reads back well.
    executor.breaker.does_not_read_back(f"its records do not read back: {event.fault}", now)
    samples = state.sets.get(event.samples)
    if samples is None:
        return
    spoilt = samples.among(np.array([event.index]), SampleState.RESIDENT)
    if spoilt.size:
        samples.move(spoilt, SampleState.ABSENT)
        state.actions.append(Drop(event.samples, spoilt))
        reading = state.reading(event.samples.dataset)
        want_again(state, event.samples, spoilt, reading, failed_by=event.executor)
