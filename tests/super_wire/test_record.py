"""Records come back as they went in, copy nothing, and bytes that are none give a RecordError only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError
from superdl.super_wire.record import (
    DTYPE_CODES,
    DTYPE_NAMES,
    HEADER_BYTES,
    RecordKind,
    Tombstone,
    id_prefixes,
    pack,
    pack_tombstone,
    parse_header,
    unpack,
)

SHAPES = hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)
ARRAYS = st.sampled_from(list(DTYPE_CODES)).flatmap(lambda name: hnp.arrays(np.dtype(name), SHAPES))


ID = bytes(range(16))
PREFIX = int.from_bytes(ID[:8], "little")


def record_of(array, **times):
    """One whole record."""
    header, payload = pack(array, ID, **times)
    return header + bytes(payload)


IMAGE = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
RECORD = record_of(IMAGE, fetch_us=11, decode_us=22)


@given(ARRAYS, st.sampled_from([bytes, bytearray, memoryview]))
def test_round_trip(array, kind):
    header, back = unpack(kind(record_of(array, fetch_us=3, decode_us=2**40)))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert (header.kind, header.dtype, header.shape) == (RecordKind.DATA, array.dtype.name, array.shape)
    assert (header.fetch_us, header.decode_us) == (3, 2**32 - 1)
    assert header.payload_bytes == array.nbytes


@given(ARRAYS)
def test_any_memory_order_and_byte_order_gives_the_same_record(array):
    expected = record_of(array)
    assert record_of(array.copy(order="F")) == expected
    assert record_of(array.astype(array.dtype.newbyteorder(">"))) == expected
    every_second = np.repeat(array[..., np.newaxis], 2, axis=-1)[..., 0]
    assert record_of(every_second) == expected


def test_packing_copies_nothing():
    array = np.zeros((5, 4, 3), dtype=np.float32)
    _, payload = pack(array, ID)
    assert np.shares_memory(np.frombuffer(payload, dtype=np.uint8), array)


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_unpacking_copies_nothing_at_any_alignment(offset):
    buffer = bytearray(offset) + record_of(np.arange(6, dtype=np.float64))
    _, array = unpack(memoryview(buffer)[offset:])
    assert np.shares_memory(array, np.frombuffer(buffer, dtype=np.uint8))
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert array.flags.writeable
    assert not unpack(bytes(RECORD))[1].flags.writeable


def test_golden_record():
    """This never changes: other versions of SUPER read what this one wrote."""
    assert RECORD[:HEADER_BYTES].hex(" ", 16).split() == [
        "53555052020101031200000000000000",
        "d5eec0d4902491f60200000003000000",
        "03000000000000000000000000000000",
        "0b000000160000000001020304050607",
    ]
    assert DTYPE_NAMES == {
        1: "uint8", 2: "int8", 3: "uint16", 4: "int16", 5: "uint32", 6: "int32", 7: "uint64", 8: "int64",
        9: "float16", 10: "float32", 11: "float64", 12: "bool",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "S3", "U3", "object"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError, match="records hold uint8"):
        pack(np.zeros(2, dtype=dtype), ID)


def test_a_record_is_bound_to_its_sample():
    other = bytes(8) + ID[8:]
    for record in (RECORD, pack_tombstone(Tombstone("k", "r", "m", permanent=True), ID)):
        assert parse_header(record, sample_id=ID).id_prefix == PREFIX == id_prefixes(other + ID)[1]
        with pytest.raises(RecordIdError, match="of sample 0001020304050607..., not of 00000000"):
            parse_header(record, sample_id=other)
    with pytest.raises(ValueError, match="16 bytes each; these are 15"):
        pack(IMAGE, ID[:15])


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (b"", RecordError),
        (RECORD[:63], RecordError),
        (RECORD[:-1], RecordError),
        (RECORD + b"\0", RecordError),
        (pack_tombstone(Tombstone("k", "r", "m", permanent=True), ID), RecordVersionError),
    ],
)
def test_what_is_no_whole_record_of_data_is_refused(record, error):
    with pytest.raises(error):
        unpack(record)


@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_no_flipped_bit_is_read(dtype):
    """Nothing guards the times. Another version or kind is told from what is spoilt."""
    record = record_of((np.arange(6) % 2).astype(dtype).reshape(1, 2, 3))
    for at in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[at // 8] ^= 1 << at % 8
        if at // 8 in range(48, 56):
            assert unpack(flipped, sample_id=ID)[1].tobytes() == record[HEADER_BYTES:]
        else:
            with pytest.raises(RecordVersionError if at // 8 in {4, 5} else RecordError):
                unpack(flipped, sample_id=ID)
