"""Epoch orders: a keyed permutation, draws (selections, weights, repetitions), and mixes.

The permutation of ``range(size)`` is computed, not stored. It follows Black and Rogaway, "Ciphers with
Arbitrary Finite Domains" (CT-RSA 2002), but is not meant for encryption. Users rely on the order, so it
depends only on integer arithmetic modulo 2**64 and on BLAKE2b.

*Draws* are numbered sample by sample. An epoch's order is a sequence of draws, each of which takes
consecutive order positions, one per repetition.
"""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np

from superdl.super_wire.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import Ints
    from superdl.super_wire.draws import Draws

SIZE_MAX: Final = 2**40  # a larger size would need wider hashes in the rounds
PREFIX_SIZE_MAX: Final = 256  # up to this size, the permutation is a table; above it, a Feistel network
_ROUNDS: Final = 8  # chi-squared tests over neighbours, and positions one radix apart, detect 4 but not 6
_BLOCK: Final = 8192  # values per pass, whose five arrays fit into a core's private cache
_WORDS_PER_DIGEST: Final = 8

# The multipliers of splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014).
_MULTIPLIER_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2: Final = np.uint64(0x94D049BB133111EB)
_HALF: Final = np.uint64(32)


class Permutation:
    """A keyed bijection of ``range(size)`` that is the same on all machines and in all releases.

    ``size`` is from 1 to `SIZE_MAX`, and ``key`` has 1 to 64 bytes.
    """

    # Up to PREFIX_SIZE_MAX elements, a table of positions sorted by keyed random words. Above
    # that, a generalised Feistel network on pairs of digits, with cycle walking.
    def __init__(self, size: int, key: bytes) -> None:
        self._size = size
        self._tables: tuple[Ints, Ints] | None = None
        # A Feistel network on few elements has too few states to mix well.
        if size <= PREFIX_SIZE_MAX:
            elements = np.argsort(_keyed_words(key, size, size), kind="stable").astype(np.int64)
            self._tables = elements, np.argsort(elements, kind="stable").astype(np.int64)
            return
        # The product of the radices exceeds size by less than the left radix, so few values leave the range.
        left_radix = math.isqrt(size - 1) + 1
        self._left_radix = np.uint64(left_radix)
        self._right_radix = np.uint64(-(-size // left_radix))
        self._round_keys = tuple(_keyed_words(key, size, _ROUNDS))

    def forward(self, positions: Ints) -> Ints:
        """Return the element at each position, as int64 of the same shape."""
        return self._apply(positions, decrypt=False)

    def inverse(self, indices: Ints) -> Ints:
        """Return the position of each element, as int64 of the same shape."""
        return self._apply(indices, decrypt=True)

    def _apply(self, values: Ints, *, decrypt: bool) -> Ints:
        if self._tables is not None:
            return self._tables[decrypt][values]
        # This terminates: a value's cycle in the network's bijection contains the value itself, which is in
        # range, and fewer than `left_radix` values outside the range.
        # Make a contiguous copy, because reshape must return a view.
        walked = np.array(values, dtype=np.uint64, order="C")
        flat = walked.reshape(-1)
        self._pass(flat, decrypt=decrypt)
        outside = np.flatnonzero(flat >= self._size)
        while outside.size:
            again = flat[outside]
            self._pass(again, decrypt=decrypt)
            flat[outside] = again
            outside = outside[again >= self._size]
        return walked.view(np.int64)

    def _pass(self, values: NDArray[np.uint64], *, decrypt: bool) -> None:
        scratch = np.empty((4, min(values.size, _BLOCK)), dtype=np.uint64)
        for start in range(0, values.size, _BLOCK):
            block = values[start : start + _BLOCK]
            self._pass_block(block, scratch[:, : block.size], decrypt=decrypt)

    def _pass_block(self, block: NDArray[np.uint64], scratch: NDArray[np.uint64], *, decrypt: bool) -> None:
        left, right, hashed, other = scratch
        np.floor_divide(block, self._right_radix, out=left)
        np.multiply(left, self._right_radix, out=right)
        np.subtract(block, right, out=right)

        rounds = range(_ROUNDS)
        for number in reversed(rounds) if decrypt else rounds:
            if number % 2 == 0:
                target, source, radix = left, right, self._left_radix
            else:
                target, source, radix = right, left, self._right_radix
            _hash(source, self._round_keys[number], radix, hashed, other)
            # Sum and difference modulo the radix, without a branch: of a value and the value shifted by one
            # radix, the wrong one is always larger modulo 2**64.
            if decrypt:
                np.subtract(target, hashed, out=target)
                np.add(target, radix, out=other)
            else:
                np.add(target, hashed, out=target)
                np.subtract(target, radix, out=other)
            np.minimum(target, other, out=target)

        np.multiply(left, self._right_radix, out=block)
        np.add(block, right, out=block)


@lru_cache(maxsize=64)  # two epochs of 32 jobs; an entry has at most 4 KiB
def order_of(size: int, seed: int, epoch: int) -> Permutation:
    """Return the permutation that orders an epoch."""
    return Permutation(size, epoch_key(b"super-plan-1", seed, epoch))


def epoch_key(purpose: bytes, seed: int, epoch: int) -> bytes:
    """Return 32 bytes that are unique to a purpose, seed and epoch."""
    fields = seed.to_bytes(16, "little", signed=True) + epoch.to_bytes(16, "little")
    return blake2b(fields, digest_size=32, person=purpose).digest()


def checked_elements(values: Ints, name: str, size: int) -> Ints:
    """Return ``values`` as int64, copied only if needed. Raises ``PlanError`` if any is out of range."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise PlanError(f"{name} must be integers, not {array.dtype}")
    signed = array.astype(np.int64, copy=False)
    # A negative value is huge as an unsigned integer, so a single pass is enough.
    if signed.size and int(signed.view(np.uint64).max()) >= size:
        raise PlanError(f"{name} must be in range({size}), but range from {array.min()} to {array.max()}")
    return signed


def _keyed_words(key: bytes, size: int, count: int) -> NDArray[np.uint64]:
    """Return ``count`` pseudorandom uint64 words: keyed BLAKE2b of the size and a counter."""
    # Nearby sizes share their radices and would otherwise have nearly the same order.
    digests = -(-count // _WORDS_PER_DIGEST)
    prefix = size.to_bytes(8, "little")
    stream = b"".join(
        blake2b(prefix + counter.to_bytes(8, "little"), key=key, person=b"super-perm-1").digest()
        for counter in range(digests)
    )
    return np.frombuffer(stream, dtype="<u8", count=count).astype(np.uint64)


def _hash(
    digits: NDArray[np.uint64],
    round_key: np.uint64,
    radix: np.uint64,
    hashed: NDArray[np.uint64],
    other: NDArray[np.uint64],
) -> None:
    """Write a keyed hash of each digit, in ``range(radix)``, to ``hashed``. ``other`` is scratch space."""
    np.bitwise_xor(digits, round_key, out=hashed)
    np.multiply(hashed, _MULTIPLIER_1, out=hashed)
    np.right_shift(hashed, _HALF, out=other)
    np.bitwise_xor(hashed, other, out=hashed)
    np.multiply(hashed, _MULTIPLIER_2, out=hashed)
    # The upper 32 bits as a fraction of one, times the radix (Lemire 2019): no division.
    np.right_shift(hashed, _HALF, out=hashed)
    np.multiply(hashed, radix, out=hashed)
    np.right_shift(hashed, _HALF, out=hashed)


PLACES_MAX: Final = 64  # order positions to return per sample; one with more is needed soon anyway
_EPOCHS_KEPT: Final = 3  # the current epoch, the next, and that of a slow rank
_RANDOM_BITS: Final = 53


class Drawing:
    """The draws of every epoch, and their order positions.

    With ``shuffle``, each epoch has a different order. Otherwise, all follow the order of the indices.
    Raises ``PlanError`` if an index is out of range, or if any weight is missing or invalid.
    """

    def __init__(self, draws: Draws, size: int, seed: int, *, shuffle: bool) -> None:
        self._size, self._seed, self._shuffle = size, seed, shuffle
        self._repeats = draws.repeats
        self.length = draws.length(size)  # order positions in an epoch
        if not 1 <= self.length <= SIZE_MAX:
            raise PlanError(f"an epoch must have 1 to {SIZE_MAX} samples, not {self.length}")
        self._count = self.length // self._repeats
        # Memory: 16 bytes per index, or with weights 8 bytes per sample for each of three epochs.
        self._samples: Ints | None = None  # the samples that may be drawn, ascending, or None for all
        # The first draw of each sample, and the end of all draws, or None for one draw each
        self._firsts: Ints | None = None
        self._weights: NDArray[np.float64] | None = None
        self._counted: dict[int, Ints] = {}
        # The position of each draw if the user's indices define the order, or None if draws are in order
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
        self._is_plain = indices is None and weights is None and draws.repeats == 1

    @property
    def samples(self) -> int:
        """Return the number of distinct samples that may be drawn."""
        return self._size if self._samples is None else self._samples.size

    def at(self, epoch: int, places: Ints) -> tuple[Ints, Ints]:
        """Return the sample at each order position, and how often the epoch has drawn it before."""
        if self._is_plain:
            samples = order_of(self._count, self._seed, epoch).forward(places) if self._shuffle else places
            return samples, np.zeros_like(places)
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
        """Return the order positions of samples. This is the inverse of :meth:`at`.

        The arrays have one entry per draw: the sample's position in ``indices``, and the draw's first and
        last order positions. Samples with over `PLACES_MAX` draws get an evenly spaced subset.
        """
        kinds = checked_elements(indices, "indices", self._size)
        if self._is_plain:
            places = order_of(self._count, self._seed, epoch).inverse(kinds) if self._shuffle else kinds
            return np.arange(kinds.size), places, places
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


def _check_weights(weights: NDArray[np.float64], samples: int, *, shuffle: bool) -> None:
    if not shuffle:
        raise PlanError("weights draw samples at random, so they need shuffle=True")
    if weights.size != samples:
        raise PlanError(f"there must be one weight per sample, {samples:,} in all, not {weights.size:,}")
    if not np.isfinite(weights).all() or weights.min() < 0 or not 0 < float(weights.sum()) < np.inf:
        raise PlanError("weights must be finite and not negative, and at least one must be above 0")


def _counts(weights: NDArray[np.float64], count: int, key: bytes) -> Ints:
    """Return how often an epoch draws each sample, ``count`` times in total."""
    # Systematic sampling has low variance (Madow, "On the theory of systematic sampling II", 1949): lay
    # samples end to end on a line, each as long as its expected count, and draw them at marks spaced 1
    # apart. Left-to-right sums and single IEEE 754 operations give the same results everywhere.
    order = Permutation(weights.size, key).forward(np.arange(weights.size))
    ends = np.cumsum(weights[order])
    # A random number below 1 with as many bits as the fraction of a double.
    mark = (int.from_bytes(key[:8], "little") >> (64 - _RANDOM_BITS)) * 2.0**-_RANDOM_BITS
    passed = np.minimum(np.floor(ends / ends[-1] * count + mark), count).astype(np.int64)
    counts = np.empty(weights.size, dtype=np.int64)
    counts[order] = np.diff(passed, prepend=0)
    return counts


SLOTS_MAX: Final = (
    2**31 - 2**24
)  # per epoch; the product of two such numbers, with padding, fits into 63 bits


class Mixing:
    """A dataset's slots in a mix.

    Args:
        counts: number of samples of each dataset in an epoch.
        member: this dataset's index in the mix.
        run: number of consecutive slots per dataset.

    Raises:
        PlanError: ``member`` is out of range, a dataset has no samples, there are too many samples in
            total, or a count is not a multiple of ``run``.
    """

    def __init__(self, counts: Sequence[int], member: int, run: int = 1) -> None:
        if not 0 <= member < len(counts):
            raise PlanError(f"there is no dataset {member} in a mix of {len(counts)} datasets")
        self.slots = sum(counts)
        if min(counts) < 1 or self.slots > SLOTS_MAX:
            raise PlanError(
                f"an epoch of a mix must have at least 1 sample of each dataset and at most {SLOTS_MAX:,} in "
                f"total; the counts are {', '.join(f'{count:,}' for count in counts)}"
            )
        if run < 1 or any(count % run for count in counts):
            raise PlanError(f"the counts of a mix must be multiples of its run length, {run:,}")
        self.count, self._run = counts[member], run
        # For each earlier dataset, how many slots it takes of how many
        self._others: list[tuple[int, int]] = []
        # The first dataset takes its share of the slots, evenly spaced, the second its share of the remaining
        # slots, and so on. So any sequence of slots contains all datasets in proportion.
        remaining = self.slots // run
        for count in counts[:member]:
            self._others.append((count // run, remaining))
            remaining -= count // run
        self._own, self._left = self.count // run, remaining

    def before(self, slots: Ints) -> Ints:
        """Return how many of the first ``slots`` slots are this dataset's. Slots continue across epochs."""
        runs, rest = np.divmod(slots, self._run)
        before, after = self._runs_before(runs), self._runs_before(runs + 1)
        own: Ints = before * self._run + rest * (after - before)
        return own

    def _runs_before(self, runs: Ints) -> Ints:
        for count, available in self._others:
            runs = runs - runs * count // available
        return runs * self._own // self._left

    def slots_of(self, places: Ints) -> Ints:
        """Return the slots of this dataset's samples. This is the inverse of :meth:`before`."""
        own, rest = np.divmod(places, self._run)
        runs = -(-(own + 1) * self._left // self._own) - 1
        for count, available in reversed(self._others):
            runs = runs * available // (available - count)
        return runs * self._run + rest
