"""Pointers come back as they went in, and bytes that are none give a RecordError only."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError
from superdl.super_wire.record import HEADER_BYTES, RecordKind, pack, pack_header, parse_header, unpack
from superdl.super_wire.record_kinds import Pointer, pack_pointer, read_pointer

ID = bytes(range(16))
POINTERS = st.builds(
    Pointer, st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True), st.integers(0, 2**62),
    st.integers(64, 2**62),
)  # fmt: skip


@given(POINTERS)
def test_pointers_round_trip(pointer):
    record = pack_pointer(pointer, ID)
    assert read_pointer(record, sample_id=ID) == pointer
    assert parse_header(record, record_bytes=len(record)).kind is RecordKind.POINTER


def test_golden_records():
    """These never change: other versions of SUPER read what this one wrote."""
    assert pack_pointer(Pointer("p-1", 4096, 150_592), ID)[HEADER_BYTES:].hex() == (
        "0010000000000000404c020000000000702d31"
    )


@pytest.mark.parametrize("name", ["", "..", "../pack", "a/b", ".hidden", "-x", "a\0", "é", "x" * 256])
def test_no_pack_lies_outside_its_store(name):
    with pytest.raises(RecordError, match="pack's name"):
        Pointer(name, 0, 64)
    payload = bytes(8) + (64).to_bytes(8, "little") + name.encode()
    with pytest.raises(RecordError):
        read_pointer(pack_header(RecordKind.POINTER, payload, ID) + payload)


@pytest.mark.parametrize(("offset", "length"), [(-1, 64), (0, 63), (2**64 - 64, 64), (0, 2**64)])
def test_no_record_lies_at_such_a_place(offset, length):
    with pytest.raises(RecordError, match="no record of"):
        Pointer("pack", offset, length)


def test_each_kind_is_read_as_what_it_is():
    header, payload = pack(np.zeros(24, dtype=np.uint8), ID)
    records = {
        RecordKind.DATA: header + bytes(payload),
        RecordKind.POINTER: pack_pointer(Pointer("pack", 0, 64), ID),
    }
    readers = {RecordKind.DATA: unpack, RecordKind.POINTER: read_pointer}
    for kind, record in records.items():
        for other, read in readers.items():
            if other is kind:
                read(record, sample_id=ID)
                with pytest.raises(RecordIdError):
                    read(record, sample_id=ID[::-1])
            else:
                with pytest.raises(RecordVersionError, match=f"of kind {kind.name.lower()}"):
                    read(record)


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_noticed(seed):
    record = bytearray(pack_pointer(Pointer("pack", 5, 99), ID))
    at = random.Random(seed).randrange(8 * len(record))
    record[at // 8] ^= 1 << at % 8
    if at // 8 not in range(48, 56):  # the times, which nothing guards
        with pytest.raises(RecordError):
            read_pointer(record, sample_id=ID)
