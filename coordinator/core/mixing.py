"""Where the samples of one dataset stand among those of a mix: a pure function of the counts of an epoch.

An epoch of a mix has *slots*, as many as samples of all its datasets together. The first dataset takes its
share of them, evenly spaced; the second its share of those that are left, and so on. So any run of slots has
of each dataset what its count says, to within one sample for each dataset before it and itself, and the whole
has exactly the counts. Global batches are runs of slots, and so are the parts of a rank: how many ranks share
a batch changes nothing of what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SLOTS_MAX", "Mixing"]

SLOTS_MAX: Final = 2**31 - 2**24
"""Most samples in an epoch of a mix: products of two such numbers, with padding, fit into 63 bits."""


class Mixing:
    """The slots of one dataset of a mix.

    Args:
        counts: samples of each dataset in an epoch, in the order of the mix.
        member: which of them is meant.

    Raises:
        PlanError: there is no such dataset, one has no sample, or all have too many.
    """

    def __init__(self, counts: Sequence[int], member: int) -> None:
        if not 0 <= member < len(counts):
            raise PlanError(f"a mix of {len(counts)} datasets has no dataset {member}")
        self.slots = sum(counts)
        """Of an epoch."""
        if min(counts) < 1 or self.slots > SLOTS_MAX:
            raise PlanError(
                f"a mix has 1 sample or more of each dataset in an epoch, and at most {SLOTS_MAX:,} in all; "
                f"not {', '.join(f'{count:,}' for count in counts)}"
            )
        self.count = counts[member]
        """Of its slots, those of this dataset."""
        self._others: list[tuple[int, int]] = []
        """What each dataset before this one takes, and out of how many."""
        left = self.slots
        for count in counts[:member]:
            self._others.append((count, left))
            left -= count
        self._left = left

    def before(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of so many slots, from the first on, are its own; epochs follow one another."""
        for count, left in self._others:
            slots = slots - slots * count // left
        return slots * self.count // self._left

    def slots_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slots of its samples, counted from the first: the inverse of :meth:`before`."""
        slots = -(-(places + 1) * self._left // self.count) - 1
        for count, left in reversed(self._others):
            slots = slots * left // (left - count)
        return slots
