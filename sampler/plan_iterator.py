"""One pass over a rank's batches of an epoch: its place, the batches that wait, and its iterator."""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.sampler.parts import Parts

# A page is requested once there is room for this many batches.
PAGE_BATCHES = 32
# Maximum number of batches that an iteration has received but not delivered.
BUFFER_BATCHES = 2 * PAGE_BATCHES


@dataclass(frozen=True, slots=True)
class PlanPosition:
    """A place in an epoch: all before ``position``, and ``delivered_ahead``, are delivered."""

    epoch: int = 0
    position: int = 0
    delivered_ahead: tuple[int, ...] = ()


class Delivered:
    """The batches delivered since ``start``, and the place after any number of them."""

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

    def place(self, count: int | None = None) -> PlanPosition:
        """Return the place after the first ``count`` batches (``None``: all)."""
        count = self.count if count is None else count
        start = self.start
        if self._order is None:
            return PlanPosition(start.epoch, start.position + count)
        # Older batches are all below the head, since none goes span or more positions early.
        known = {*start.delivered_ahead, *self._order[max(0, count - 2 * self._span) : count]}
        gone = count + len(start.delivered_ahead)
        head = max(start.position, start.position + gone - self._span)
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
        # Of the last page; raised by the next demand, and then cleared.
        self.error: Exception | None = None
        # On the monotonic clock: no page is requested before, and statuses are refreshed then.
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
        """Add the batch at ``tail``, unless it was delivered before; ``ValueError`` if it is another one.

        ``ready``: as far as is known, a reader would find all of its samples at once.
        """
        if batch.position != self.tail or self.tail >= self.end:
            raise ValueError(f"batch {batch.position} came where {self.tail} of {self.end} was next")
        if self.tail not in self._delivered_before:
            self._waiting[self.tail] = batch
            if ready:
                self._ready.add(self.tail)
        self.tail += 1
        self._pass_delivered()

    def mark_ready(self, position: int) -> None:
        """Apply a newer status: all samples of that batch are in the cache, or failed."""
        if position in self._waiting:
            self._ready.add(position)

    def take(self) -> BatchRef | None:
        """Return the next batch to deliver, or ``None`` if there is none."""
        if not self._waiting:
            return None
        position = next((place for place in self.reorderable() if place in self._ready), self.head)
        self._ready.discard(position)
        batch = self._waiting.pop(position)
        self._pass_delivered()
        self.delivered.add(position)
        return batch

    def reorderable(self) -> range:
        """Return the positions from which the next batch is chosen."""
        return range(self.head, min(self.head + self._reorder, self.tail))

    def wants_statuses(self) -> bool:
        """Return whether newer statuses could change which batch is next."""
        waits = self.head in self._waiting and self.head not in self._ready
        return self.error is None and self._reorder > 1 and waits

    def wants_page(self) -> bool:
        """Return whether there is more to request and room for it."""
        return self.error is None and self.tail < self.end and self.room() >= PAGE_BATCHES

    def room(self) -> int:
        """Return the number of batches that may be requested."""
        return BUFFER_BATCHES - len(self._waiting)

    def _pass_delivered(self) -> None:
        while self.head < self.tail and self.head not in self._waiting:
            self.head += 1


_LOG = logging.getLogger(__name__)


class Cursor:
    """The start of a sampler's next iteration, moved on by each that begins. Thread-safe."""

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

    def pass_over(self, epoch: int) -> None:
        """Note that an iteration of ``epoch`` begins; the next epoch is a later one."""
        with self._lock:
            self.named = None
            if self._next.epoch <= epoch:
                self._next = PlanPosition(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch; a place already set in that epoch is kept."""
        with self._lock:
            self.named = epoch
            if epoch != self._next.epoch:
                self._next = PlanPosition(epoch)

    def move(self, place: PlanPosition) -> None:
        """Make the next iteration start at ``place``."""
        with self._lock:
            self._next = place


class PlanIterator(Iterator[BatchRef]):
    """Iterator over ``BatchRef``, in plan order unless its sampler was created with ``in_order=False``.

    For a mix it yields ``MixedRef``, each made of one batch per dataset.
    """

    def __init__(self, cursor: Cursor, parts: Parts) -> None:
        self._cursor = cursor
        self._parts = parts
        # With batch_size=None, DataLoader creates an iterator that it never uses, so nothing begins here.
        self._pid = os.getpid()
        self._loaded: PlanPosition | None = None
        self._buffers: list[PrefetchBuffer] = []  # of each part, once the pass has begun
        self._taken: list[BatchRef] = []  # of the next batch, until each part has given its own
        self._warned = False

    @property
    def epoch(self) -> int:
        """Return this pass's epoch; before its first batch, the one if it began now."""
        return self._place().epoch

    @property
    def position(self) -> int:
        """Return the first position of the epoch that was not delivered yet."""
        return self._place().position

    def _place(self) -> PlanPosition:
        if self._buffers:  # of a batch that is not complete, the last part has delivered nothing
            return self._buffers[-1].delivered.place()
        return self._loaded or self._cursor.peek()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass as a small JSON-compatible dict."""
        return self._parts.state_of(self._place())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the pass that produced ``state``, whatever this one has delivered; takes constant time.

        The page there is requested in the background. With the first batch, the sampler's next epoch moves
        past that of the state.

        Raises:
            ConfigError: the state belongs to another plan; the message names the difference.
            UsageError: this is not the process that made the sampler, or the sampler is closed.
        """
        self._check_process()
        place = self._parts.place_in(state)
        self._parts.prepare(place)
        self._buffers, self._taken, self._loaded = [], [], place

    def __iter__(self) -> PlanIterator:
        return self

    def __next__(self) -> BatchRef:
        self._check_process()
        # A DataLoader requests batches also after the end of the plan.
        for part in self._parts:
            part.dataset.name_bad_samples()
        if not self._buffers:
            self._begin()
        while len(self._taken) < len(self._parts):  # after an error, the next call goes on
            number = len(self._taken)
            batch = self._parts[number].pager.take(self._buffers[number])
            if batch is None:
                raise StopIteration
            self._taken.append(batch)
        taken, self._taken = self._taken, []
        if not self._warned:
            self._warn_of_another_epoch(taken[0].epoch)
        return self._parts.joined(taken)  # type: ignore[no-any-return]  # a mix gives MixedRef

    def _begin(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            self._cursor.pass_over(loaded.epoch)
        place = loaded or self._cursor.take()
        try:
            self._buffers = [part.begin(place) for part in self._parts]
        except BaseException:
            if loaded is None:
                self._cursor.move(place)  # the next attempt begins the same epoch
            raise

    def _warn_of_another_epoch(self, epoch: int) -> None:
        """Warn once if the epoch was set after an iteration had begun."""
        named = self._cursor.named
        if named is None or named == epoch:
            return
        self._warned = True
        _LOG.warning(
            "set_epoch(%d) was called while an iteration of epoch %d goes on: it stays in that epoch. A "
            "DataLoader with workers begins as soon as iter() makes its iterator, and set_epoch comes before "
            "that (where Lightning goes on from an epoch's end it does not: docs/frameworks.md)",
            named,
            epoch,
        )

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise UsageError(
                "an iterator of a SuperSampler stays in the process that made it: make sampler and iterator "
                "there"
            )

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "an iterator of a SuperSampler holds a thread and cannot be pickled; its batches can"
        )
