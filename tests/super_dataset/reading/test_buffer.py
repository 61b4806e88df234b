"""Where payloads are received: one block while records are alike, memory of their own otherwise."""

from __future__ import annotations

import numpy as np

from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import record, tombstone


def put(buffer: BatchBuffer, offset: int, whole: bytes) -> None:
    payload = whole[HEADER_BYTES:]
    incoming = buffer.place(offset, whole[:HEADER_BYTES], len(payload))
    incoming.payload[:] = payload
    buffer.note_record(incoming)


SIX = record(np.arange(6, dtype=np.uint8))


def test_only_a_sound_data_record_decides_the_size():
    buffer = BatchBuffer(4)
    put(buffer, 0, tombstone("key"))
    put(buffer, 1, b"X" * 100)
    put(buffer, 2, SIX + b"one byte too many")
    assert buffer.block is None
    put(buffer, 3, SIX)
    assert buffer.item_bytes == 6
    assert sorted(buffer.own) == [0, 1, 2]
    put(buffer, 1, SIX)  # found good when asked again
    assert sorted(buffer.own) == [0, 2]
    assert bytes(buffer.payload(1)) == SIX[HEADER_BYTES:]


def test_a_large_first_record_does_not_reserve_its_size_for_every_sample():
    large = record(np.zeros(2**20, dtype=np.uint8))
    buffer = BatchBuffer(100)
    put(buffer, 0, large)
    assert buffer.block is None
    buffer = BatchBuffer(100, expected_bytes=2**20)
    put(buffer, 0, large)
    assert buffer.block is not None
