"""``PlanIterator``: one pass over a rank's batches of an epoch."""

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

    from superdl.sampler.parts import Parts
    from superdl.sampler.prefetch import PrefetchBuffer

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
