"""Where a pass over an epoch stands: a place in the plan, and what one iteration has given out since its own.

With ``in_order=False`` a place is more than a position: some batches beyond it are gone already. How a place
is written down is :mod:`superdl.sampler.checkpoint`'s, who moves on is :mod:`superdl.sampler.pages`'.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

__all__ = ["GivenOut", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """All batches of ``epoch`` before ``position`` were given out, and of the others those in
    ``given_ahead``.
    """

    epoch: int = 0
    position: int = 0
    given_ahead: tuple[int, ...] = ()


class GivenOut:
    """The batches that an iteration has given out, and the place after any number of them.

    In order, counting suffices. Else the positions are kept, 8 bytes each; since no batch goes more than
    ``reorder - 1`` positions early, the place after ``n`` batches follows from the last few before the n-th.

    Args:
        start: where the iteration began.
        reorder: positions among which the next batch is chosen; 1: in order.
    """

    def __init__(self, start: Place, *, reorder: int = 1) -> None:
        self.start = start
        self.count = 0
        self._span = max([reorder, *(position - start.position + 1 for position in start.given_ahead)])
        self._order = array("Q") if self._span > 1 else None

    def add(self, position: int) -> None:
        """The batch at ``position`` was given out."""
        self.count += 1
        if self._order is not None:
            self._order.append(position)

    def place(self, count: int | None = None) -> Place:
        """Where a reader of the first ``count`` batches stands (``None``: of all); at most ``self.count``."""
        count = self.count if count is None else count
        start = self.start
        if self._order is None:
            return Place(start.epoch, start.position + count)
        known = {*start.given_ahead, *self._order[max(0, count - 2 * self._span) : count]}
        gone = count + len(start.given_ahead)
        head = max(start.position, start.position + gone - self._span)
        while head in known:
            head += 1
        ahead = sorted(position for position in known if position > head)
        return Place(start.epoch, head, tuple(ahead))
