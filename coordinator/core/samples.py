"""Sample residency: one byte of state per sample, and a table of legal transitions.

A *sample set* holds the samples of a dataset with a recipe. With a random recipe, each epoch has its own set.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"
Bools: TypeAlias = "NDArray[np.bool_]"

EVERY_EPOCH = -1  # the SetKey.epoch of a deterministic recipe
_OBJECT_BYTES = 16
# Key, dictionary entry and object header, as measured with Valkey 9 and Redis 7
_KEY_OVERHEAD_BYTES = 160


class SetKey(NamedTuple):
    """The key of a sample set: dataset (digest of catalog and recipe) and epoch, or ``EVERY_EPOCH``."""

    dataset: bytes
    epoch: int


class SampleState(enum.IntEnum):
    """A sample's presumed state. Only the cache knows the actual state."""

    UNKNOWN = 0  # never audited; an earlier coordinator may have cached it
    CHECKING = 1  # being audited
    ABSENT = 2
    IN_FLIGHT = 3  # requested
    WAITING = 4  # failed, to be retried
    RESIDENT = 5
    FAILED = 6  # the cache may hold a tombstone with the reason


_S = SampleState
_NEXT: dict[SampleState, tuple[SampleState, ...]] = {
    _S.UNKNOWN: (_S.CHECKING,),
    _S.CHECKING: (_S.RESIDENT, _S.FAILED, _S.ABSENT),
    _S.ABSENT: (_S.IN_FLIGHT, _S.FAILED),
    _S.IN_FLIGHT: (_S.RESIDENT, _S.FAILED, _S.WAITING),
    _S.WAITING: (_S.ABSENT,),
    _S.RESIDENT: (_S.ABSENT, _S.CHECKING),
    _S.FAILED: (_S.ABSENT, _S.CHECKING),
}
LEGAL = np.zeros((len(_S), len(_S)), dtype=np.bool_)
for _state, _followers in _NEXT.items():
    LEGAL[_state, list(_followers)] = True


def footprint(record_bytes: Ints) -> Ints:
    """Return the Redis memory of records: jemalloc's size class (four per doubling), plus the key."""
    size = np.maximum(np.asarray(record_bytes, dtype=np.int64) + _OBJECT_BYTES, _OBJECT_BYTES)
    step = np.int64(1) << np.maximum(np.floor(np.log2(size - 1)).astype(np.int64) - 2, 4)
    taken: Ints = (size + step - 1) // step * step + _KEY_OVERHEAD_BYTES
    return taken


def count_again(counts: Counter[int], indices: Ints) -> Ints:
    """Increase the count of each of ``indices`` by one, and return the new counts."""
    counts.update(indices.tolist())
    return np.array([counts[index] for index in indices.tolist()], dtype=np.int64)


class SampleSet:
    """The samples of a set, as parallel arrays of shape (size,)."""

    def __init__(self, key: SetKey, size: int, *, record_bytes: int, known_absent: bool) -> None:
        start = SampleState.ABSENT if known_absent else SampleState.UNKNOWN
        self.key = key
        self.state: NDArray[np.uint8] = np.full(size, start, dtype=np.uint8)
        # Cache memory of resident samples. An audit does not change it.
        self.cached_bytes: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)
        self.attempts: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        # Dropped from the cache to make room.
        self.dropped: Bools = np.zeros(size, dtype=np.bool_)
        # Number of the store's pack with the record, or 0. None if no location is known, as always with a
        # random recipe.
        self.packs: NDArray[np.uint32] | None = None
        self.stored_count = 0
        # Whether the cache holds a pointer into the store. None if it never did.
        self.pointed: Bools | None = None
        # No pointers are created before this time, because a reader could not follow one.
        self.pointers_from_s = 0.0
        self._by_pack: tuple[Ints, NDArray[np.uint32]] | None = None
        self._placed = 0
        self._doubted: Bools | None = None
        # Failures per sample that were blamed on the executor.
        self.blamed_on_executor: Counter[int] = Counter()
        # Consecutive failures of the source per sample, and the time of the first.
        self.unavailable: Counter[int] = Counter()
        self.unavailable_since_s = 0.0
        self.resident_bytes = 0
        self.resident_count = 0
        # Expected footprint of a sample, later the running mean of actual ones
        self.sample_bytes = float(footprint(np.array([record_bytes]))[0])
        self._averaged = 0

    def among(self, indices: Ints, state: SampleState) -> Ints:
        """Return those of ``indices`` that are in ``state``, in order."""
        matching: Ints = indices[self.state[indices] == state]
        return matching

    def having(self, state: SampleState) -> Ints:
        """Return all samples in ``state``, ascending."""
        return np.flatnonzero(self.state == state)

    def doubt(self) -> None:
        """Mark all resident samples for an audit, because the server evicted some records."""
        self._doubted = self.state == SampleState.RESIDENT

    def to_check(self, indices: Ints) -> Ints:
        """Return those of ``indices`` that need an audit."""
        states = self.state[indices]
        unsure: Bools = states == SampleState.UNKNOWN
        if self._doubted is not None:
            unsure |= self._doubted[indices] & (states == SampleState.RESIDENT)
        return indices[unsure]

    def stored(self, indices: Ints) -> Bools:
        """Return a mask of the samples with a known location in the store."""
        if self.packs is None:
            return np.zeros(indices.size, dtype=np.bool_)
        known: Bools = self.packs[indices] != 0
        return known

    def place(self, indices: Ints, packs: NDArray[np.uint32] | int) -> None:
        """Set the packs that contain the samples, or 0 for an unknown location."""
        if self.packs is None:
            self.packs = np.zeros(self.state.size, dtype=np.uint32)
        self.stored_count -= int(np.count_nonzero(self.packs[indices]))
        self.packs[indices] = packs
        self.stored_count += int(np.count_nonzero(self.packs[indices]))
        self._placed += indices.size
        if self._placed > max(self.state.size // 16, 1024):  # sort again only after many changes
            self._by_pack, self._placed = None, 0

    def samples_in_pack(self, pack: int) -> Ints:
        """Return the samples in a pack. Recent additions may be missing."""
        if self.packs is None:
            return np.empty(0, dtype=np.int64)
        if self._by_pack is None:
            order = np.argsort(self.packs, kind="stable")
            self._by_pack = order, self.packs[order]
        order, packs = self._by_pack
        indexed: Ints = order[slice(*np.searchsorted(packs, np.array([pack, pack + 1], dtype=np.uint64)))]
        current: Ints = indexed[self.packs[indexed] == pack]
        return current

    def held(self) -> Ints:
        """Return all samples that may be cached or in flight, ascending."""
        return np.flatnonzero((self.state != SampleState.UNKNOWN) & (self.state != SampleState.ABSENT))

    def move(self, indices: Ints, to: SampleState) -> None:
        """Move distinct samples to a state. Raises ``RuntimeError`` for an illegal transition (a bug)."""
        before = self.state[indices]
        if not LEGAL[before, to].all():
            wrong = sorted({SampleState(int(state)).name for state in before[~LEGAL[before, to]]})
            msg = f"illegal change of a sample's state in {self.key}: {', '.join(wrong)} to {to.name}"
            raise RuntimeError(msg)
        self.resident_count -= int(np.count_nonzero(before == SampleState.RESIDENT))
        if to == SampleState.RESIDENT:
            self.resident_count += indices.size
        elif to != SampleState.CHECKING:  # an audit does not free memory
            self.resident_bytes -= int(self.cached_bytes[indices].sum(dtype=np.int64))
            self.cached_bytes[indices] = 0
            if self.pointed is not None:
                self.pointed[indices] = False
        self.state[indices] = to

    def store(self, indices: Ints, record_bytes: Ints, *, pointers: bool = False) -> None:
        """Mark samples as resident, with records or pointers of these sizes in bytes."""
        if not indices.size:
            return
        self.move(indices, SampleState.RESIDENT)
        sizes = footprint(record_bytes)
        total = int(sizes.sum())
        self.resident_bytes += total - int(self.cached_bytes[indices].sum(dtype=np.int64))
        self.cached_bytes[indices] = sizes
        self.attempts[indices] = 0
        self.clear_failures(indices)
        if self._doubted is not None:
            self._doubted[indices] = False
        if self.pointed is None and pointers:
            self.pointed = np.zeros(self.state.size, dtype=np.bool_)
        if self.pointed is not None:
            self.pointed[indices] = pointers
        if not pointers:  # a pointer's size says nothing about records
            self._averaged += indices.size
            share = indices.size / self._averaged
            self.sample_bytes += (total / indices.size - self.sample_bytes) * max(share, 0.05)

    def pointers_among(self, indices: Ints) -> Ints:
        """Return those of ``indices`` that are cached as pointers."""
        if self.pointed is None:
            return indices[:0]
        return self.among(indices[self.pointed[indices]], _S.RESIDENT)

    def clear_failures(self, indices: Ints) -> None:
        """Reset the failure counts of samples whose outcome is known."""
        for counts in (self.blamed_on_executor, self.unavailable):
            if counts:
                for index in indices.tolist():
                    counts.pop(index, None)

    @property
    def idle(self) -> bool:
        """Return whether no sample is cached, in flight or waiting."""
        return not self.resident_count and not self.under_way

    @property
    def under_way(self) -> bool:
        """Return whether an audit, a request or a retry is pending for any sample."""
        return any(self.count(state) for state in (_S.CHECKING, _S.IN_FLIGHT, _S.WAITING))

    def count(self, state: SampleState) -> int:
        """Return the number of samples in a state."""
        return int(np.count_nonzero(self.state == state))
