"""The plan: every rank's batches, as a pure function of the arguments and the epoch.

* An epoch's *order* is a permutation of ``range(size)`` keyed by seed and epoch, or the natural order
  without ``shuffle``. An *order position* is a position in it. An *index* identifies a sample.
* A *global batch* is what all ranks read at once: ``G = batch_size * replicas`` samples. Global batch
  ``j`` covers the order positions ``j * G`` to ``(j + 1) * G``, and rank ``r`` reads its ``r``-th
  contiguous slice. A *position* is the number of a global batch within its epoch.
* A short last global batch is padded with the first samples of the epoch to a multiple of ``replicas``, as
  torch's DistributedSampler does, or dropped with ``drop_last``. Each index that is not padding is delivered
  at most once per epoch.
* If an epoch does not draw each sample once, its order consists of *draws* (:mod:`.orders`). If it comes
  from a user's sampler, batches have the given lengths, there is one rank, and other epochs are unknown.
* In a *mix*, an epoch has one *slot* for each sample of every dataset, a global batch is ``G`` slots, and
  a plan contains only its own dataset's part of a rank's slice.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from superdl.coordinator.core.orders import SIZE_MAX, Drawing, Mixing
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from superdl.coordinator.core.samples import Bools, Ints

NEVER_SOON: Final = 2**62  # distance of samples with no known next use; safe to add to in int64
_SEED_MIN: Final = -(2**63)
_SEED_MAX: Final = 2**64 - 1
_BATCH_SIZE_MAX: Final = 2**31 - 1
_REPLICAS_MAX: Final = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A rank's slices of consecutive global batches, concatenated.

    Attributes:
        indices: int64 ``[n]``, the samples in order.
        padding: bool ``[n]``, a mask of samples that only serve to give all ranks the same length.
        offsets: int64 ``[batches + 1]``. Batch ``i`` is ``indices[offsets[i] : offsets[i + 1]]``.
        repetitions: int64 ``[n]``, how often the epoch has drawn each sample before, or ``None`` if each
            is drawn once.
    """

    indices: Ints
    padding: Bools
    offsets: Ints
    repetitions: Ints | None = None

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Plan:
    """A job's batches, for every epoch.

    Args:
        size: number of samples in the catalog, from 1 to 2**40.
        batch_size: number of samples per batch and rank, at least 1.
        replicas: number of ranks, at least 1.
        seed: from -2**63 to 2**64 - 1. Each gives a different order. Unused without ``shuffle``.
        shuffle: whether each epoch has a different order.
        drop_last: whether to drop a short last global batch.
        draws: an epoch's draws, unless it draws each sample once.
        mix: number of samples of each dataset per epoch, if the plan is part of a mix.
        member: this plan's index in the mix.
        mix_run: number of consecutive samples of a dataset: 1, or a global batch.
        only_epoch: the epoch that ``draws`` define, or ``None`` for all epochs.

    Raises:
        PlanError: an argument is out of range, or ``drop_last`` leaves no batch.
    """

    size: int
    batch_size: int
    replicas: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    draws: Draws | None = None
    mix: tuple[int, ...] = ()
    member: int = 0
    mix_run: int = 1
    only_epoch: int | None = None
    _drawing: Drawing = field(init=False, repr=False, compare=False)
    _mixing: Mixing | None = field(init=False, repr=False, compare=False, default=None)
    # The order positions at which batches of given lengths end
    _ends: Ints | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        bounds = {
            "size": (1, SIZE_MAX),
            "batch_size": (1, _BATCH_SIZE_MAX),
            "replicas": (1, _REPLICAS_MAX),
            "seed": (_SEED_MIN, _SEED_MAX),
        }
        for name, (low, high) in bounds.items():
            object.__setattr__(self, name, _bounded(name, getattr(self, name), low, high))
        drawing = Drawing(self.draws or Draws(), self.size, self.seed, shuffle=self.shuffle)
        object.__setattr__(self, "_drawing", drawing)
        if self.draws is not None and self.draws.lengths:
            object.__setattr__(self, "_ends", self._checked_ends(self.draws))
        if self.mix:
            object.__setattr__(self, "_mixing", self._checked_mixing())
        if self.drop_last and self.global_batch_size > self._slots:
            raise PlanError(
                f"drop_last leaves no batch: batch_size {self.batch_size} x {self.replicas} replicas = "
                f"{self.global_batch_size} is larger than the dataset of {self._slots} samples; "
                f"use a smaller batch_size or drop_last=False"
            )

    def _checked_ends(self, draws: Draws) -> Ints:
        lengths = draws.length_array
        if self.replicas > 1 or self.shuffle or self.drop_last or self.mix or self.only_epoch is None:
            raise PlanError(
                "batch lengths require a plan of one epoch for one rank, without shuffle, drop_last or mix"
            )
        if lengths.min() < 0 or lengths.max() > self.batch_size or int(lengths.sum()) != self.length:
            raise PlanError(
                f"batch lengths must be 0 to {self.batch_size} and add up to {self.length:,}, but they are "
                f"{int(lengths.min())} to {int(lengths.max())} and add up to {int(lengths.sum()):,}"
            )
        return np.cumsum(lengths)

    def covers(self, epoch: int) -> bool:
        """Return whether an epoch's order is known."""
        return self.only_epoch is None or epoch == self.only_epoch

    def _checked_mixing(self) -> Mixing:
        mixing = Mixing(self.mix, self.member, self.mix_run)
        if mixing.count != self.length or (self.draws is not None and self.draws.repeats > 1):
            raise PlanError(
                f"an epoch has {self.length:,} samples of dataset {self.member} of the mix, each once, but "
                f"the mix has {mixing.count:,}: the source has changed, so create the sampler again"
            )
        return mixing

    @property
    def _slots(self) -> int:
        return self.length if self._mixing is None else self._mixing.slots

    def _before(self, slots: int) -> int:
        return slots if self._mixing is None else int(self._mixing.before(np.array(slots)))

    def _batches_of(self, places: Ints) -> Ints:
        """Return the global batch that contains each order position."""
        if self._ends is not None:
            return np.searchsorted(self._ends, places, side="right")
        slots = places if self._mixing is None else self._mixing.slots_of(places)
        return slots // self.global_batch_size

    @property
    def length(self) -> int:
        """Return the number of order positions in an epoch: samples, or draws with repetitions."""
        return self._drawing.length

    @property
    def samples_drawn(self) -> int:
        """Return the number of distinct samples that can occur in an epoch."""
        return self._drawing.samples

    @property
    def global_batch_size(self) -> int:
        """Return the maximum size of a global batch: one batch per rank, across all datasets of a mix."""
        return self.batch_size * self.replicas

    @property
    def batches_per_epoch(self) -> int:
        """Return the number of global batches per epoch, which is also each rank's number of batches."""
        if self._ends is not None:
            return int(self._ends.size)
        full, rest = divmod(self._slots, self.global_batch_size)
        return full if self.drop_last or not rest else full + 1

    @property
    def samples_per_epoch(self) -> int:
        """Return the number of samples that all ranks deliver per epoch, excluding padding."""
        return self._before(self._slots_per_epoch)

    @property
    def _slots_per_epoch(self) -> int:
        if self._ends is not None:
            return self._slots
        return min(self._slots, self.batches_per_epoch * self.global_batch_size)

    @property
    def padding_per_epoch(self) -> int:
        """Return the number of padding samples per epoch, which is less than ``replicas``."""
        return self._before(-self._slots_per_epoch % self.replicas)

    def batch(self, epoch: int, position: int, rank: int) -> Span:
        """Return a rank's batch at a position. The batch is empty if the epoch's order is unknown."""
        if not self.covers(epoch):
            return Span(np.empty(0, np.int64), np.empty(0, np.bool_), np.zeros(2, np.int64))
        return self.span(epoch, position, position + 1, rank)

    def span(self, epoch: int, start: int, stop: int, rank: int) -> Span:
        """Return a rank's batches at the positions [start, stop)."""
        first, lengths = self._slices(start, stop, rank)
        if self._mixing is not None:
            end = self._mixing.before(first + lengths)
            first = self._mixing.before(first)
            lengths = end - first
        places = np.arange(int(lengths.sum()), dtype=np.int64) * self._step
        places += np.repeat(first - (np.cumsum(lengths) - lengths) * self._step, lengths)
        padding = places >= self.length
        if padding.any():  # wraps around to the first samples of the epoch
            places %= self.length
        offsets = np.zeros(stop - start + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        indices, repetitions = self._drawing.at(epoch, places)
        return Span(indices, padding, offsets, None if self.draws is None else repetitions)

    def is_empty(self, position: int, rank: int) -> bool:
        """Return whether all of a rank's slots at a position belong to other datasets of the mix."""
        if self._mixing is None:
            return False
        slots, lengths = self._slices(position, position + 1, rank)
        return bool(self._mixing.before(slots) == self._mixing.before(slots + lengths))

    def next_use(self, indices: Ints, epoch: int, position: int) -> Ints:
        """Return the distance in global batches from ``position`` to each sample's next use.

        The result is int64 ``[n]``: 0 for the batch at ``position``, and `NEVER_SOON` for samples not used
        in the rest of this epoch or in the next. ``position`` may be the end of the epoch. Padding counts
        as a use. For samples drawn very often, the result is an upper bound. Raises ``PlanError`` if an
        index is out of range.
        """
        # This takes constant time per sample, through the inverse of the order, and stores nothing.
        batches = self.batches_per_epoch
        if not self.covers(epoch):
            return np.full(np.shape(indices), NEVER_SOON, dtype=np.int64)
        distance = self._next_draw(indices, epoch, position) - position
        later = distance >= NEVER_SOON - position
        distance[later] = NEVER_SOON
        if self.only_epoch is None and later.any():
            used = self._next_draw(np.asarray(indices)[later], epoch + 1, 0)
            distance[later] = np.where(used < batches, used + (batches - position), NEVER_SOON)
        return distance

    def _next_draw(self, indices: Ints, epoch: int, position: int) -> Ints:
        """Return the first global batch at or after ``position`` with each sample, or `NEVER_SOON`."""
        batches = self.batches_per_epoch
        owners, first, last = self._drawing.places(epoch, indices)
        # The repetitions of a draw are in consecutive global batches.
        first_batch = self._batches_of(first)
        last_batch = first_batch if last is first else self._batches_of(last)
        used = np.maximum(first_batch, position)
        used[(last_batch < position) | (used >= batches)] = NEVER_SOON
        if position < batches:  # the first samples of the epoch are repeated in its last batch, as padding
            reopened = first < self.padding_per_epoch
            used[reopened] = np.minimum(used[reopened], batches - 1)
        if self.draws is None:  # each sample once
            return used
        soonest = np.full(np.shape(indices), NEVER_SOON, dtype=np.int64)
        np.minimum.at(soonest, owners, used)
        return soonest

    @property
    def _step(self) -> int:
        # Distribute repetitions over the ranks: each takes every replicas-th order position.
        return self.replicas if self.draws is not None and self.draws.repeats > 1 else 1

    def _slices(self, start: int, stop: int, rank: int) -> tuple[Ints, Ints]:
        """Return the first slots and the lengths of a rank's slices of global batches [start, stop)."""
        if self._ends is not None:
            ends = np.concatenate(([0], self._ends))[start : stop + 1]
            return ends[:-1], np.diff(ends)
        begin = np.arange(start, stop, dtype=np.int64) * self.global_batch_size
        lengths = np.full(stop - start, self.batch_size, dtype=np.int64)
        full, rest = divmod(self._slots, self.global_batch_size)
        lengths[begin == full * self.global_batch_size] = -(-rest // self.replicas)
        return begin + rank * (lengths if self._step == 1 else 1), lengths


def _bounded(name: str, value: int, low: int, high: int) -> int:
    """Return ``value`` as a plain int. Raises ``PlanError`` if it is out of range."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise PlanError(f"{name} must be an integer, not {value!r}") from error
    if not low <= number <= high:
        raise PlanError(f"{name} must be from {low} to {high}, not {number}")
    return number
