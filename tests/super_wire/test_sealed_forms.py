"""Records and packs keep their format, and no change of a byte yields other contents."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError, StoreFormatError
from superdl.super_wire.record import (
    DTYPE_CODES,
    DTYPE_NAMES,
    RecordKind,
    Tombstone,
    id_prefixes,
    pack,
    pack_tombstone,
    parse_header,
    read_tombstone,
    unpack,
)
from superdl.super_wire.record_kinds import Pointer, pack_arrays, pack_pointer, read_arrays, read_pointer
from superdl.super_wire.store import (
    check_record,
)
from tests.hostile.fuzz_wire import mutate
from tests.super_wire.store.packing import (
    index_of,
    pack_bytes,
    records,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ID = bytes(range(16))
SHAPES = hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=4)
ARRAYS = st.sampled_from(list(DTYPE_CODES)).flatmap(lambda name: hnp.arrays(np.dtype(name), SHAPES))
NAMED_ARRAYS = st.dictionaries(st.text(min_size=1, max_size=20), ARRAYS, min_size=1, max_size=5)
POINTERS = st.builds(
    Pointer,
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True),
    st.integers(0, 2**62),
    st.integers(64, 2**62),
)
TOMBSTONE = Tombstone("k", "r", "m", permanent=True)


def record_of(array, **times):
    header, payload = pack(array, ID, **times)
    return header + bytes(payload)


def plain(array):
    return array.dtype.str, array.shape, array.tobytes()


def arrays_in(record):
    return {name: plain(array) for name, array in read_arrays(record, sample_id=ID).items()}


def contents(data):
    """Return meta and records of a pack. Raises if any is broken."""
    index, held = index_of(data), {}
    for entry in index.entries:
        sample_id, offset = bytes(entry["id"]), int(entry["offset"])
        record = data[offset : offset + int(entry["bytes"])]
        check_record(record, sample_id)
        held[sample_id] = plain(unpack(record, sample_id=sample_id)[1])
    return index.meta, held


@dataclass(frozen=True)
class Form:
    """Valid bytes, their reader, their xxh3-64, and the offsets of bytes without protection."""

    good: bytes
    read: Callable[[bytes], Any]
    digest: str
    unguarded: frozenset[int] = frozenset()


TIMES = frozenset(range(48, 56))  # of a record's header
IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
SAMPLES = records([1, 5, 300])  # a pack's head; then the times of each record, and what follows it
PADDING = frozenset({*range(64), *range(112, 120), *range(129, 192), *range(240, 248), *range(261, 320)})
PADDING |= {*range(368, 376), *range(684, 704)}
FORMS = {
    "record": Form(
        record_of(IMAGE, fetch_us=11, decode_us=22),
        lambda data: plain(unpack(data, sample_id=ID)[1]),
        "7fbeea7ea8166db7",
        TIMES,
    ),
    "tombstone": Form(
        pack_tombstone(TOMBSTONE, ID), read_tombstone, "db7e8b37ed0a9572", TIMES | set(range(56, 64))
    ),
    "pointer": Form(
        pack_pointer(Pointer("p-1", 4096, 150_592), ID),
        lambda data: read_pointer(data, sample_id=ID),
        "286b1f69da0f43b1",
        TIMES,
    ),
    "arrays": Form(
        pack_arrays({"b": np.array([1, 2], dtype=np.int16), "a": np.uint8(7)[None]}, ID),
        arrays_in,
        "dc086bec6e69d6c7",
        TIMES,
    ),
    "pack": Form(pack_bytes(SAMPLES), contents, "b04a75e324f9c736", PADDING),
}


def is_right_or_refused(form, data):
    try:
        value = form.read(data)
    except (RecordError, StoreFormatError):
        return None
    assert value == form.read(form.good)
    return True


@pytest.mark.parametrize("name", FORMS)
def test_the_format_has_not_changed(name):
    assert xxhash.xxh3_64_hexdigest(FORMS[name].good) == FORMS[name].digest


@pytest.mark.parametrize("name", FORMS)
def test_a_flipped_bit_or_a_cut_never_yields_other_contents(name):
    form = FORMS[name]
    for at in range(len(form.good)):
        for bit in range(8):
            data = bytearray(form.good)
            data[at] ^= 1 << bit
            assert is_right_or_refused(form, bytes(data)) is None or at in form.unguarded, at
        assert is_right_or_refused(form, form.good[:at]) is None
        assert is_right_or_refused(form, form.good[at:]) is (None if at else True)


@pytest.mark.parametrize("name", FORMS)
@given(seed=st.integers(0, 2**64))
def test_a_mutation_never_yields_other_contents(name, seed):
    is_right_or_refused(FORMS[name], mutate(random.Random(seed), FORMS[name].good))


def test_codes_of_dtypes_are_never_reused():
    names = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 bool"
    assert list(DTYPE_NAMES.items()) == list(enumerate(names.split(), 1))


@given(ARRAYS, st.sampled_from([bytes, bytearray, memoryview]))
def test_records_round_trip_from_any_memory_and_byte_order(array, kind):
    record = record_of(array, fetch_us=3, decode_us=2**40)
    header, back = unpack(kind(record))
    assert plain(back) == plain(array)
    assert (header.kind, header.dtype, header.shape) == (RecordKind.DATA, array.dtype.name, array.shape)
    assert (header.fetch_us, header.decode_us, header.payload_bytes) == (3, 2**32 - 1, array.nbytes)
    every_second = np.repeat(array[..., np.newaxis], 2, axis=-1)[..., 0]
    for same in (array.copy(order="F"), array.astype(array.dtype.newbyteorder(">")), every_second):
        assert record_of(same, fetch_us=3, decode_us=2**40) == record


@given(NAMED_ARRAYS)
def test_named_arrays_round_trip(arrays):
    record = pack_arrays(arrays, ID, fetch_us=3, decode_us=4)
    assert arrays_in(record) == {name: plain(array) for name, array in arrays.items()}
    assert list(arrays_in(record)) == sorted(arrays, key=str.encode)
    header = parse_header(record, record_bytes=len(record), sample_id=ID)
    assert (header.kind, header.fetch_us, header.decode_us) == (RecordKind.ARRAYS, 3, 4)


@given(POINTERS)
def test_pointers_round_trip(pointer):
    assert read_pointer(pack_pointer(pointer, ID), sample_id=ID) == pointer


@pytest.mark.parametrize("offset", [0, 1, 7])
def test_arrays_are_views_at_any_alignment(offset):
    array = np.arange(6, dtype=np.float64)
    assert np.shares_memory(np.frombuffer(pack(array, ID)[1], dtype=np.uint8), array)
    buffer = bytearray(offset) + record_of(array)
    _, back = unpack(memoryview(buffer)[offset:])
    assert np.shares_memory(back, np.frombuffer(buffer, dtype=np.uint8))
    assert back.tolist() == array.tolist()
    assert back.flags.writeable
    assert not unpack(record_of(array))[1].flags.writeable


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "S3", "U3", "object"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError):
        pack(np.zeros(2, dtype=dtype), ID)


def test_a_record_is_bound_to_its_sample_and_kind():
    other = bytes(8) + ID[8:]
    assert id_prefixes(other + ID)[1] == parse_header(FORMS["record"].good, sample_id=ID).id_prefix
    readers = {"record": unpack, "pointer": read_pointer, "arrays": read_arrays}
    for kind in (*readers, "tombstone"):
        with pytest.raises(RecordIdError):
            parse_header(FORMS[kind].good, sample_id=other)
        for name, read in readers.items():
            if name != kind:
                with pytest.raises(RecordVersionError):
                    read(FORMS[kind].good)
    for at in (4, 5, 6):  # version, kind and dtype of a later version
        with pytest.raises(RecordVersionError):
            unpack(FORMS["record"].good[:at] + b"\x63" + FORMS["record"].good[at + 1 :])
    with pytest.raises(ValueError, match="16 bytes long, not 15"):
        pack(IMAGE, ID[:15])


@pytest.mark.parametrize(
    ("name", "offset", "length"),
    [(name, 0, 64) for name in ("", "..", "../pack", "a/b", ".hidden", "-x", "a\0", "é", "x" * 256)]
    + [("pack", *place) for place in ((-1, 64), (0, 63), (2**64 - 64, 64), (0, 2**64))],
)
def test_a_pointer_cannot_leave_its_store(name, offset, length):
    with pytest.raises(RecordError):
        Pointer(name, offset, length)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        dict.fromkeys(map(str, range(65)), IMAGE),
        {"": IMAGE},
        {"x" * 256: IMAGE},
        {"x": IMAGE.reshape(2, 3, 3, *[1] * 4)},
    ],
)
def test_invalid_named_arrays_are_refused(arrays):
    with pytest.raises(RecordError):
        pack_arrays(arrays, ID)
