"""Look-ahead: the length of a rank's window, and its samples that must be requested."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superdl.coordinator.core.auditing import audit
from superdl.coordinator.core.jobs import Ahead, CursorSpan
from superdl.coordinator.core.journal import BatchNote, NoteKind
from superdl.coordinator.core.restoring import share_in_cache, wanted_in_cache
from superdl.coordinator.core.samples import EVERY_EPOCH, SampleState

if TYPE_CHECKING:
    from superdl.coordinator.core.jobs import Cursor
    from superdl.coordinator.core.state import State

WINDOW_SHARE = 0.5
"""Share of the budget for all look-ahead windows; the rest keeps samples that recur."""

_SAFETY = 2.0  # factor on the batches read during a slow request
_SPARE_BATCHES = 8
_SPAN_BATCHES = 8  # looked at together
_STRIDE_SHARE = 4
_FILL_AUDITS = 8  # most unanswered audits of a job that fills
LEAST_BATCHES = 2
"""Minimum look-ahead in batches beyond what the sampler has given out."""


def _window_end(state: State, cursor: Cursor) -> int:
    """Return the end of the look-ahead: as many batches ahead as the job reads during a slow request
    (Little's law), bounded by settings and by this rank's share of the budget.

    It is beyond what the sampler has given out, since readers wait for that, however late read reports are.
    """
    job = cursor.job
    if job.fill is not None:  # no readers: one epoch, as far as the cache has answered audits
        state.want(cursor, 0)
        askers = [audit.asker for audit in state.audits.values() if isinstance(audit.asker, CursorSpan)]
        unanswered = sum(asker.job == job.name for asker in askers)
        return cursor.lookahead if unanswered >= _FILL_AUDITS else job.plan.batches_per_epoch
    epoch, _ = job.epoch_and_position(cursor.lookahead)
    samples = state.set_of(job.samples_of(epoch))
    batch_bytes = samples.sample_bytes * job.plan.batch_size
    batches = batches_wanted(state, cursor, caution=cursor.caution)
    state.want(cursor, int(batches * batch_bytes * share_in_cache(job, samples)))
    scarcity = WINDOW_SHARE * state.budget_bytes / max(state.wanted_bytes, 1)
    end = max(cursor.watermark + share_of(batches, scarcity), cursor.yielded + LEAST_BATCHES)
    return min(end, job.end)


def share_of(batches: int, scarcity: float) -> int:
    """Return how many of a rank's ``batches`` fit into its share of the budget."""
    return max(LEAST_BATCHES, batches if scarcity >= 1 else int(batches * scarcity))


def _stride(cursor: Cursor, end: int) -> int:
    """Return the number of batches below which a rank waits: several at once are much cheaper."""
    return max(1, min(_SPAN_BATCHES, (end - cursor.watermark) // _STRIDE_SHARE))


def batches_wanted(state: State, cursor: Cursor, *, caution: float) -> int:
    """Return how many batches the job reads during a slow request, plus spares, at most
    ``lookahead_batches``; exactly that many without measurements.
    """
    job = cursor.job
    samples = min(state.settings.request_samples, job.plan.batch_size)
    slow_s = state.eligible_for(job.dataset).slow_s(samples)
    if slow_s is None:
        return state.settings.lookahead_batches
    needed = _SPARE_BATCHES + math.ceil(caution * _SAFETY * slow_s / cursor.interval_s)
    return min(state.settings.lookahead_batches, needed)


def find_absent(state: State, cursor: Cursor, now: float) -> Ahead | None:
    """Return a rank's next absent samples, pending ones first; ``None`` if there are none.

    The look-ahead passes over samples that are resident or on their way. Samples in an unknown state are
    audited first, and come back to the rank if they are absent.
    """
    job = cursor.job
    while True:
        epoch = job.epoch_and_position(cursor.lookahead)[0]
        is_read = epoch == job.epoch_and_position(cursor.watermark)[0]
        if not state.admits(job.samples_of(epoch), waited_for=is_read):
            state.room_search.waiting[cursor.key] = None
            return None
        while cursor.pending:
            ahead = cursor.pending[0]
            if ahead.stop > cursor.watermark:  # else it was read meanwhile
                samples = state.set_of(ahead.samples)
                absent = wanted_in_cache(job, samples, samples.among(ahead.indices, SampleState.ABSENT))
                if absent.size:
                    cursor.pending[0] = ahead._replace(indices=absent)
                    return cursor.pending[0]
            cursor.pending.popleft()
        end = _window_end(state, cursor)
        room = end - cursor.lookahead
        given_out = cursor.lookahead < cursor.yielded + LEAST_BATCHES  # readers may wait for it
        if room <= 0 or (room < _stride(cursor, end) and not given_out and job.fill is None):
            return None
        epoch, position = job.epoch_and_position(cursor.lookahead)
        # The first batches one by one, as a span has the deadline of its first batch.
        batches = 1 if cursor.lookahead - cursor.watermark < LEAST_BATCHES else _SPAN_BATCHES
        stop = min(position + min(batches, end - cursor.lookahead), job.plan.batches_per_epoch)
        span = job.plan.span(epoch, position, stop, cursor.rank)
        key = job.samples_of(epoch)
        samples = state.set_of(key)
        is_distinct = job.plan.draws is None and not span.padding.any()
        indices = span.indices if is_distinct else state.unique(span.indices)
        states = samples.state[indices]
        if cursor.lookahead >= cursor.counted:
            job.counters.samples_reused += int((states == SampleState.RESIDENT).sum())
            cursor.counted = cursor.lookahead + stop - position
            if key.epoch == EVERY_EPOCH:
                state.thrash.needed(key.dataset, indices.size, now)
        state.has_come(key, indices[states == SampleState.RESIDENT], now)  # or it is never saved
        start, cursor.lookahead = cursor.lookahead, cursor.lookahead + stop - position
        absent = wanted_in_cache(job, samples, indices[states == SampleState.ABSENT])
        cursor.pending.append(Ahead(start, cursor.lookahead, key, absent))
        cursor.notes.append(BatchNote(now, NoteKind.LOOKED, start, cursor.lookahead, absent.size))
        asker = CursorSpan(job.name, cursor.rank, start, cursor.lookahead)
        if (states == SampleState.CHECKING).any():  # this rank, too, needs the absent ones
            state.audit_watchers.setdefault(key, {})[cursor.key] = None
        audit(state, key, samples.to_check(wanted_in_cache(job, samples, indices)), asker)
