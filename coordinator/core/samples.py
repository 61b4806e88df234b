"""The residency of samples: one byte of state per sample, and the table of legal transitions.

A *sample set* contains the samples of a dataset with a recipe, and of a single epoch
if the recipe is random.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"
Bools: TypeAlias = "NDArray[np.bool_]"

EVERY_EPOCH = -1  # the SetKey.epoch of a deterministic recipe, whose samples are equal in all epochs
_OBJECT_BYTES = 16
# Bytes for key, dictionary entry and object header, as measured with Valkey 9 and Redis 7
_KEY_OVERHEAD_BYTES = 160


class SetKey(NamedTuple):
    """The name of a sample set: dataset (digest of catalog and recipe), and epoch if the recipe is random."""

    dataset: bytes
    epoch: int


class SampleState(enum.IntEnum):
    """The assumed state of a sample. The cache has the actual state."""

    UNKNOWN = 0  # never checked; the cache may hold it from an earlier coordinator
    CHECKING = 1  # an audit is in flight
    ABSENT = 2
    IN_FLIGHT = 3  # a request for it is in flight
    WAITING = 4  # it failed and waits for its retry
    RESIDENT = 5
    FAILED = 6  # a tombstone contains the reason


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
_LEGAL_TO = np.ascontiguousarray(LEGAL.T)
_FROM_RESIDENT = LEGAL[_S.RESIDENT].tolist()
# While an audit checks resident samples, their memory still counts as taken.
_FROM_STORED = (LEGAL[_S.RESIDENT] | LEGAL[_S.CHECKING]).tolist()
_FROM_STORED[_S.CHECKING] = False


def footprint(record_bytes: Ints) -> Ints:
    """Return the bytes of records in Redis: jemalloc's size class (four per doubling), plus the key."""
    size = np.maximum(np.asarray(record_bytes, dtype=np.int64) + _OBJECT_BYTES, _OBJECT_BYTES)
    step = np.int64(1) << np.maximum(np.floor(np.log2(size - 1)).astype(np.int64) - 2, 4)
    taken: Ints = (size + step - 1) // step * step + _KEY_OVERHEAD_BYTES
    return taken


def count_again(counts: Counter[int], indices: Ints) -> Ints:
    """Increase the count of each of ``indices`` by one, and return the new counts."""
    counts.update(indices.tolist())
    return np.array([counts[index] for index in indices.tolist()], dtype=np.int64)


@dataclass(slots=True)
class CacheMemory:
    """The total cache memory of the records of several sample sets."""

    resident_bytes: int = 0


class SampleSet:
    """The samples of one set, as parallel arrays of shape (size,)."""

    def __init__(
        self,
        key: SetKey,
        size: int,
        *,
        record_bytes: int,
        known_absent: bool,
        memory: CacheMemory | None = None,
    ) -> None:
        start = SampleState.ABSENT if known_absent else SampleState.UNKNOWN
        self.key = key
        self.state: NDArray[np.uint8] = np.full(size, start, dtype=np.uint8)
        # Bytes in the cache. Only resident samples have any, and keep them while
        # an audit checks them.
        self.stored_bytes: NDArray[np.uint32] = np.zeros(size, dtype=np.uint32)
        self.attempts: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        # Whether the sample was dropped from the cache to make room.
        self.dropped: Bools = np.zeros(size, dtype=np.bool_)
        # Number of the pack in the store with the record, or 0 if unknown. None
        # if no location is known, as always with a random recipe.
        self.packs: NDArray[np.uint32] | None = None
        self.stored_count = 0
        # Whether packs with some of the samples were removed.
        self.has_lost_packs = False
        # Whether the cache holds a pointer into the store. None if it never did.
        self.pointed: Bools | None = None
        # Time until which no pointers are used, because a reader could not follow one.
        self.pointers_from_s = 0.0
        self._by_pack: tuple[Ints, NDArray[np.uint32]] | None = None
        self._moved = 0
        self._doubted: Bools | None = None
        # Failures of a sample that were blamed on the executor.
        self.blamed_on_executor: Counter[int] = Counter()
        # How often in a row the source failed to provide a sample. Not empty since
        # unavailable_since_s.
        self.unavailable: Counter[int] = Counter()
        self.unavailable_since_s = 0.0
        self.resident_bytes = 0
        self.resident_count = 0
        # Expected footprint of a sample that was not produced yet: a running mean once there are any
        self.sample_bytes = float(footprint(np.array([record_bytes]))[0])
        self._stored_count = 0
        self._memory = memory or CacheMemory()

    def among(self, indices: Ints, state: SampleState) -> Ints:
        """Return the ``indices`` of samples in ``state``, in order."""
        matching: Ints = indices[self.state[indices] == state]
        return matching

    def having(self, state: SampleState) -> Ints:
        """Return all samples in ``state``, ascending."""
        return np.flatnonzero(self.state == state)

    def doubt(self) -> None:
        """Mark all resident samples as doubtful, because the server evicted records on its own."""
        self._doubted = self.state == SampleState.RESIDENT

    def to_check(self, indices: Ints) -> Ints:
        """Return the ``indices`` of samples that need an audit."""
        states = self.state[indices]
        unsure: Bools = states == SampleState.UNKNOWN
        if self._doubted is not None:
            unsure |= self._doubted[indices] & (states == SampleState.RESIDENT)
        return indices[unsure]

    def stored(self, indices: Ints) -> Bools:
        """Return a mask of the ``indices`` with a known location in the store."""
        if self.packs is None:
            return np.zeros(indices.size, dtype=np.bool_)
        known: Bools = self.packs[indices] != 0
        return known

    def place(self, indices: Ints, packs: NDArray[np.uint32] | int) -> None:
        """Set the packs of the store that contain the records of ``indices``, or 0 if they are unknown."""
        if self.packs is None:
            self.packs = np.zeros(self.state.size, dtype=np.uint32)
        self.stored_count -= int(np.count_nonzero(self.packs[indices]))
        self.packs[indices] = packs
        self.stored_count += int(np.count_nonzero(self.packs[indices]))
        self._moved += indices.size
        if self._moved > max(self.state.size // 16, 1024):  # sorting is only worth it for many
            self._by_pack, self._moved = None, 0

    def samples_in_pack(self, pack: int) -> Ints:
        """Return the samples in a pack. Some of the most recent ones may be missing."""
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
        """Return all samples that are or may be in the cache or in flight, ascending."""
        return np.flatnonzero((self.state != SampleState.UNKNOWN) & (self.state != SampleState.ABSENT))

    def move(self, indices: Ints, to: SampleState) -> None:
        """Move distinct ``indices`` to a state. Raises ``RuntimeError`` on an illegal transition, a bug."""
        if not indices.size:
            return
        before = self.state[indices]
        if not _LEGAL_TO[to][before].all():
            wrong = sorted({SampleState(int(state)).name for state in before[~LEGAL[before, to]]})
            msg = f"illegal change of a sample's state in {self.key}: {', '.join(wrong)} to {to.name}"
            raise RuntimeError(msg)
        if _FROM_RESIDENT[to]:
            self.resident_count -= int(np.count_nonzero(before == SampleState.RESIDENT))
        elif to == SampleState.RESIDENT:
            self.resident_count += indices.size
        if _FROM_STORED[to]:
            self._take(-int(self.stored_bytes[indices].sum(dtype=np.int64)))
            self.stored_bytes[indices] = 0
            if self.pointed is not None:
                self.pointed[indices] = False
        self.state[indices] = to

    def store(self, indices: Ints, record_bytes: Ints) -> None:
        """Mark ``indices`` as resident, with records of these sizes in bytes."""
        if not indices.size:
            return
        self.move(indices, SampleState.RESIDENT)
        taken = footprint(record_bytes)
        total = int(taken.sum())
        self.stored_bytes[indices] = taken
        self.attempts[indices] = 0
        self.clear_failures(indices)
        if self._doubted is not None:
            self._doubted[indices] = False
        self._take(total)
        self._stored_count += indices.size
        share = indices.size / self._stored_count
        self.sample_bytes += (total / indices.size - self.sample_bytes) * max(share, 0.05)

    def point(self, indices: Ints, record_bytes: Ints) -> None:
        """Mark resident pointers, whose lengths are independent of those of the records."""
        if not indices.size:
            return
        known = self.sample_bytes, self._stored_count
        self.store(indices, record_bytes)
        self.sample_bytes, self._stored_count = known
        if self.pointed is None:
            self.pointed = np.zeros(self.state.size, dtype=np.bool_)
        self.pointed[indices] = True

    def pointers_among(self, indices: Ints) -> Ints:
        """Return the ``indices`` of samples that are resident as pointers."""
        if self.pointed is None:
            return indices[:0]
        return self.among(indices[self.pointed[indices]], _S.RESIDENT)

    def clear_failures(self, indices: Ints) -> None:
        """Clear the failure counts of these samples, as their outcome is known."""
        for counts in (self.blamed_on_executor, self.unavailable):
            if counts:
                for index in indices.tolist():
                    counts.pop(index, None)

    @property
    def idle(self) -> bool:
        """Return whether no sample of this set is cached, in flight or waiting."""
        return not self.resident_count and not self.under_way

    @property
    def under_way(self) -> bool:
        """Return whether an audit, a request or a retry is pending for any sample."""
        return any(self.count(state) for state in (_S.CHECKING, _S.IN_FLIGHT, _S.WAITING))

    def count(self, state: SampleState) -> int:
        """Return the number of samples in a state."""
        return (
            self.resident_count
            if state == SampleState.RESIDENT
            else int(np.count_nonzero(self.state == state))
        )

    def _take(self, size_bytes: int) -> None:
        self.resident_bytes += size_bytes
        self._memory.resident_bytes += size_bytes
