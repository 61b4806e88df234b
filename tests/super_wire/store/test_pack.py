"""Packs give back what went in, and no change of a byte makes them give anything else."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given

from superdl.super_wire.errors import RecordError, RecordIdError, RecordVersionError, StoreFormatError
from superdl.super_wire.record import HEADER_BYTES, Tombstone, pack, pack_tombstone, unpack
from superdl.super_wire.record_kinds import Pointer, pack_arrays, pack_pointer
from superdl.super_wire.store import PackMeta, check_record, collection_of
from superdl.super_wire.store.pack import PackWriter, new_pack_name, read_pack_index
from tests.super_wire.mutating import mutated
from tests.super_wire.store.packing import META, METAS, RECORDS, fill, index_of, pack_bytes, records

SAMPLES = records([1, 5, 300])
SMALL = pack_bytes(SAMPLES)


def contents(data):
    """What a pack gives: its meta, and of each sample the record's array, or None if that is found broken.

    Raises StoreFormatError where the index is broken, and anything else only by a fault.
    """
    index, found = index_of(data), {}
    for entry in index.entries:
        sample_id, offset = bytes(entry["id"]), int(entry["offset"])
        record = data[offset : offset + int(entry["bytes"])]
        try:
            check_record(record, sample_id)
            array = unpack(record, sample_id=sample_id)[1]
            found[sample_id] = (array.dtype.str, array.shape, array.tobytes())
        except RecordError:
            found[sample_id] = None
    return index.meta, found


RIGHT = contents(SMALL)


def is_right_or_refused(data):
    """Whether a spoiled pack is refused (None), has all as it was (True), or misses records (False)."""
    try:
        meta, found = contents(data)
    except StoreFormatError:
        return None
    assert meta == META
    assert found.keys() == RIGHT[1].keys()
    lost = [sample_id for sample_id, record in found.items() if record is None]
    assert all(found[kept] == RIGHT[1][kept] for kept in found.keys() - set(lost))
    return not lost


@given(METAS, RECORDS)
def test_round_trip(meta, sizes):
    samples, file, reads = records(sizes), io.BytesIO(), []
    writer = PackWriter(file, meta)
    offsets = fill(writer, samples)
    size, data = writer.finish(), file.getvalue()

    def read(offset, length):
        reads.append(length)
        return data[offset : offset + length]

    index = read_pack_index(read, size)
    assert (index.meta, len(data), writer.count) == (meta, size, len(samples))
    assert len(reads) == 1
    assert index.entries["offset"].tolist() == offsets
    for entry, (sample_id, array), offset in zip(index.entries, samples, offsets, strict=True):
        assert (bytes(entry["id"]), entry["kind"]) == (sample_id, 1)
        record = data[offset : offset + int(entry["bytes"])]
        assert check_record(record, sample_id).payload_bytes == array.size
        assert np.array_equal(unpack(record)[1], array)
        assert (offset + HEADER_BYTES) % (4096 if array.size >= 65536 else 64) == 0


def test_the_form_is_the_one_of_the_page():
    """Read by struct alone, as docs/store.md says, so that a change of the form does not go unseen."""
    assert SMALL[:8] == b"SPAK" + struct.pack("<I", 1)
    assert not any(SMALL[8:64])
    footer = SMALL[-64:]
    magic, version, count, entries_at, meta_bytes, checksum = struct.unpack("<4sIQQQQ", footer[:40])
    assert (magic, version, count, any(footer[40:])) == (b"SPAK", 1, 3, False)
    entries, meta = SMALL[entries_at:][: 32 * count], SMALL[entries_at + 32 * count : -64]
    assert len(meta) == meta_bytes
    assert checksum == xxhash.xxh3_64_intdigest(entries + meta + footer[:32])
    names = ["collection", "bucket", "recipe", "fingerprint", "version"]
    assert json.loads(meta) == {name: getattr(META, name) for name in names}
    place = 64
    for (sample_id, array), entry in zip(SAMPLES, struct.iter_unpack("<16sQIB3s", entries), strict=True):
        assert entry == (sample_id, place, 64 + array.size, 1, bytes(3))
        assert SMALL[place + 64 :][: array.size] == array.tobytes()
        place += -(-(64 + array.size) // 64) * 64
    assert entries_at == place


def test_no_flipped_bit_gives_other_bytes():
    seen = set()
    for at in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[at] ^= 1 << bit
            seen.add(is_right_or_refused(bytes(data)))
    assert seen == {None, True, False}  # in the index; in padding; in a record


def test_no_cut_gives_other_bytes():
    for end in range(len(SMALL)):
        assert is_right_or_refused(SMALL[:end]) is None
        assert is_right_or_refused(SMALL[end:]) is (True if end == 0 else None)


@given(mutated(SMALL))
def test_no_other_change_gives_other_bytes(data):
    is_right_or_refused(data)


def sealed(entries, meta, **changes):
    """A pack of which the index says whatever is wanted, with a hash that fits."""
    body = b"SPAK" + struct.pack("<I", 1) + bytes(56 + 128)
    numbers = {"version": 1, "count": len(entries) // 32, "at": len(body), "meta": len(meta)} | changes
    head = b"SPAK" + struct.pack("<IQQQ", *numbers.values())
    digest = xxhash.xxh3_64_intdigest(entries + meta + head)
    return body + entries + meta + head + digest.to_bytes(8, "little") + bytes(24)


META_JSON = json.dumps(dict.fromkeys(PackMeta.__slots__, "x")).encode()


def entry(offset, size):
    return bytes(16) + struct.pack("<QIB3x", offset, size, 1)


def test_what_is_sealed_right_is_read():
    assert len(index_of(sealed(entry(64, 64) + entry(128, 64), META_JSON)).entries) == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (sealed(entry(0, 64), META_JSON), "not between"),  # in the head
        (sealed(entry(64, 63), META_JSON), "not between"),  # no record is so short
        (sealed(entry(128, 65), META_JSON), "not between"),  # ends in the index
        (sealed(entry(2**64 - 64, 128), META_JSON), "not between"),  # its end passes 2**64
        (sealed(b"", META_JSON, version=2), "version 2"),
        (sealed(b"", META_JSON, count=2**59), "records in a pack"),
        (sealed(b"", META_JSON, at=2**64 - 1), "records in a pack"),
        (sealed(b"", b"{}"), "texts collection, bucket"),
        (sealed(b"", b"[" * 90_000), "meta is JSON"),
        (sealed(b"", b"\xff"), "meta is JSON"),
        (sealed(b"", META_JSON.replace(b'"x"', b'"\\ud800"', 1)), "texts collection"),
        (sealed(b"", META_JSON.replace(b'"x"', b"1", 1)), "texts collection"),
        (b"", "at least"),
    ],
)
def test_a_lying_index_is_refused(data, words):
    with pytest.raises(StoreFormatError, match=words):
        index_of(data)


def test_a_long_index_takes_two_reads():
    data, reads = pack_bytes(records([1] * 3000)), []

    def read(offset, length):
        reads.append(length)
        return data[offset : offset + length]

    assert len(read_pack_index(read, len(data)).entries) == 3000
    assert len(reads) == 2
    assert sum(reads) < 3000 * 32 + 1000


def test_named_arrays_are_kept_and_what_is_no_data_is_not():
    sample_id, writer = bytes(range(16)), PackWriter(io.BytesIO(), META)
    arrays = pack_arrays({"a": np.arange(3)}, sample_id)
    writer.add(sample_id, arrays[:HEADER_BYTES], arrays[HEADER_BYTES:])
    check_record(arrays, sample_id)
    tombstone = pack_tombstone(Tombstone("k", "r", "m", permanent=True), sample_id)
    for record in (tombstone, pack_pointer(Pointer("p", 0, 64), sample_id)):
        with pytest.raises(ValueError, match="packs hold data"):
            writer.add(sample_id, record[:HEADER_BYTES], record[HEADER_BYTES:])
        with pytest.raises(RecordVersionError, match="packs hold data"):
            check_record(record, sample_id)
    assert writer.count == 1


def test_another_samples_record_is_told():
    header, payload = pack(np.zeros(3), bytes(16))
    with pytest.raises(RecordIdError):
        check_record(header + bytes(payload), bytes([1] * 16))


def test_collections_differ_by_bucket_and_recipe():
    cases = [("s3://a", b"b"), ("s3://ab", b""), ("s3://a", b"c"), ("s3://b", b"b")]
    assert len({collection_of(*case) for case in cases}) == 4
    assert collection_of("s3://a", b"b") == collection_of("s3://a", b"b")


def test_a_packs_name_is_made_of_a_collection():
    assert new_pack_name("0" * 16) != new_pack_name("0" * 16)
    with pytest.raises(StoreFormatError, match="no name"):
        new_pack_name("../../../../../x")
