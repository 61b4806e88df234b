"""The batches of one epoch that were asked for and not yet given out, and which of them goes next.

In order, the next is the head: the lowest position. With ``reorder`` above 1, a batch whose samples are all
in the cache (or failed) may go before a head that still waits, if it lies among the first ``reorder``
positions from the head on; so at most ``reorder - 1`` others ever overtake one batch. No I/O, no threads:
:mod:`superdl.sampler.pages` brings both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from superdl.super_wire.batch_ref import BatchRef

__all__ = ["Planned", "Window"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch, and whether a reader would find all of it at once as far as is known."""

    ref: BatchRef
    ready: bool


class Window:
    """Planned batches from ``position`` to ``end`` (exclusive) on their way to the trainer, but for those in
    ``given_ahead``, which had theirs.

    Attributes:
        head: the first position not given out.
        asked: the first position not received yet.
        end: batches in the epoch.
    """

    def __init__(
        self, position: int, end: int, *, reorder: int = 1, given_ahead: Collection[int] = ()
    ) -> None:
        self.head = self.asked = position
        self.end = end
        self._reorder = reorder
        self._waiting: dict[int, Planned] = {}
        self._given_before = frozenset(given_ahead)  # by an earlier iteration that this one goes on with

    def __len__(self) -> int:
        """Batches that could be given out."""
        return len(self._waiting)

    @property
    def exhausted(self) -> bool:
        """Whether all of the epoch was given out."""
        return self.head >= self.end

    def add(self, planned: Planned) -> None:
        """Take the batch at ``asked``, unless it was given out before; ``ValueError`` if it is another."""
        if planned.ref.position != self.asked or self.asked >= self.end:
            raise ValueError(f"batch {planned.ref.position} came where {self.asked} of {self.end} was next")
        if self.asked not in self._given_before:
            self._waiting[self.asked] = planned
        self.asked += 1
        self._pass_given()

    def waits_for_head(self) -> bool:
        """Whether newer statuses could change which batch goes next."""
        head = self._waiting.get(self.head)
        return self._reorder > 1 and head is not None and not head.ready

    def reorderable(self) -> range:
        """Positions among which the next is chosen."""
        return range(self.head, min(self.head + self._reorder, self.asked))

    def mark_ready(self, position: int) -> None:
        """A newer status: all samples of that batch are in the cache, or failed."""
        planned = self._waiting.get(position)
        if planned is not None:
            self._waiting[position] = Planned(planned.ref, ready=True)

    def take(self) -> BatchRef | None:
        """The next batch to give out, or ``None`` if nothing is here."""
        if not self._waiting:
            return None
        ready = (p for p in self.reorderable() if p in self._waiting and self._waiting[p].ready)
        chosen = self._waiting.pop(next(ready, self.head))
        self._pass_given()
        return chosen.ref

    def _pass_given(self) -> None:
        while self.head < self.asked and self.head not in self._waiting:
            self.head += 1
