"""Memory for a batch, and the selection of payloads to hash on arrival."""

from __future__ import annotations

import enum
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.super_dataset.memory.batch_memory import RecycledMemory
from superdl.super_wire.record import HEADER_BYTES, HEADER_DTYPE, MAGIC, RecordKind, payload_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from superdl.super_dataset.memory.batch_memory import Memory

# The payload's length in a header.
PAYLOAD_BYTES = slice(8, 16)

_MAX_BLIND_BYTES = 64 * 2**20
_KIND_AT = 5  # offset of the kind in a record's header
_IN_BLOCKS = (RecordKind.DATA, RecordKind.ARRAYS)


# Each epoch hashes one in this many known payloads again.
HASHED_SHARE = 64

_SLOTS = 2**20  # 8 MiB, of which only touched pages use memory
_SLOT = np.uint64(_SLOTS - 1)
_UPPER = np.uint64(0xFFFFFFFF00000000)
_LOWER = np.uint64(0x00000000FFFFFFFF)


class ReplyKind(enum.IntEnum):
    """The kind of the cache's latest reply for a sample."""

    NONE = 0  # no reply yet
    RECORD = 1  # bytes, not checked yet
    NIL = 2
    ERROR = 3  # see BatchBuffer.errors


# Plain integers, since comparing arrays with enum members is slow.
_NONE, _RECORD = int(ReplyKind.NONE), int(ReplyKind.RECORD)


class Incoming(NamedTuple):
    """A record being received. If it is too short for a header, all of it counts as payload."""

    offset: int
    header: bytes
    payload: memoryview
    in_block: bool


class BatchBuffer:
    """Memory for the records of ``size`` samples.

    For each sample, ``replies`` holds a :class:`ReplyKind`, ``headers`` the record's header (zeros if the
    record is shorter), ``raw_headers`` the same bytes as uint8 (size, 64), and ``record_bytes`` the
    record's length.

    Args:
        size: number of samples.
        memory: allocator for the block.
        uniform: whether to expect records of the same size. Otherwise, each payload gets separate memory.
        expected_bytes: expected length of a payload. Records of a different length then allocate no block.
            If it is unknown, the block takes at most 64 MiB.
    """

    def __init__(
        self,
        size: int,
        *,
        memory: Memory | None = None,
        uniform: bool = True,
        expected_bytes: int | None = None,
    ) -> None:
        self.size = size
        self.memory: Memory = memory or RecycledMemory()
        self.replies: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)
        self.raw_headers: NDArray[np.uint8] = np.zeros((size, HEADER_BYTES), dtype=np.uint8)
        self.headers = self.raw_headers.view(HEADER_DTYPE).reshape(size)
        self.record_bytes: NDArray[np.int64] = np.zeros(size, dtype=np.int64)
        self.own: dict[int, memoryview] = {}  # payloads outside the block, by sample
        self.errors: dict[int, str] = {}  # error replies, by sample
        # Samples whose payloads to hash on arrival, by default all.
        self.to_hash: NDArray[np.bool_] = np.full(size, fill_value=True)
        self.digests: NDArray[np.uint64] = np.zeros(size, dtype=np.uint64)  # xxh3-64 of these
        # Payload bytes per slot of the block, or -1 without a block.
        self.item_bytes = -1
        # Payloads of one size, which become the batch's tensor without a copy: uint8 (size * item_bytes,).
        self.block: torch.Tensor | None = None
        self.slots = memoryview(bytearray())  # the block's bytes
        self._uniform = uniform
        self._expected_bytes = expected_bytes

    def slot(self, offset: int) -> memoryview:
        """Return the part of the block for one sample's payload."""
        start = offset * self.item_bytes
        return self.slots[start : start + self.item_bytes]

    def place(self, offset: int, header: bytes, payload_bytes: int) -> Incoming:
        """Return memory for a record's payload. The first valid record sets the slot size."""
        if payload_bytes and payload_bytes != self.item_bytes and self._uniform and self.block is None:
            self._allocate_for(header, payload_bytes)
        if header and payload_bytes == self.item_bytes:
            return Incoming(offset, header, self.slot(offset), in_block=True)
        return Incoming(offset, header, np.empty(payload_bytes, dtype=np.uint8).data, in_block=False)

    def payload(self, offset: int) -> memoryview:
        """Return a sample's received payload."""
        return self.own[offset] if offset in self.own else self.slot(offset)

    def note_record(self, record: Incoming) -> None:
        """Store a completely received record."""
        # Set everything, so that nothing remains of an earlier reply for this sample.
        offset, header, payload, in_block = record
        self.raw_headers[offset] = np.frombuffer(header.ljust(HEADER_BYTES, b"\0"), dtype=np.uint8)
        self.record_bytes[offset] = len(header) + len(payload)
        self.own.pop(offset, None)
        if not in_block:
            self.own[offset] = payload
        if self.to_hash[offset]:
            self.digests[offset] = payload_hash(payload)
        self.replies[offset] = _RECORD

    def note_records(
        self, offsets: Sequence[int], headers: NDArray[np.uint8], digests: Sequence[int]
    ) -> None:
        """Store records that fill their slots. ``headers`` is uint8 (offsets, 64)."""
        self.raw_headers[offsets] = headers
        self.record_bytes[offsets] = HEADER_BYTES + self.item_bytes
        for offset in offsets if self.own else ():
            self.own.pop(offset, None)
        self.digests[offsets] = np.array(digests, dtype=np.uint64)
        self.replies[offsets] = _RECORD

    def take_back(self, offset: int) -> None:
        """Drop a sample's bad record, so that the sample is requested again."""
        self.replies[offset] = _NONE
        self.own.pop(offset, None)

    def _allocate_for(self, header: bytes, payload_bytes: int) -> None:
        known = self._expected_bytes == payload_bytes
        if not known and (self._expected_bytes is not None or self.size * payload_bytes > _MAX_BLIND_BYTES):
            return
        # A declared size is not trusted. Only a data record with a matching header allocates a block.
        if header[: len(MAGIC)] != MAGIC or header[_KIND_AT] not in _IN_BLOCKS:
            return
        if int.from_bytes(header[PAYLOAD_BYTES], "little") != payload_bytes:
            return
        self.block = self.memory.take(self.size * payload_bytes)
        self.slots = self.block.numpy().data
        self.item_bytes = payload_bytes


class SeenRecords:
    """The records hashed by this process, in a direct-mapped table of at most 8 MiB. Thread-safe."""

    def __init__(self) -> None:
        self._pid = 0
        # 32 bits of the sample id, besides the 20 that select the slot, and 32 bits of production times.
        self._entries: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    def to_hash(self, sample_ids: bytes, epoch: int) -> NDArray[np.bool_]:
        """Return a bool mask (samples,) of payloads to hash: new ones and those due for another check."""
        if self._pid != os.getpid():  # a fork has not read its parent's records
            self._entries = np.zeros(_SLOTS, dtype=np.uint64)
            self._pid = os.getpid()  # last, since other threads check it
        prefixes, words = np.frombuffer(sample_ids, dtype="<u8").reshape(-1, 2).T
        entries = self._entries[words & _SLOT]
        is_due = (prefixes + np.uint64(epoch % HASHED_SHARE)) % np.uint64(HASHED_SHARE) == 0
        new = (entries & _UPPER != words & _UPPER) | (entries == 0)
        chosen: NDArray[np.bool_] = new | is_due
        return chosen

    def unlike(self, sample_ids: bytes, buffer: BatchBuffer, offsets: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the ``offsets`` whose records differ from those hashed before."""
        slots, entries = _entries(sample_ids, buffer, offsets)
        changed: NDArray[np.intp] = offsets[self._entries[slots] != entries]
        return changed

    def remember(self, sample_ids: bytes, buffer: BatchBuffer, offsets: NDArray[np.intp]) -> None:
        """Remember that the records at ``offsets`` were hashed and are correct."""
        slots, entries = _entries(sample_ids, buffer, offsets)
        self._entries[slots] = entries


def _entries(
    sample_ids: bytes, buffer: BatchBuffer, offsets: NDArray[np.intp]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the samples' slots, and the values that identify their records. 0 marks an empty slot."""
    words = np.frombuffer(sample_ids, dtype="<u8")[1::2][offsets]
    headers = buffer.headers[offsets]
    times = headers["fetch_us"].astype(np.uint64) * np.uint64(0x9E3779B1) + headers["decode_us"]
    return words & _SLOT, words & _UPPER | times & _LOWER | np.uint64(1)
