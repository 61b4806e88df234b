"""The slots of one dataset in a mix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.coordinator.core.samples import Ints

SLOTS_MAX: Final = 2**31 - 2**24
"""Most samples in an epoch of a mix: the product of two, with padding, fits into 63 bits."""


class Mixing:
    """The slots of one dataset in a mix, as a function of the counts per epoch.

    The first dataset takes its share of the slots, evenly spaced; the second its share of those left, and so
    on. So any run of slots has each dataset in proportion, to within one sample for each dataset before it
    and itself, and the whole epoch has exactly the counts. Global batches and the ranks' parts are runs of
    slots: the number of ranks does not change the contents of a batch.

    Args:
        counts: samples of each dataset in an epoch, in the order of the mix.
        member: the place of this dataset among them.
        run: number of consecutive slots with the same dataset; it divides the counts.

    Raises:
        PlanError: there is no such dataset, one has no sample, all have too many, or runs are not whole.
    """

    def __init__(self, counts: Sequence[int], member: int, run: int = 1) -> None:
        if not 0 <= member < len(counts):
            raise PlanError(f"a mix of {len(counts)} datasets has no dataset {member}")
        self.slots = sum(counts)
        """Number of slots in an epoch."""
        if min(counts) < 1 or self.slots > SLOTS_MAX:
            raise PlanError(
                f"a mix has 1 sample or more of each dataset in an epoch, and at most {SLOTS_MAX:,} in all; "
                f"not {', '.join(f'{count:,}' for count in counts)}"
            )
        if run < 1 or any(count % run for count in counts):
            raise PlanError(f"the counts of a mix in runs of {run:,} are multiples of that")
        self.count, self._run = counts[member], run
        """Number of an epoch's slots that belong to this dataset."""
        self._others: list[tuple[int, int]] = []
        """The slots that each earlier dataset takes, and the number it takes them from."""
        remaining = self.slots // run
        for count in counts[:member]:
            self._others.append((count // run, remaining))
            remaining -= count // run
        self._own, self._left = self.count // run, remaining

    def before(self, slots: Ints) -> Ints:
        """Return how many of the first ``slots`` slots are this dataset's; epochs follow one another."""
        if self._run == 1:
            return self._runs_before(slots)
        runs, rest = np.divmod(slots, self._run)
        before, after = self._runs_before(runs), self._runs_before(runs + 1)
        own: Ints = before * self._run + rest * (after - before)
        return own

    def _runs_before(self, runs: Ints) -> Ints:
        for count, available in self._others:
            runs = runs - runs * count // available
        return runs * self._own // self._left

    def slots_of(self, places: Ints) -> Ints:
        """Return the slots of this dataset's samples, from the first; inverts :meth:`before`."""
        own, rest = np.divmod(places, self._run)
        runs = -(-(own + 1) * self._left // self._own) - 1
        for count, available in reversed(self._others):
            runs = runs * available // (available - count)
        return runs * self._run + rest
