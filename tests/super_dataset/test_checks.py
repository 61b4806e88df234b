"""Every way in which a record can be wrong is found, and its payload's hash in time."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from super_dataset.buffer import BatchBuffer
from super_dataset.checks import VERIFIED_SHARE, check_records, to_verify
from super_wire.errors import RecordHashError, RecordLengthError, RecordMagicError, RecordVersionError
from super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import images, record, tombstone

GOOD = record(images(1)[0])
ALL = np.ones(64, dtype=np.bool_)
NONE = np.zeros(64, dtype=np.bool_)

CORRUPT = {
    "empty": (b"", RecordLengthError),
    "short": (b"SUPR", RecordLengthError),
    "magic": (b"RDB!" + GOOD[4:], RecordMagicError),
    "version": (GOOD[:4] + b"\x09" + GOOD[5:], RecordVersionError),
    "kind": (GOOD[:5] + b"\x07" + GOOD[6:], RecordVersionError),
    "dtype": (GOOD[:6] + b"\xfe" + GOOD[7:], RecordVersionError),
    "ndim": (GOOD[:7] + b"\x09" + GOOD[8:], RecordLengthError),
    "shape": (GOOD[:24] + b"\x01" + GOOD[25:], RecordLengthError),
    "truncated": (GOOD[:-1], RecordLengthError),
    "too long": (GOOD + b"\0", RecordLengthError),
    "header only": (GOOD[:HEADER_BYTES], RecordLengthError),
    "tombstone's text": (tombstone("k")[:-2] + b"xx", RecordHashError),
}


def received(*records: bytes) -> BatchBuffer:
    buffer = BatchBuffer(len(records))
    for offset, whole in enumerate(records):
        if len(whole) < HEADER_BYTES:
            buffer.place_short(offset, len(whole))[:] = whole
        else:
            payload = whole[HEADER_BYTES:]
            buffer.place(offset, whole[:HEADER_BYTES], len(payload))[:] = payload
        buffer.note_record(offset, whole[:HEADER_BYTES] if len(whole) >= HEADER_BYTES else b"", len(whole))
    return buffer


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("name", CORRUPT)
def test_each_corruption_is_found_wherever_it_stands(name, place):
    whole, error = CORRUPT[name]
    records = [GOOD] * 4
    records[place] = whole
    verdict = check_records(received(*records), [0, 1, 2, 3], NONE)
    assert {offset: type(found) for offset, found in verdict.corrupt.items()} == {place: error}
    assert not verdict.tombstones


def test_only_the_offsets_asked_for_are_checked():
    buffer = received(GOOD, CORRUPT["magic"][0], GOOD)
    assert not check_records(buffer, [0, 2], NONE).corrupt
    assert not check_records(buffer, [], NONE).corrupt


def test_tombstones_are_read():
    verdict = check_records(
        received(GOOD, tombstone("a.jpg"), tombstone("b.jpg", permanent=False)), [0, 1, 2], ALL
    )
    assert {offset: (stone.key, stone.permanent) for offset, stone in verdict.tombstones.items()} == {
        1: ("a.jpg", True),
        2: ("b.jpg", False),
    }


def test_a_flipped_pixel_is_found_where_the_hash_is_verified():
    flipped = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    buffer = received(GOOD, flipped, flipped)
    mask = np.array([True, False, True])
    verdict = check_records(buffer, [0, 1, 2], mask)
    assert {offset: type(error) for offset, error in verdict.corrupt.items()} == {2: RecordHashError}


def test_layouts_may_differ():
    other = record(np.zeros((2, 5), dtype=np.float32))
    verdict = check_records(received(GOOD, other, GOOD), [0, 1, 2], ALL)
    assert not verdict.corrupt
    assert not verdict.tombstones


@given(count=st.integers(0, 300))
def test_every_sample_is_verified_once_in_so_many_epochs(count):
    ids = os.urandom(16 * count)
    turns = np.sum([to_verify(ids, epoch, "sample") for epoch in range(VERIFIED_SHARE)], axis=0)
    assert (turns == 1).all()
    assert to_verify(ids, 0, "all").all()
    assert len(to_verify(ids, 0, "all")) == count


def test_the_verified_share_is_what_it_says():
    share = to_verify(os.urandom(16 * 64_000), 5, "sample").mean()
    assert share == pytest.approx(1 / VERIFIED_SHARE, rel=0.25)
