"""The position and pending batches of one pass over an epoch. No I/O, no threads."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.super_wire.batch_ref import BatchRef

# A page is requested once there is room for this many batches.
PAGE_BATCHES = 32
# Maximum number of batches that an iteration has received but not delivered.
BUFFER_BATCHES = 2 * PAGE_BATCHES


@dataclass(frozen=True, slots=True)
class PlanPosition:
    """A position in an epoch. Batches before ``position`` and in ``delivered_ahead`` have been delivered."""

    epoch: int = 0
    position: int = 0
    delivered_ahead: tuple[int, ...] = ()


class Delivered:
    """The batches delivered since ``start``, and the position after any number of them."""

    def __init__(self, start: PlanPosition, *, reorder: int = 1) -> None:
        self.start = start
        self.count = 0
        self._span = max([reorder, *(position - start.position + 1 for position in start.delivered_ahead)])
        # In order, a count suffices. Otherwise the positions are kept, 8 bytes each.
        self._order = array("Q") if self._span > 1 else None

    def add(self, position: int) -> None:
        """Record that the batch at ``position`` was delivered."""
        self.count += 1
        if self._order is not None:
            self._order.append(position)

    def position_after(self, count: int | None = None) -> PlanPosition:
        """Return the position after the first ``count`` batches. ``None`` means all of them."""
        count = self.count if count is None else count
        start = self.start
        if self._order is None:
            return PlanPosition(start.epoch, start.position + count)
        # Older batches are all below the head, since none is span or more positions early.
        known = {*start.delivered_ahead, *self._order[max(0, count - 2 * self._span) : count]}
        done = count + len(start.delivered_ahead)
        head = max(start.position, start.position + done - self._span)
        while head in known:
            head += 1
        ahead = sorted(position for position in known if position > head)
        return PlanPosition(start.epoch, head, tuple(ahead))


class PrefetchBuffer:
    """Batches that an iteration has received but not delivered.

    In order, the next batch is the head. With ``reorder`` above 1, a batch whose samples are all in the
    cache (or failed) may overtake a waiting head, if it is among the first ``reorder`` positions.
    """

    def __init__(self, start: PlanPosition, end: int, *, reorder: int = 1) -> None:
        self.epoch = start.epoch
        self.head = self.tail = start.position  # first positions not delivered, not received
        self.end = end  # batches in the epoch
        self.delivered = Delivered(start, reorder=reorder)  # may outlive the buffer
        # The last page's error, raised by the next call and then cleared.
        self.error: Exception | None = None
        # Monotonic times: the earliest for the next page, and that of the next status refresh.
        self.not_before_s = self.refresh_at_s = 0.0
        self._reorder = reorder
        self._waiting: dict[int, BatchRef] = {}
        self._ready: set[int] = set()  # among the waiting ones
        # by the earlier iteration that this one resumes
        self._delivered_before = frozenset(start.delivered_ahead)

    def __len__(self) -> int:
        """Return the number of batches ready to be delivered."""
        return len(self._waiting)

    @property
    def exhausted(self) -> bool:
        """Return whether the whole epoch was delivered."""
        return self.head >= self.end

    def add(self, batch: BatchRef, *, ready: bool) -> None:
        """Add the batch at ``tail``, unless it was delivered before. Raises ``ValueError`` for any other.

        ``ready`` means that, as far as is known, a reader would find all of its samples immediately.
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
        """Record a newer status: all samples of that batch are in the cache, or failed."""
        if position in self._waiting:
            self._ready.add(position)

    def take(self) -> BatchRef | None:
        """Return the next batch to deliver, or ``None`` if there is none."""
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
        """Return the positions from which the next batch is chosen."""
        return range(self.head, min(self.head + self._reorder, self.tail))

    def needs_statuses(self) -> bool:
        """Return whether newer statuses could change which batch is next."""
        waiting = self.head in self._waiting and self.head not in self._ready
        return self.error is None and self._reorder > 1 and waiting

    def needs_page(self) -> bool:
        """Return whether there is more to request and room for it."""
        return self.error is None and self.tail < self.end and self.room() >= PAGE_BATCHES

    def room(self) -> int:
        """Return the number of batches that may be requested."""
        return BUFFER_BATCHES - len(self._waiting)

    def _advance_head(self) -> None:
        while self.head < self.tail and self.head not in self._waiting:
            self.head += 1


class Cursor:
    """The start of a sampler's next iteration. Each iteration that begins advances it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = PlanPosition()
        self.named: int | None = None  # the epoch set since the last iteration began

    def peek(self) -> PlanPosition:
        """Return the start of the next iteration without beginning it."""
        return self._next

    def take(self) -> PlanPosition:
        """Return the start of an iteration that begins now."""
        with self._lock:
            taken, self._next = self._next, PlanPosition(self._next.epoch + 1)
            self.named = None
            return taken

    def skip_past(self, epoch: int) -> None:
        """Record that an iteration of ``epoch`` is starting, so that the next iteration uses a later
        epoch.
        """
        with self._lock:
            self.named = None
            if self._next.epoch <= epoch:
                self._next = PlanPosition(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. A position already set in that epoch is kept."""
        with self._lock:
            self.named = epoch
            if epoch != self._next.epoch:
                self._next = PlanPosition(epoch)

    def move(self, start: PlanPosition) -> None:
        """Make the next iteration begin at ``start``."""
        with self._lock:
            self._next = start
