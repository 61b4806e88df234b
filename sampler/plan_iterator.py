"""``PlanIterator``: one pass over a rank's batches of an epoch, lazy until its first item is requested.

With ``batch_size=None``, DataLoader creates an iterator that it never uses, so creating one has no effect.
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
    """The start of a sampler's next iteration; an iteration that begins moves it to the following epoch.

    Thread-safe. ``named`` is the epoch set since the last iteration began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = PlanPosition()
        self.named: int | None = None

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
    """Iterator over ``BatchRef``, in plan order unless its sampler was created with ``in_order=False``."""

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
        """Return this pass's epoch; before its first batch, the one if it began now."""
        return self._place().epoch

    @property
    def position(self) -> int:
        """Return the first position of the epoch that was not delivered yet."""
        return self._place().position

    def _place(self) -> PlanPosition:
        if self._buffer is not None:
            return self._buffer.delivered.place()
        return self._loaded or self._cursor.peek()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass as a small JSON-compatible dict."""
        return self._checkpoint.state_of(self._place())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the pass that produced ``state``, whatever this one has delivered; takes constant time.

        The page there is requested in the background. With the first batch, the sampler's next epoch moves
        past that of the state.

        Raises:
            ConfigError: the state belongs to another plan; the message names the difference.
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
        # A DataLoader requests batches also after the end of the plan.
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
