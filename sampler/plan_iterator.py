"""``PlanIterator``: one pass over a rank's batches of an epoch, lazy until its first item is asked for.

DataLoader makes an iterator that it never uses (with ``batch_size=None``), so making one has no effect: epoch
and position are taken when the first batch is. Where batches come from is :mod:`sampler.pages`'.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from super_wire.batch_ref import BatchRef
from super_wire.errors import UsageError

if TYPE_CHECKING:
    from sampler.feed import Feed
    from sampler.pages import Pager

__all__ = ["Cursor", "PlanIterator"]


class Cursor:
    """Where a sampler's next iteration starts; taking it makes the following epoch the next. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = self._position = 0

    def peek(self) -> tuple[int, int]:
        """Epoch and position of the next iteration, which does not begin by that."""
        with self._lock:
            return self._epoch, self._position

    def take(self) -> tuple[int, int]:
        """Epoch and position of an iteration that begins now."""
        with self._lock:
            taken = self._epoch, self._position
            self._epoch, self._position = self._epoch + 1, 0
            return taken

    def set_epoch(self, epoch: int) -> None:
        """Name the next epoch; a position already set for that same epoch stays."""
        with self._lock:
            if epoch != self._epoch:
                self._epoch, self._position = epoch, 0


class PlanIterator(Iterator[BatchRef]):
    """Yields :class:`super_wire.BatchRef`, in plan order unless the sampler was made with ``in_order=False``.

    Args:
        cursor: taken when the first batch is asked for.
        pager: brings the batches.
        owner: kept alive as long as the iterator.
    """

    def __init__(self, cursor: Cursor, pager: Pager, owner: object) -> None:
        self._cursor = cursor
        self._pager = pager
        self._owner = owner
        self._pid = os.getpid()
        self._feed: Feed | None = None

    @property
    def epoch(self) -> int:
        """The epoch of this pass; before its first batch, the one it would have if it began now."""
        return self._cursor.peek()[0] if self._feed is None else self._feed.epoch

    @property
    def position(self) -> int:
        """The first position of the epoch that was not given out yet."""
        return self._cursor.peek()[1] if self._feed is None else self._feed.window.head

    def __iter__(self) -> PlanIterator:
        return self

    def __next__(self) -> BatchRef:
        if self._pid != os.getpid():
            raise UsageError(
                "an iterator of a SuperSampler stays in the process that made it: make sampler and iterator "
                "there"
            )
        if self._feed is None:
            self._feed = self._pager.begin(*self._cursor.take())
        batch = self._pager.take(self._feed)
        if batch is None:
            raise StopIteration
        return batch

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "an iterator of a SuperSampler holds a thread and cannot be pickled; its batches can"
        )
