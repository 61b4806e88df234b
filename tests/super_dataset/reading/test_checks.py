"""Which payloads are hashed, and when; what is wrong with records is the fuzzers' (test_read_path.py)."""

from __future__ import annotations

import os

import numpy as np

from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_dataset.reading.checks import HASHED_SHARE, SeenRecords, check_records
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import bound_to, images, record

IDS = bytes(range(128)) * 5
"""Of 40 samples; each record here is of the sample at its offset."""
GOOD = record(images(1)[0])


def received(*records: bytes, to_hash: np.ndarray | None = None) -> BatchBuffer:
    buffer = BatchBuffer(len(records), to_hash=to_hash)
    for offset, whole in enumerate(records):
        whole = bound_to(IDS[16 * offset : 16 * offset + 16], whole)  # noqa: PLW2901
        incoming = buffer.place(offset, whole[:HEADER_BYTES], len(whole) - HEADER_BYTES)
        incoming.payload[:] = whole[HEADER_BYTES:]
        buffer.note_record(incoming)
    return buffer


def read_by(seen: SeenRecords, *records: bytes, epoch: int = 0) -> tuple[list[int], list[int]]:
    """Which records of a batch were hashed as they came, and which were found corrupt."""
    ids = IDS[: 16 * len(records)]
    buffer = received(*records, to_hash=seen.to_hash(ids, epoch))
    checked = check_records(buffer, ids, range(len(records)), seen)
    return sorted(buffer.digests), sorted(checked.corrupt)


def turns(epoch: int, count: int) -> list[int]:
    prefixes = np.frombuffer(IDS[: 16 * count], dtype="<u8")[::2]
    return [at for at in range(count) if (int(prefixes[at]) + epoch) % HASHED_SHARE == 0]


def test_what_was_hashed_once_is_hashed_again_in_turn_or_when_it_was_made_again():
    seen, spoilt = SeenRecords(), GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    whole = [record(image) for image in images(8)]
    assert read_by(seen, *whole[:5], spoilt, *whole[6:]) == ([*range(8)], [5])
    for epoch in range(2 * HASHED_SHARE):
        hashed, corrupt = read_by(seen, *whole, epoch=epoch)
        assert hashed == sorted({*turns(epoch, 8), *([5] if epoch == 0 else [])})
        assert not corrupt
    made_again = record(images(1)[0], decode_us=3)
    assert read_by(seen, *whole[:3], made_again[:-1] + b"?", *whole[4:], epoch=1)[1] == [3]
    assert read_by(SeenRecords(), *whole)[0] == [*range(8)]


def test_a_fork_has_read_nothing():
    seen = SeenRecords()
    read_by(seen, GOOD, GOOD)
    assert read_by(seen, GOOD, GOOD, epoch=1)[0] == turns(1, 2)
    pid = os.fork()
    if not pid:
        os._exit(read_by(seen, GOOD, GOOD, epoch=1)[0] != [0, 1])
    assert os.waitpid(pid, 0)[1] == 0
