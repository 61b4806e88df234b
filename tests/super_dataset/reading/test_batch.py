"""Where payloads go, which are hashed, and how unusual replies are handled; the fuzzers cover the rest."""

import os

import numpy as np

from superdl.super_dataset.reading.batch import Batch, check_records
from superdl.super_dataset.reading.buffer import HASHED_SHARE, BatchBuffer, ReplyKind, SeenRecords
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import bound_to, images, receive, received, record, ref_of, tombstone

IDS = bytes(range(128)) * 5
"""The ids of 40 samples; each record here belongs to the sample at its offset."""
GOOD = record(images(1)[0])


def read_by(seen, *records, epoch=0):
    """The offsets of records that were hashed on arrival, and of those found corrupt."""
    ids = IDS[: 16 * len(records)]
    wholes = [bound_to(ids[16 * offset : 16 * offset + 16], whole) for offset, whole in enumerate(records)]
    buffer = received(wholes, to_hash=seen.to_hash(ids, epoch))
    spoilt = check_records(buffer, ids, np.arange(len(records)), seen)
    return np.flatnonzero(buffer.digests).tolist(), sorted(spoilt)


def turns(epoch, count):
    prefixes = np.frombuffer(IDS[: 16 * count], dtype="<u8")[::2]
    return [at for at in range(count) if (int(prefixes[at]) + epoch) % HASHED_SHARE == 0]


def test_known_records_are_hashed_in_turn_or_when_produced_again():
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


def test_a_fork_hashes_everything_again():
    seen = SeenRecords()
    read_by(seen, GOOD, GOOD)
    assert read_by(seen, GOOD, GOOD, epoch=1)[0] == turns(1, 2)
    pid = os.fork()
    if not pid:
        os._exit(read_by(seen, GOOD, GOOD, epoch=1)[0] != [0, 1])
    assert os.waitpid(pid, 0)[1] == 0


SIX = record(np.arange(6, dtype=np.uint8))


def test_only_a_valid_data_record_sets_the_slot_size():
    buffer = BatchBuffer(4)
    receive(buffer, 0, tombstone("key"))
    receive(buffer, 1, b"X" * 100)
    receive(buffer, 2, SIX + b"one byte too many")
    assert buffer.block is None
    receive(buffer, 3, SIX)
    assert buffer.item_bytes == 6
    assert sorted(buffer.own) == [0, 1, 2]
    receive(buffer, 1, SIX)  # the retry was good
    assert sorted(buffer.own) == [0, 2]
    assert bytes(buffer.payload(1)) == SIX[HEADER_BYTES:]


def test_an_unexpected_large_record_allocates_no_block():
    large = record(np.zeros(2**20, dtype=np.uint8))
    for expected_bytes in (None, 2**20):
        buffer = BatchBuffer(100, expected_bytes=expected_bytes)
        receive(buffer, 0, large)
        assert (buffer.block is None) is (expected_bytes is None)


def sorted_batch(*errors):
    """A batch whose first sample is missing from the cache, and whose others get these error replies."""
    batch = Batch(ref_of(3, "unix:///c"), BatchBuffer(3))
    batch.buffer.replies[0] = ReplyKind.NIL
    for offset, text in enumerate(errors, 1):
        batch.buffer.replies[offset], batch.buffer.errors[offset] = ReplyKind.ERROR, text
    batch.sort()
    return batch


def test_only_samples_that_the_cache_lacks_are_reported_as_misses():
    batch = sorted_batch("LOADING the dataset in memory")  # no reply for the third
    report = batch.report(done=False)
    assert batch.missing == [0, 1, 2]
    assert (report.missed, report.corrupt, report.hits) == ((0,), (), 0)
    assert not batch.buffer.errors


def test_an_error_that_no_get_causes_means_replies_are_out_of_sync():
    """A flipped bit in a command, or another command's reply in its place."""
    batch = sorted_batch("ERR unknown command 'GDT'", "LOADING the dataset in memory")
    assert batch.missing == [0, 1, 2]
    assert "GDT" in batch.astray
