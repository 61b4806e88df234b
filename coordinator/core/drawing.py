"""Epochs that are not each sample once: draws (a selection, weights, repetitions), and mixes.

*Draws* are numbered sample by sample. The epoch's order is an order of draws, and
each takes as many consecutive order positions as it is repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from superdl.coordinator.core.permutation import SIZE_MAX, Permutation, checked_elements, epoch_key, order_of
from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import Ints
    from superdl.super_wire.draws import Draws


# Maximum number of places returned per sample and epoch. More take long, and such a sample is needed soon
# anyway
PLACES_MAX: Final = 64
_EPOCHS_KEPT: Final = 3  # this one, the next one, and one of a rank that is behind
_RANDOM_BITS: Final = 53


class Drawing:
    """The draws of every epoch of one plan, and their places in its order.

    ``shuffle``: each epoch has its own order; else the order of the indices. ``PlanError``:
    an index is not in the catalog, or the weights are invalid or not one per sample.
    """

    def __init__(self, draws: Draws, size: int, seed: int, *, shuffle: bool) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self._repeats = draws.repeats
        self.length = draws.length(size)  # order positions in an epoch
        if not 1 <= self.length <= SIZE_MAX:
            raise PlanError(f"an epoch has 1 to {SIZE_MAX} samples, not {self.length}")
        self._count = self.length // self._repeats
        # Memory: 16 bytes an index; with weights, 8 bytes a sample for each of three epochs.
        self._samples: Ints | None = None  # the samples that are drawn at all, ascending; None: all
        # The first draw of each sample, and the end of the last one's; None: one draw each
        self._firsts: Ints | None = None
        self._weights: NDArray[np.float64] | None = None
        self._counted: dict[int, Ints] = {}
        # The position of each draw when the user's indices define the order; None: draws are in their own
        # order
        self._by_sample: NDArray[np.intp] | None = None
        self._in_order: NDArray[np.intp] | None = None
        indices, weights = draws.index_array, draws.weight_array
        if weights is not None:
            _check_weights(weights, size if indices is None else indices.size, shuffle=shuffle)
        if indices is not None:
            checked_elements(indices, "indices", size)
            self._samples, kinds, counts = np.unique(indices, return_inverse=True, return_counts=True)
            if weights is not None:
                weights = np.bincount(kinds, weights).astype(np.float64)
            elif self._samples.size < indices.size:
                self._firsts = np.concatenate(([0], np.cumsum(counts)))
            if not shuffle and (indices[1:] < indices[:-1]).any():
                self._by_sample = np.argsort(indices, kind="stable")
                self._in_order = np.argsort(self._by_sample)
        self._weights = weights

    @property
    def samples(self) -> int:
        """Return the number of different catalog samples that are drawn."""
        return self._size if self._samples is None else self._samples.size

    def at(self, epoch: int, places: Ints) -> tuple[Ints, Ints]:
        """Return the sample at each order position, and its number among the sample's draws, from 0."""
        steps, again = np.divmod(places, self._repeats)
        draws: Ints = steps
        if self._shuffle:
            draws = order_of(self._count, self._seed, epoch).forward(steps)
        elif self._in_order is not None:
            draws = self._in_order[steps]
        firsts = self._firsts_in(epoch)
        kinds, times = draws, again
        if firsts is not None:
            kinds = np.searchsorted(firsts, draws, side="right") - 1
            times = (draws - firsts[kinds]) * self._repeats + again
        return (kinds if self._samples is None else self._samples[kinds]), times

    def places(self, epoch: int, indices: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the order positions of samples: the inverse of :meth:`at`.

        An entry for each draw (of very many, `PLACES_MAX` spread evenly): the
        sample's place in ``indices``, and the draw's first and last order position.
        """
        kinds = checked_elements(indices, "indices", self._size)
        counts = np.ones(kinds.size, dtype=np.int64)
        if self._samples is not None:
            kinds = np.minimum(np.searchsorted(self._samples, indices), self._samples.size - 1)
            counts[self._samples[kinds] != indices] = 0
        firsts = self._firsts_in(epoch)
        if firsts is not None:
            counts *= firsts[kinds + 1] - firsts[kinds]
            kinds = firsts[kinds]
        used_counts = np.minimum(counts, PLACES_MAX)
        owners = np.repeat(np.arange(kinds.size, dtype=np.int64), used_counts)
        numbers = np.arange(owners.size, dtype=np.int64) - (np.cumsum(used_counts) - used_counts)[owners]
        draws = kinds[owners] + numbers * counts[owners] // used_counts[owners]
        steps = draws
        if self._shuffle:
            steps = order_of(self._count, self._seed, epoch).inverse(draws)
        elif self._by_sample is not None:
            steps = self._by_sample[draws]
        first = steps * self._repeats
        return owners, first, first + self._repeats - 1

    def _firsts_in(self, epoch: int) -> Ints | None:
        if self._weights is None:
            return self._firsts
        if epoch not in self._counted:
            while len(self._counted) >= _EPOCHS_KEPT:
                del self._counted[next(iter(self._counted))]
            counts = _counts(self._weights, self._count, epoch_key(b"super-draws-1", self._seed, epoch))
            self._counted[epoch] = np.concatenate(([0], np.cumsum(counts)))
        return self._counted[epoch]


def _check_weights(weights: NDArray[np.float64], wanted: int, *, shuffle: bool) -> None:
    if not shuffle:
        raise PlanError("weights draw samples at random: use them with shuffle=True")
    if weights.size != wanted:
        raise PlanError(f"weights are one for each sample: {wanted:,}; not {weights.size:,}")
    if not np.isfinite(weights).all() or weights.min() < 0 or not 0 < float(weights.sum()) < np.inf:
        raise PlanError("weights are finite, none is negative, and one at least is above 0")


def _counts(weights: NDArray[np.float64], count: int, key: bytes) -> Ints:
    """Return how often an epoch draws each sample, ``count`` in all."""
    # Systematic sampling has low variance (Madow, "On the theory of systematic
    # sampling II", 1949): samples end to end on a line, each as long as its
    # expected count, are drawn by marks at distance 1. Left-to-right sums and
    # single IEEE 754 operations give the same result everywhere.
    order = Permutation(weights.size, key).forward(np.arange(weights.size))
    ends = np.cumsum(weights[order])
    # A random number below 1 with as many bits as a double's fraction has.
    mark = (int.from_bytes(key[:8], "little") >> (64 - _RANDOM_BITS)) * 2.0**-_RANDOM_BITS
    passed = np.minimum(np.floor(ends / ends[-1] * count + mark), count).astype(np.int64)
    counts = np.empty(weights.size, dtype=np.int64)
    counts[order] = np.diff(passed, prepend=0)
    return counts


# Most samples in an epoch of a mix: the product of two, with padding, fits into 63 bits
SLOTS_MAX: Final = 2**31 - 2**24


class Mixing:
    """The slots of one dataset in a mix, as a function of the counts per epoch.

    Args:
        counts: samples of each dataset in an epoch, in the order of the mix.
        member: the place of this dataset among them.
        run: number of consecutive slots with the same dataset; it divides the counts.

    Raises:
        PlanError: there is no such dataset, one has no sample, all have too many,
            or runs are not whole.
    """

    def __init__(self, counts: Sequence[int], member: int, run: int = 1) -> None:
        if not 0 <= member < len(counts):
            raise PlanError(f"a mix of {len(counts)} datasets has no dataset {member}")
        self.slots = sum(counts)  # number of slots in an epoch
        if min(counts) < 1 or self.slots > SLOTS_MAX:
            raise PlanError(
                f"a mix has 1 sample or more of each dataset in an epoch, and at most {SLOTS_MAX:,} in all; "
                f"not {', '.join(f'{count:,}' for count in counts)}"
            )
        if run < 1 or any(count % run for count in counts):
            raise PlanError(f"the counts of a mix in runs of {run:,} are multiples of that")
        # Number of an epoch's slots that belong to this dataset
        self.count, self._run = counts[member], run
        # The slots that each earlier dataset takes, and the number it takes them from
        self._others: list[tuple[int, int]] = []
        # The first dataset takes its share of the slots, evenly spaced; the second
        # its share of those left, and so on. So any run of slots, such as a global
        # batch or a rank's part, has each in proportion.
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
