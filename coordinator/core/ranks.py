"""The life cycle of a rank: it opens a job, requests and reads batches, falls silent and is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.cache import audit
from superdl.coordinator.core.capacity import Pace
from superdl.coordinator.core.events import Drop, ExecutorsIneligible, JobClosed
from superdl.coordinator.core.jobs import Cursor, Job
from superdl.coordinator.core.journal import Cause, Stall, Work
from superdl.coordinator.core.ledger import Spending
from superdl.coordinator.core.queues import BatchPlace
from superdl.coordinator.core.restoring import waits_for_the_store, withdraw_pointers
from superdl.coordinator.core.samples import SampleState
from superdl.coordinator.core.state import unique
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from superdl.coordinator.core.events import BatchesRequested, BatchRead, JobOpened
    from superdl.coordinator.core.samples import Ints, SampleSet
    from superdl.coordinator.core.state import State
    from superdl.super_wire.read_reports import ReadReport

_UNREPORTED_BATCHES = 256  # sent but not read; earlier ones count as read even without a report
_DOUBTFUL = np.zeros(len(SampleState), dtype=np.bool_)
_DOUBTFUL[[SampleState.UNKNOWN, SampleState.RESIDENT, SampleState.FAILED]] = True
_EPOCHS_MAX = 2**40


def job_opened(state: State, event: JobOpened, now: float) -> None:
    """Open a job, or add a rank to an open one. The rank starts to look ahead at once."""
    dataset, job = event.dataset, state.jobs.get(event.job)
    state.datasets.setdefault(dataset.content, dataset)
    state.unused_datasets.discard(dataset.content)
    executors_ineligible(state, ExecutorsIneligible(dataset.content, event.ineligible), now)
    if job is None:
        job = state.jobs[event.job] = Job(
            event.job, dataset.content, dataset.random, event.plan, team=event.team
        )
    cursor = job.cursors.get(event.rank)
    has_new_order = job.plan != event.plan  # a user's sampler has drawn another epoch
    job.plan = event.plan
    start = job.absolute(event.epoch, event.position)
    if cursor is not None:
        if has_new_order:
            cursor.reach = start
            cursor.seek(start, now)
            state.room_search.reset()
        cursor.reach = max(cursor.reach, start)
        if start < cursor.watermark:  # another process has started over
            cursor.seek(start, now)
    else:
        cursor = Cursor(
            job, event.rank, start, start, start, start, last_seen_s=now, last_read_s=now, pace=Pace(now)
        )
        cursor.reach = start
        # Assume that readers can access a directory. If the first page request denies it, restoring is quick.
        cursor.sees_store = state.settings.store and not state.settings.whole_packs
        job.cursors[event.rank] = cursor
        job.sees_store_changed()
        state.ledger.add_job(job.name)
    renew(state, cursor, now)
    state.wake(cursor)


def job_closed(state: State, event: JobClosed, now: float) -> None:
    """Remove a rank, and the job if it was the last. Cached samples stay until memory is needed."""
    cursor = state.cursor(event.job, event.rank)
    if cursor is None:
        return
    job = cursor.job
    del job.cursors[cursor.rank]
    state.set_window_bytes(cursor, 0)
    state.dequeue(cursor)
    state.room_search.reset()
    job.sees_store_changed()
    if not job.cursors:
        del state.jobs[job.name]
        state.closed.add(job)
        state.ledger.remove_job(job.name)
        state.thrash.clear()


def executors_ineligible(state: State, event: ExecutorsIneligible, now: float) -> None:
    """Replace the set of executors excluded for a dataset."""
    if event.executors == state.ineligible.get(event.dataset, frozenset()):
        return
    reading = state.cursors_of(event.dataset)
    for cursor in reading:
        state.dequeue(cursor)
    if event.executors:
        state.ineligible[event.dataset] = event.executors
    else:
        state.ineligible.pop(event.dataset, None)
    for cursor in reading:
        state.wake(cursor)


def batches_requested(state: State, event: BatchesRequested, now: float) -> None:
    """Record that a page of the plan was sent. Moves the rank if the sampler skipped ahead or went back."""
    cursor = state.cursor(event.job, event.rank)
    if cursor is None:
        return
    job = cursor.job
    renew(state, cursor, now)
    start, stop = job.absolute(event.epoch, event.start), job.absolute(event.epoch, event.stop)
    yielded = job.absolute(event.epoch, event.yielded)
    if start > cursor.sent or _is_rewound(cursor, yielded):
        cursor.seek(yielded, now)
    if stop > cursor.sent:
        cursor.note(now, max(start, cursor.sent), stop, "it was sent to the sampler")
    cursor.sent = max(cursor.sent, stop)
    cursor.pass_empty()
    cursor.reach = max(cursor.reach, stop)
    cursor.yielded = max(cursor.yielded, yielded)
    if event.yielded > 0:  # the previous epoch ends once this epoch yields
        cursor.skip_to(job.absolute(event.epoch, 0))
    cursor.skip_to(cursor.yielded - _UNREPORTED_BATCHES)
    if cursor.sees_store != (event.sees_store and state.settings.store):
        cursor.sees_store = not cursor.sees_store
        job.sees_store_changed()
        withdraw_pointers(state, job.dataset)
        for other in job.cursors.values():
            state.wake(other)
    state.wake(cursor)


def _is_rewound(cursor: Cursor, yielded: int) -> bool:
    # A report may overtake a request, but a request never yields fewer batches than the previous one.
    return yielded < cursor.watermark and yielded < cursor.yielded


def batch_read(state: State, event: BatchRead, now: float) -> None:
    """Handle a read report: advance the rank, or request its missing samples at once."""
    report = event.report
    cursor = state.cursor(event.job, report.rank)
    if cursor is None:
        return
    job = cursor.job
    # Reports may be forged. Ignore batches outside the plan.
    if not (0 <= report.position < job.plan.batches_per_epoch and 0 <= report.epoch < _EPOCHS_MAX):
        return
    if not job.plan.covers(report.epoch):
        return
    position = job.absolute(report.epoch, report.position)
    # Ignore batches that were never sent, with some tolerance for an earlier coordinator.
    if position >= cursor.reach + _UNREPORTED_BATCHES:
        return
    renew(state, cursor, now)
    place = BatchPlace(job.name, report.rank, report.epoch, report.position)
    if report.done:
        counters, is_stalled = job.counters, report.hits < report.samples
        counters.batches_read += 1
        counters.cache_hits += report.hits - report.straight
        counters.cache_misses += report.samples - report.hits
        counters.read_s += report.read_us / 1e6
        counters.wait_s += report.wait_us / 1e6
        counters.read_bytes += report.size_bytes
        counters.samples_straight += report.straight
        if is_stalled:
            counters.stalls += 1
            _end_stall(state, place, job, report.wait_us, now)
        state.ledger.add_read(job.dataset, job.name, report.samples, report.size_bytes, now)
        state.misses.discard(place)
        if position < cursor.sent:
            text = f"read, with {report.hits} samples present at the first attempt"
            cursor.note(now, position, position + 1, text)
            cursor.read(position, now, stalled=is_stalled)
        state.wake(cursor)
    elif report.missed:
        text = f"a reader was missing {len(report.missed)} of its samples"
        cursor.note(now, position, position + 1, text)
        _handle_misses(state, job, place, report, now)


def _handle_misses(state: State, job: Job, place: BatchPlace, report: ReadReport, now: float) -> None:
    batch = job.plan.batch(report.epoch, report.position, report.rank).indices
    offsets = (np.array(each, dtype=np.int64) for each in (report.missed, report.corrupt))
    missed, corrupt = (each[(each >= 0) & (each < batch.size)] for each in offsets)
    key = job.samples_of(report.epoch)
    if not state.admits(key, waited_for=True):  # the reader will report again
        return
    samples = state.set_of(key)
    corrupt_indices = unique(batch[corrupt])
    dropped = samples.among(corrupt_indices, SampleState.ABSENT)
    if dropped.size:  # delete the record, because a tombstone does not replace it
        state.actions.append(Drop(key, dropped))
    missing = unique(batch[missed])
    _begin_stall(state, place, samples, missing, now)
    state.misses.report(place, key, missing, now)
    # The report may be outdated or forged, so check the cache first.
    audit(state, key, corrupt_indices[_DOUBTFUL[samples.state[corrupt_indices]]], place, whole=True)
    audit(state, key, missing[_DOUBTFUL[samples.state[missing]]], place)


def renew(state: State, cursor: Cursor, now: float) -> None:
    """Renew a rank's lease."""
    cursor.last_seen_s = now
    if cursor.lapsed or cursor.key not in state.leases:  # one entry per rank, checked again when due
        state.leases.add(cursor.key, now + state.settings.lease_s)
    if cursor.lapsed:
        cursor.lapsed = False
        state.wake(cursor)


def lapse(state: State, now: float) -> None:
    """Mark ranks with expired leases as lapsed, and remove those that were silent for ``forget_s``."""
    settings = state.settings
    for name, rank in state.leases.pop_due(now):
        cursor = state.cursor(name, rank)
        if cursor is None:
            continue
        if cursor.last_seen_s + settings.forget_s <= now:
            job_closed(state, JobClosed(name, rank), now)
            continue
        if cursor.last_seen_s + settings.lease_s <= now:
            cursor.lapsed = True
            state.dequeue(cursor)
            state.set_window_bytes(cursor, 0)
        again_s = settings.forget_s if cursor.lapsed else settings.lease_s
        state.leases.add(cursor.key, cursor.last_seen_s + again_s)


def remove_unused(state: State, now: float) -> None:
    """Remove empty sample sets that no rank needs, and datasets found unused twice in a row."""
    misses = state.misses.by_set(now)
    for key, samples in list(state.sets.items()):
        if samples.idle and key not in misses and not state.need(key):
            del state.sets[key]
    kept = {key.dataset for key in state.sets}
    kept.update(request.order.samples.dataset for request in state.requests.values())
    unused = {name for name in state.datasets if name not in kept and not state.is_read(name)}
    for dataset in unused & state.unused_datasets:
        del state.datasets[dataset]
        state.ineligible.pop(dataset, None)
        state.stalls.works.pop(dataset, None)
    state.unused_datasets = unused


_NOT_REQUESTED = frozenset({SampleState.UNKNOWN, SampleState.CHECKING, SampleState.ABSENT})
_WHERE = {RequestKind.RESTORE: "from the store, ", RequestKind.SAVE: "into the store, "}


def history(state: State, name: str, rank: int, epoch: int, position: int) -> list[tuple[float, str]]:
    """Return a batch's recent history as times and descriptions, oldest first."""
    cursor = state.cursor(name, rank)
    if cursor is None:
        return []
    job = cursor.job
    place, key = job.absolute(epoch, position), job.samples_of(epoch)
    events = [(note.at_s, note.text) for note in cursor.notes if note.start <= place < note.stop]
    is_of_batch = np.zeros(state.datasets[key.dataset].size, dtype=np.bool_)
    is_of_batch[job.plan.batch(epoch, position, rank).indices] = True
    for request in state.recent_requests:
        order = request.order
        count = np.count_nonzero(is_of_batch[order.indices]) if order.samples == key else 0
        if not count:
            continue
        racing = f", racing request {order.hedge_of}" if order.hedge_of is not None else ""
        number, source, account = order.request_id, _WHERE.get(order.kind, ""), f"charged to {order.job}"
        text = f"request {number} for {count} of its samples, {source}{account}{racing}"
        events.append((request.sent_s, text))
        if request.ended_s is not None:
            events.append((request.ended_s, f"request {number} ended: {request.result}"))
    return sorted(events, key=lambda entry: entry[0])


def _begin_stall(state: State, place: BatchPlace, samples: SampleSet, indices: Ints, now: float) -> None:
    """Record the likely cause of a batch's first miss."""
    cursor = state.cursor(place.job, place.rank)
    if place not in state.stalls.waits and indices.size and cursor is not None:
        cause = _cause_from_states(state, cursor, samples, indices, now)
        state.stalls.begin(place, cause, cursor.job.dataset)


def _end_stall(state: State, place: BatchPlace, job: Job, wait_us: int, now: float) -> None:
    first = state.stalls.waits.pop(place, None)
    cause = Cause.UNKNOWN
    if first is not None:
        cause = first.cause or _bottleneck(state, job, first.work, now)
    job.stalls.add(Stall(place.rank, place.epoch, place.position, cause, wait_us))


def _cause_from_states(
    state: State, cursor: Cursor, samples: SampleSet, indices: Ints, now: float
) -> Cause | None:
    """Infer a cause from the samples' states. Return ``None`` if it depends on the functions' work."""
    counts = np.bincount(samples.state[indices], minlength=len(SampleState))
    commonest = SampleState(int(counts.argmax()))
    if commonest is SampleState.WAITING:
        return Cause.LIMITS if _is_limited(state, cursor.job) else Cause.STORAGE
    from_store = Cause.STORAGE if waits_for_the_store(state, samples, indices, now) else None
    if commonest not in _NOT_REQUESTED:  # also if a record arrived after the reader's attempt
        return from_store
    if cursor.fresh:
        return Cause.STARTING
    if state.ledger.spending is not Spending.FREELY or state.turn(cursor.job.team) is None:
        return Cause.LIMITS
    if samples.dropped[indices].any() or cursor.key in state.room_search.waiting:
        return Cause.CACHE
    idle = state.eligible_for(cursor.job.dataset).idle(now) > 0
    return from_store or (Cause.STARTING if idle else None)


def _bottleneck(state: State, job: Job, before: Work, now: float) -> Cause:
    whole = state.stalls.work_for(job.dataset)
    done = whole.since(before)
    if not whole.results or done.cold_starts * 2 > done.results:
        return Cause.STARTING
    if state.thrash.thrashing:
        return Cause.CACHE
    if done.throttled or _is_limited(state, job):
        return Cause.LIMITS
    if done.store_us > done.fetch_us + done.decode_us:
        return Cause.STORAGE
    work = done if done.fetch_us + done.decode_us else whole
    return Cause.STORAGE if work.waits_for_the_source else Cause.DECODING


def _is_limited(state: State, job: Job) -> bool:
    executors = state.eligible_for(job.dataset).executors
    return any(executor.concurrency.limit < executor.concurrency.capacity for executor in executors)
