"""The position and pending batches of one iteration over an epoch, without I/O or threads."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.super_wire.batch_ref import BatchRef

# Request a page once there is room for this many batches.
PAGE_BATCHES = 32
# Maximum number of batches received but not delivered.
BUFFER_BATCHES = 2 * PAGE_BATCHES


@dataclass(frozen=True, slots=True)
class PlanPosition:
    """A position in an epoch. Batches before ``position`` and in ``delivered_ahead`` have been delivered."""

    epoch: int = 0
    position: int = 0
    delivered_ahead: tuple[int, ...] = ()


class Delivered:
    """A record of the batches delivered since ``start``."""

    def __init__(self, start: PlanPosition, *, reorder: int = 1) -> None:
        self.start = start
        self.count = 0
        self._span = max([reorder, *(position - start.position + 1 for position in start.delivered_ahead)])
        # In order, a count suffices. Otherwise keep the positions, 8 bytes each.
        self._order = array("Q") if self._span > 1 else None

    def add(self, position: int) -> None:
        """Record the delivery of the batch at ``position``."""
        self.count += 1
        if self._order is not None:
            self._order.append(position)

    def position_after(self, count: int | None = None) -> PlanPosition:
        """Return the plan position after the first ``count`` batches, by default after all of them."""
        count = self.count if count is None else count
        start = self.start
        if self._order is None:
            return PlanPosition(start.epoch, start.position + count)
        # Older batches are all below the head, since no batch is span or more positions early.
        known = {*start.delivered_ahead, *self._order[max(0, count - 2 * self._span) : count]}
        done = count + len(start.delivered_ahead)
        head = max(start.position, start.position + done - self._span)
        while head in known:
            head += 1
        ahead = sorted(position for position in known if position > head)
        return PlanPosition(start.epoch, head, tuple(ahead))


class PrefetchBuffer:
    """The batches that an iteration has received but not delivered.

    The head (the first undelivered batch) is next. If ``reorder`` is above 1, another of the first
    ``reorder`` batches may overtake it once all samples of that batch are in the cache or have failed.
    """

    def __init__(self, start: PlanPosition, end: int, *, reorder: int = 1) -> None:
        self.epoch = start.epoch
        self.head = self.tail = start.position  # the first position not delivered, not received
        self.end = end  # batches per epoch
        self.delivered = Delivered(start, reorder=reorder)  # may outlive the buffer
        # The last page's error, to be raised once by the next call.
        self.error: Exception | None = None
        # The earliest monotonic times of the next page request and the next status refresh.
        self.not_before_s = self.refresh_at_s = 0.0
        self._reorder = reorder
        self._waiting: dict[int, BatchRef] = {}
        self._ready: set[int] = set()  # positions in _waiting
        self._delivered_before = frozenset(start.delivered_ahead)  # by the iteration that this one resumes

    def __len__(self) -> int:
        """Return the number of received batches waiting for delivery."""
        return len(self._waiting)

    @property
    def exhausted(self) -> bool:
        """Return whether the whole epoch has been delivered."""
        return self.head >= self.end

    def add(self, batch: BatchRef, *, ready: bool) -> None:
        """Add the batch at ``tail``, unless it was delivered before.

        ``ready`` means that a reader should find all of the batch's samples immediately. Raises
        ``ValueError`` if the batch has a different position.
        """
        if batch.position != self.tail or self.tail >= self.end:
            raise ValueError(f"batch {batch.position} arrived instead of batch {self.tail} of {self.end}")
        if self.tail not in self._delivered_before:
            self._waiting[self.tail] = batch
            if ready:
                self._ready.add(self.tail)
        self.tail += 1
        self._advance_head()

    def mark_ready(self, position: int) -> None:
        """Record that all samples of a batch are now in the cache or have failed."""
        if position in self._waiting:
            self._ready.add(position)

    def take(self) -> BatchRef | None:
        """Remove and return the next batch, or return ``None`` if none is waiting."""
        if not self._waiting:
            return None
        position = self.head
        if self._reorder > 1:
            position = next((ready for ready in self.reorderable() if ready in self._ready), position)
        self._ready.discard(position)
        batch = self._waiting.pop(position)
        self._advance_head()
        self.delivered.add(position)
        return batch

    def reorderable(self) -> range:
        """Return the positions that the next batch may come from."""
        return range(self.head, min(self.head + self._reorder, self.tail))

    def needs_statuses(self) -> bool:
        """Return whether newer statuses could change the next batch."""
        waiting = self.head in self._waiting and self.head not in self._ready
        return self.error is None and self._reorder > 1 and waiting

    def needs_page(self) -> bool:
        """Return whether batches remain to be requested and there is room for a page."""
        return self.error is None and self.tail < self.end and self.room() >= PAGE_BATCHES

    def room(self) -> int:
        """Return how many more batches fit."""
        return BUFFER_BATCHES - len(self._waiting)

    def _advance_head(self) -> None:
        while self.head < self.tail and self.head not in self._waiting:
            self.head += 1


class Cursor:
    """The start of a sampler's next iteration, which each new iteration advances. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = PlanPosition()
        self.requested_epoch: int | None = None  # by set_epoch, since the last iteration began

    def peek(self) -> PlanPosition:
        """Return the start of the next iteration without beginning it."""
        return self._next

    def take(self) -> PlanPosition:
        """Begin an iteration and return its start."""
        with self._lock:
            taken, self._next = self._next, PlanPosition(self._next.epoch + 1)
            self.requested_epoch = None
            return taken

    def skip_past(self, epoch: int) -> None:
        """Begin an iteration of ``epoch``. The next iteration gets a later epoch."""
        with self._lock:
            self.requested_epoch = None
            if self._next.epoch <= epoch:
                self._next = PlanPosition(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. A position already set for that epoch is kept."""
        with self._lock:
            self.requested_epoch = epoch
            if epoch != self._next.epoch:
                self._next = PlanPosition(epoch)

    def move(self, start: PlanPosition) -> None:
        """Set the start of the next iteration."""
        with self._lock:
            self._next = start
