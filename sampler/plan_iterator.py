"""``PlanIterator``: one pass over a rank's batches of an epoch, lazy until its first item is asked for.

DataLoader makes an iterator that it never uses (with ``batch_size=None``), so making one has no effect.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from superdl.sampler.prefetch import PlanPosition
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.sampler.checkpoint import Checkpoint
    from superdl.sampler.pages import Pager
    from superdl.sampler.prefetch import PrefetchBuffer

__all__ = ["Cursor", "PlanIterator"]

_LOG = logging.getLogger(__name__)


class Cursor:
    """Where a sampler's next iteration starts; one that begins makes the following epoch the next.

    Thread-safe. ``named``: the epoch set since an iteration began last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = PlanPosition()
        self.named: int | None = None

    def peek(self) -> PlanPosition:
        """Where the next iteration will start, which does not begin by that."""
        return self._next

    def take(self) -> PlanPosition:
        """Where an iteration starts that begins now."""
        with self._lock:
            taken, self._next = self._next, PlanPosition(self._next.epoch + 1)
            self.named = None
            return taken

    def pass_over(self, epoch: int) -> None:
        """An iteration of ``epoch`` begins that has a place of its own: a later epoch is the next."""
        with self._lock:
            self.named = None
            if self._next.epoch <= epoch:
                self._next = PlanPosition(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Name the next epoch; a place already set in that same epoch stays."""
        with self._lock:
            self.named = epoch
            if epoch != self._next.epoch:
                self._next = PlanPosition(epoch)

    def move(self, place: PlanPosition) -> None:
        """Let the next iteration start at ``place``."""
        with self._lock:
            self._next = place


class PlanIterator(Iterator[BatchRef]):
    """Yields ``BatchRef``, in plan order unless the sampler, its owner, was made with ``in_order=False``."""

    def __init__(self, cursor: Cursor, pager: Pager, checkpoint: Checkpoint, owner: Any) -> None:
        self._cursor = cursor
        self._pager = pager
        self._checkpoint = checkpoint
        self._owner = owner
        self._pid = os.getpid()
        self._loaded: PlanPosition | None = None
        self._buffer: PrefetchBuffer | None = None
        self._warned = False

    @property
    def epoch(self) -> int:
        """The epoch of this pass; before its first batch, the one it would have if it began now."""
        return self._place().epoch

    @property
    def position(self) -> int:
        """The first position of the epoch that was not given out yet."""
        return self._place().position

    def _place(self) -> PlanPosition:
        if self._buffer is not None:
            return self._buffer.delivered.place()
        return self._loaded or self._cursor.peek()

    def state_dict(self) -> dict[str, Any]:
        """Where this pass stands, as a small dict that JSON can hold."""
        return self._checkpoint.state_of(self._place())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the pass that gave ``state``, whatever this one has given out; takes constant time.

        The page of the plan there is asked for in the background. When the first batch is asked for, a later
        epoch than the state's becomes the sampler's next one.

        Raises:
            ConfigError: the state belongs to another plan; the message names what differs.
            UsageError: this is not the process that made the sampler, or the sampler is closed.
        """
        self._check_process()
        place = self._checkpoint.place_in(state)
        self._pager.prepare(place)
        self._buffer, self._loaded = None, place

    def __iter__(self) -> PlanIterator:
        return self

    def __next__(self) -> BatchRef:
        self._check_process()
        # A DataLoader asks once for each batch that it receives, also after the end of the plan.
        self._owner.dataset.name_bad_samples()
        if self._buffer is None:
            place = self._begin()
            try:
                self._owner.begin_epoch(place.epoch, place.position)
            except BaseException:
                if self._loaded is None:
                    self._cursor.move(place)  # the next attempt begins the same epoch
                raise
            self._buffer = self._pager.begin(place)
        batch = self._pager.take(self._buffer)
        if batch is None:
            raise StopIteration
        if not self._warned:
            self._warn_of_another_epoch(batch.epoch)
        return batch

    def _begin(self) -> PlanPosition:
        if self._loaded is None:
            return self._cursor.take()
        self._cursor.pass_over(self._loaded.epoch)
        return self._loaded

    def _warn_of_another_epoch(self, epoch: int) -> None:
        """Tell once who set the epoch too late for an iteration that has begun, and goes on as it began."""
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
