"""Records come back as they went in, copy nothing, and bytes that are none give a RecordError only."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError
from superdl.super_wire.record import (
    DTYPE_CODES,
    DTYPE_NAMES,
    HEADER_BYTES,
    HEADER_DTYPE,
    RecordKind,
    Tombstone,
    id_prefixes,
    pack,
    pack_tombstone,
    parse_header,
    unpack,
)

LAYOUT = struct.Struct("<4sBBBBQQ6IIIQ")

SHAPES = hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)
ARRAYS = st.sampled_from(list(DTYPE_CODES)).flatmap(lambda name: hnp.arrays(np.dtype(name), SHAPES))
TOMBSTONES = st.builds(Tombstone, st.text(), st.text(), st.text(), st.booleans())


ID = bytes(range(16))
PREFIX = int.from_bytes(ID[:8], "little")


def record_of(array, **times):
    """One whole record."""
    header, payload = pack(array, ID, **times)
    return header + bytes(payload)


IMAGE = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
RECORD = record_of(IMAGE, fetch_us=11, decode_us=22)


def changed(**fields):
    """The example record with other header fields, and the payload it says it has."""
    header = np.frombuffer(RECORD[:HEADER_BYTES], HEADER_DTYPE).copy()
    for name, value in fields.items():
        header[name] = value
    return header.tobytes() + RECORD[HEADER_BYTES:]


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


@given(ARRAYS)
def test_the_numpy_view_of_headers_agrees_with_the_struct(array):
    header, payload = pack(array, ID, fetch_us=5, decode_us=6)
    assert len(header) == HEADER_BYTES == HEADER_DTYPE.itemsize == LAYOUT.size == 64
    (seen,) = np.frombuffer(header, HEADER_DTYPE)
    magic, version, kind, dtype, ndim, size, digest, *rest = LAYOUT.unpack(header)
    names = ("magic", "version", "kind", "dtype", "ndim", "payload_bytes", "payload_hash")
    assert [seen[name].item() for name in names] == [magic, version, kind, dtype, ndim, size, digest]
    assert [*seen["shape"], seen["fetch_us"], seen["decode_us"], seen["id_prefix"]] == rest
    assert (magic, version, kind, ndim) == (b"SUPR", 2, 1, array.ndim)
    assert rest[-1] == PREFIX
    assert rest[: array.ndim] == list(array.shape)
    assert not any(rest[array.ndim : 6])
    assert digest == xxhash.xxh3_64_intdigest(bytes(payload))


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


@pytest.mark.parametrize(
    ("record", "error", "reason"),
    [
        (b"", RecordError, "at least 64 bytes; these are 0"),
        (RECORD[:63], RecordError, "these are 63"),
        (RECORD[:-1], RecordError, "tells 82 bytes; the record has 81"),
        (RECORD + b"\0", RecordError, "tells 82 bytes; the record has 83"),
        (changed(magic=b"RPUS"), RecordError, "begins with b'SUPR'; this one with b'RPUS'"),
        (changed(version=1), RecordVersionError, "reads record version 2; this one is version 1"),
        (changed(kind=0), RecordVersionError, "no kind 0"),
        (changed(kind=3), RecordVersionError, "no kind 3"),
        (changed(dtype=0), RecordVersionError, "dtype code 0"),
        (changed(dtype=13), RecordVersionError, "dtype code 13"),
        (changed(ndim=7), RecordError, "this header says 7"),
        (changed(ndim=2), RecordError, r"2 dimensions has sides \(3, 0, 0, 0\) beyond"),
        (changed(ndim=4), RecordError, "is not 18 payload bytes"),
        (changed(shape=(2, 3, 3, 1, 0, 0)), RecordError, "beyond them"),
        (changed(shape=(2, 3, 4, 0, 0, 0)), RecordError, "is not 18 payload bytes"),
        (changed(payload_bytes=17), RecordError, "is not 17 payload bytes"),
        (changed(dtype=DTYPE_CODES["uint16"]), RecordError, "of uint16 is not 18"),
        (changed(payload_hash=1), RecordError, "the header says 0000000000000001"),
        (RECORD[:-1] + b"\xff", RecordError, "the payload's xxh3-64"),
        (
            pack_tombstone(Tombstone("k", "r", "m", permanent=True), ID),
            RecordVersionError,
            "of kind tombstone",
        ),
    ],
)
def test_bad_records(record, error, reason):
    with pytest.raises(error, match=reason):
        unpack(record)


def test_a_record_is_bound_to_its_sample():
    other = bytes(8) + ID[8:]
    for record in (RECORD, pack_tombstone(Tombstone("k", "r", "m", permanent=True), ID)):
        assert parse_header(record, sample_id=ID).id_prefix == PREFIX == id_prefixes(other + ID)[1]
        with pytest.raises(RecordIdError, match="of sample 0001020304050607..., not of 00000000"):
            parse_header(record, sample_id=other)
    with pytest.raises(ValueError, match="16 bytes each; these are 15"):
        pack(IMAGE, ID[:15])


@given(ARRAYS, st.integers(0, 2**31))
def test_a_flipped_bit_never_changes_what_is_read_silently(array, place):
    record = bytearray(record_of(array))
    at = place % (8 * len(record))
    record[at // 8] ^= 1 << at % 8
    try:
        header, back = unpack(record, sample_id=ID)
    except RecordError:
        return
    assert back.tobytes() == array.tobytes()
    if array.size:  # an empty array's dtype, and its sides that are not zero, may be any
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert at // 8 in range(48, 56)
    assert header.kind is RecordKind.DATA
