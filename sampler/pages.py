"""The thread that fetches a sampler's pages ahead of the training loop."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from superdl.sampler.prefetch import PrefetchBuffer
from superdl.sampler.rpc.client import CallStoppedError, Patience
from superdl.super_wire.batch_ref import BatchRef, Places
from superdl.super_wire.errors import CoordinatorError, SuperError, UsageError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.labels import unpack_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from superdl.sampler.prefetch import Delivered, PlanPosition
    from superdl.sampler.rpc.client import Client
    from superdl.sampler.session import Session
    from superdl.super_wire.batch_ref import DatasetBinding

_LOG = logging.getLogger(__name__)

# Number of positions from which in_order=False chooses the next batch.
REORDER_BATCHES = 8

HEARTBEAT_S = 2.0
REFRESH_S = 0.25
# Wait after a state was loaded, since StatefulDataLoader loads two in a row.
PREPARE_DELAY_S = 0.05

_ONE_TRY = Patience(attempts=1, total_s=5.0, deadline_s=5.0)
_JOIN_S = 5.0
_THREAD_CHECK_S = 5.0


class Pager:
    """The thread that fetches pages for all iterations of a sampler. It starts with the first iteration."""

    def __init__(
        self,
        session: Session,
        client: Client,
        *,
        rank: int,
        in_order: bool,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._session = session
        self._client = client
        self._rank = rank
        self._reorder = 1 if in_order else REORDER_BATCHES
        self._heartbeat_s = heartbeat_s
        self._wake = threading.Condition()
        self._stopped = threading.Event()
        # Weak references, so that an abandoned iteration frees its batches.
        self._buffers: list[weakref.ref[PrefetchBuffer]] = []
        self._thread: threading.Thread | None = None
        self._called_s = 0.0
        self._progress = (0, 0)  # epoch and first undelivered position of the latest iteration
        self._delivered: Delivered | None = None  # of the latest iteration
        self._prepared: tuple[PlanPosition, PrefetchBuffer] | None = None  # for a future iteration
        self._unanswered = False
        self.pid = os.getpid()

    def prepare(self, start: PlanPosition) -> None:
        """Request the first page of a future iteration that begins at ``start``, without waiting."""
        buffer = PrefetchBuffer(start, self._session.batches_per_epoch, reorder=self._reorder)
        buffer.not_before_s = time.monotonic() + PREPARE_DELAY_S
        with self._wake:
            self._check_open()
            self._delivered = None
            if self._session.is_ordered:  # the order is drawn when the epoch begins
                return
            self._prepared = start, buffer
            self._add(buffer, start)
            if buffer.exhausted:
                self._called_s = 0.0  # a heartbeat reports this rank's position

    def begin(self, start: PlanPosition) -> PrefetchBuffer:
        """Begin an iteration at ``start``, using the prepared buffer if there is one."""
        with self._wake:
            self._check_open()
            prepared, self._prepared = self._prepared, None
            if prepared is not None and prepared[0] == start:
                buffer = prepared[1]
                buffer.not_before_s, buffer.error = 0.0, None  # retry after an early error
            else:
                buffer = PrefetchBuffer(start, self._session.batches_per_epoch, reorder=self._reorder)
            self._delivered = buffer.delivered
            self._add(buffer, start)
        return buffer

    def _add(self, buffer: PrefetchBuffer, start: PlanPosition) -> None:
        others = (kept for kept in self._buffers if kept() not in {None, buffer})
        self._buffers = [weakref.ref(buffer), *others]  # serve the latest iteration first
        self._progress = start.epoch, start.position
        if self._thread is None:
            self._called_s = time.monotonic()  # opening the job was its first heartbeat
            self._thread = threading.Thread(target=self._run, name="superdl-pages", daemon=True)
            self._thread.start()
        self._wake.notify_all()

    def delivered(self) -> Delivered | None:
        """Return the batches delivered by the latest iteration, or ``None`` if none has begun."""
        with self._wake:
            return self._delivered

    def take(self, buffer: PrefetchBuffer) -> BatchRef | None:
        """Wait for the buffer's next batch and return it, or ``None`` at the end of the epoch.

        Raises the error of a failed page. The next call retries the page.
        """
        with self._wake:
            while True:
                self._check_open()
                batch = buffer.take()
                if batch is not None:
                    self._progress = (buffer.epoch, buffer.head)
                    if buffer.needs_statuses():
                        buffer.refresh_at_s = time.monotonic()
                        self._wake.notify_all()
                    elif buffer.needs_page():
                        self._wake.notify_all()
                    return batch
                if buffer.exhausted:
                    return None
                error, buffer.error = buffer.error, None
                if error is not None:
                    self._wake.notify_all()
                    raise error
                # The thread delivers a page or an error in bounded time.
                begun_s = time.perf_counter()
                if not self._wake.wait(_THREAD_CHECK_S) and not (self._thread and self._thread.is_alive()):
                    raise CoordinatorError(
                        "the sampler's background thread has died; its traceback was printed earlier"
                    )
                self._session.page_calls.status_wait_s += time.perf_counter() - begun_s

    def stop(self) -> None:
        """Stop the thread and cancel its current call. Idempotent."""
        with self._wake:
            self._stopped.set()
            self._wake.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._client.cut()  # calls of other samplers are retried
            thread.join(_JOIN_S)

    def stop_soon(self) -> None:
        """Signal the thread to stop, without waiting for it. For finalizers."""
        if self.pid != os.getpid():
            return  # a forked copy has no thread, and its lock may be held
        self._stopped.set()
        with self._wake:
            self._wake.notify_all()

    def _check_open(self) -> None:
        if self._stopped.is_set():
            raise UsageError("this sampler is closed. Create a new one to iterate again")

    def _run(self) -> None:
        # The channel stays open while the thread lives.
        with self._client.hold(), contextlib.suppress(CallStoppedError):
            while (task := self._next_task()) is not None:
                task()
                del task  # it would keep an abandoned iteration's buffer alive
                self._called_s = time.monotonic()

    def _next_task(self) -> Callable[[], None] | None:
        with self._wake:
            while not self._stopped.is_set():
                task, wait_s = self._due(time.monotonic())
                if task is not None:
                    return task
                self._wake.wait(wait_s)
            return None

    def _due(self, now_s: float) -> tuple[Callable[[], None] | None, float]:
        """Return the task that is due, if any, and how many seconds to wait if there is none."""
        due_s = self._called_s + self._heartbeat_s
        for kept in self._buffers:
            buffer = kept()
            if buffer is None:
                continue
            if buffer.not_before_s > now_s:
                due_s = min(due_s, buffer.not_before_s)
                continue
            if buffer.needs_page():
                return partial(self._fetch, buffer), 0.0
            if buffer.needs_statuses():
                if buffer.refresh_at_s <= now_s:
                    return partial(self._refresh, buffer), 0.0
                due_s = min(due_s, buffer.refresh_at_s)
        # Heartbeats renew the job's lease, and reopen the job at a restarted coordinator while workers
        # still read.
        if self._called_s + self._heartbeat_s <= now_s:
            return self._heartbeat, 0.0
        return None, due_s - now_s

    def _fetch(self, buffer: PrefetchBuffer) -> None:
        with self._wake:
            position, count, head = buffer.tail, buffer.room(), buffer.head
        page: Any = None
        error: Exception | None = None
        # Release the lock, so that the training loop can take batches meanwhile.
        try:
            page = self._session.pages_from(
                buffer.epoch, position, count, yielded=head, with_keys=True, stopped=self._stopped
            )
        except Exception as failure:  # noqa: BLE001  # raised in the training loop
            error = failure
        with self._wake:
            buffer.error = error or self._fill(buffer, page)
            buffer.refresh_at_s = time.monotonic() + REFRESH_S
            self._wake.notify_all()

    def _fill(self, buffer: PrefetchBuffer, page: Any) -> CoordinatorError | None:
        session, rank, epoch = self._session, self._rank, buffer.epoch
        try:
            for message in page.batches:
                batch = planned_batch(
                    message,
                    page.packs,
                    session.binding,
                    session.job,
                    rank,
                    epoch,
                    session.seed,
                    may_be_empty=session.may_be_empty,
                    alone=session.alone,
                )
                buffer.add(batch, ready=is_ready(message))
            reason = "" if page.batches else "an empty page"
        except ValueError as wrong:
            reason = str(wrong)
        if not reason:
            return None
        return CoordinatorError(
            f"the coordinator at {self._client.address} sent an invalid page for job {session.job}, "
            f"rank {rank}, epoch {epoch}, position {buffer.tail}: {reason}"
        )

    def _refresh(self, buffer: PrefetchBuffer) -> None:
        with self._wake:
            head, count = buffer.head, len(buffer.reorderable())
        try:
            batches = self._statuses(buffer.epoch, head, count)
        except SuperError as error:  # statuses are hints; the next page will raise the error
            _LOG.debug("no statuses for epoch %d from position %d on: %s", buffer.epoch, head, error)
            batches = ()
        with self._wake:
            for batch in batches:
                if is_ready(batch):
                    buffer.mark_ready(batch.position)
            buffer.refresh_at_s = time.monotonic() + REFRESH_S

    def _heartbeat(self) -> None:
        epoch, head = self._progress
        if self._session.has_begun_another(epoch):
            return
        try:
            self._statuses(epoch, head, 1)
            self._unanswered = False
        except SuperError as error:
            if not self._unanswered:
                _LOG.warning("the coordinator is not responding to the sampler's heartbeat: %s", error)
            self._unanswered = True

    def _statuses(self, epoch: int, head: int, count: int) -> Sequence[Any]:
        """Fetch ``count`` ``Batch`` messages, starting at ``head`` and without keys, in a single attempt."""
        page = self._session.pages_from(
            epoch,
            head,
            count,
            patience=_ONE_TRY,
            yielded=head,
            with_keys=False,
            stopped=self._stopped,
        )
        batches: Sequence[Any] = page.batches
        return batches


def planned_batch(
    batch: Any,
    packs: Sequence[str],
    binding: DatasetBinding,
    job: str,
    rank: int,
    epoch: int,
    seed: int = 0,
    *,
    may_be_empty: bool = False,
    alone: bool = False,
) -> BatchRef:
    """Convert a ``Batch`` message from a page with ``packs``. Raises ``ValueError`` if it is invalid."""
    size, rest = divmod(len(batch.sample_ids), ID_BYTES)
    for field, length, is_valid in (
        ("bytes of sample ids", len(batch.sample_ids), not rest and (size > 0 or may_be_empty)),
        ("bytes of a batch id", len(batch.batch_id), len(batch.batch_id) == ID_BYTES),
        ("bytes of padding", len(batch.padding), len(batch.padding) in {0, size}),
        ("bytes of repetitions", len(batch.repetitions), len(batch.repetitions) in {0, 4 * size}),
        ("keys", len(batch.keys), len(batch.keys) in {0, size}),
        ("bytes of pack numbers", len(batch.pack_of), len(batch.pack_of) in {0, 4 * size}),
        ("bytes of offsets", len(batch.offsets), len(batch.offsets) == 2 * len(batch.pack_of)),
        ("bytes of lengths", len(batch.lengths), len(batch.lengths) == len(batch.pack_of)),
    ):
        if not is_valid:
            raise ValueError(f"batch {batch.position} with {size} samples must not have {length} {field}")
    places = None
    try:
        unpack_labels(batch.labels, binding.label_dtype, size)
        if batch.pack_of and binding.store:
            places = Places.of_page(packs, batch.pack_of, batch.offsets, batch.lengths)
    except ValueError as error:
        raise ValueError(f"batch {batch.position}: {error}") from error
    return BatchRef(
        dataset_id=binding.dataset_id,
        job=job,
        rank=rank,
        epoch=epoch,
        position=batch.position,
        batch_id=batch.batch_id,
        sample_ids=batch.sample_ids,
        labels=batch.labels,
        label_dtype=binding.label_dtype,
        padding=batch.padding,
        keys=tuple(batch.keys),
        cache=binding.cache,
        store=binding.store,
        places=places,
        seed=seed,
        repetitions=batch.repetitions,
        alone=alone,
    )


def is_ready(batch: Any) -> bool:
    """Return whether a reader would find each sample of a ``Batch`` message, or its tombstone."""
    return bool((batch.resident + batch.failed) * ID_BYTES >= len(batch.sample_ids))
