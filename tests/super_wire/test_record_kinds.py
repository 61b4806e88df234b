"""Pointers and named arrays come back as they went in, and bytes that are none give a RecordError only."""

from __future__ import annotations

import random

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError
from superdl.super_wire.record import (
    DTYPE_CODES,
    HEADER_BYTES,
    RecordKind,
    pack,
    pack_header,
    parse_header,
    unpack,
)
from superdl.super_wire.record_kinds import (
    Pointer,
    pack_arrays,
    pack_pointer,
    read_arrays,
    read_pointer,
)

ID = bytes(range(16))
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.sampled_from(list(DTYPE_CODES)).flatmap(
        lambda name: hnp.arrays(
            np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)
        )
    ),
    min_size=1,
    max_size=5,
)
POINTERS = st.builds(
    Pointer, st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True), st.integers(0, 2**62),
    st.integers(64, 2**62),
)  # fmt: skip


@given(ARRAYS)
def test_named_arrays_round_trip(arrays):
    record = pack_arrays(arrays, ID, fetch_us=3, decode_us=4)
    back = read_arrays(record, sample_id=ID)
    assert list(back) == sorted(arrays, key=str.encode)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
    header = parse_header(record, record_bytes=len(record), sample_id=ID)
    assert (header.kind, header.fetch_us, header.decode_us) == (RecordKind.ARRAYS, 3, 4)


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
    record = pack_arrays({"b": np.array([1, 2], dtype=np.int16), "a": np.uint8(7)[None]}, ID)
    assert xxhash.xxh3_64_hexdigest(record) == "dc086bec6e69d6c7"


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


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {str(n): np.zeros(1) for n in range(65)},
        {"": np.zeros(1)},
        {"x" * 256: np.zeros(1)},
        {"x": np.zeros((1,) * 7)},
    ],
)
def test_arrays_that_no_record_holds(arrays):
    with pytest.raises(RecordError):
        pack_arrays(arrays, ID)


def test_each_kind_is_read_as_what_it_is():
    header, payload = pack(np.zeros(24, dtype=np.uint8), ID)
    records = {
        RecordKind.DATA: header + bytes(payload),
        RecordKind.POINTER: pack_pointer(Pointer("pack", 0, 64), ID),
        RecordKind.ARRAYS: pack_arrays({"x": np.zeros(3)}, ID),
    }
    readers = {RecordKind.DATA: unpack, RecordKind.POINTER: read_pointer, RecordKind.ARRAYS: read_arrays}
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
    rng = random.Random(seed)
    for good, read in (
        (pack_pointer(Pointer("pack", 5, 99), ID), read_pointer),
        (pack_arrays({"a": np.arange(6, dtype=np.int32)}, ID), read_arrays),
    ):
        record, at = bytearray(good), rng.randrange(8 * len(good))
        record[at // 8] ^= 1 << at % 8
        if at // 8 not in range(48, 56):  # the times, which nothing guards
            with pytest.raises(RecordError):
                read(record, sample_id=ID)
