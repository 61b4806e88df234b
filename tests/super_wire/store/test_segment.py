"""Segments give back what went in, and no change of a byte makes them give anything else."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import StoreFormatError
from superdl.super_wire.store import (
    SEGMENT_DTYPE,
    PackIndex,
    Segment,
    SegmentPack,
    pack_segment,
    segment_entries,
)
from superdl.super_wire.store.pack import ENTRY_DTYPE, new_pack_name, read_segment
from tests.super_wire.mutating import mutated
from tests.super_wire.store.packing import META, METAS, RECORDS, pack_bytes, records, segment_of

PACKS = st.lists(st.tuples(METAS, RECORDS), max_size=4)
SMALL = pack_segment(segment_of(pack_bytes(records([1, 5])), pack_bytes(records([9], seed=1))))


def told(segment):
    return segment.packs, segment.entries.tobytes()


RIGHT = told(read_segment(SMALL))


def is_right_or_refused(data):
    try:
        assert told(read_segment(data)) == RIGHT
    except StoreFormatError:
        return None
    return True


@given(PACKS)
def test_round_trip(packs):
    segment = segment_of(
        pack_bytes([]), *(pack_bytes(records(sizes, seed), meta) for seed, (meta, sizes) in enumerate(packs))
    )
    assert told(read_segment(pack_segment(segment))) == told(segment)


def test_the_form_is_the_one_of_the_page():
    """Read by struct alone, as docs/store.md says."""
    magic, version, table_bytes, count, checksum = struct.unpack("<4sIQQQ", SMALL[:32])
    assert (magic, version, count, any(SMALL[32:64])) == (b"SSEG", 1, 3, False)
    assert checksum == xxhash.xxh3_64_intdigest(SMALL[:24] + SMALL[64:])
    table, entries = json.loads(SMALL[64:][:table_bytes]), SMALL[64 + table_bytes :]
    packs, _ = RIGHT
    assert table_bytes % 64 == 0
    assert table["packs"] == [[pack.name, pack.bytes, 0] for pack in packs]
    assert table["metas"] == [{name: getattr(META, name) for name in META.__slots__}]
    rows = list(struct.iter_unpack("<16sQII", entries))
    assert [row[1:] for row in rows] == [(64, 65, 0), (192, 69, 0), (64, 73, 1)]
    assert [row[0] for row in rows[:2]] == [sample_id for sample_id, _ in records([1, 5])]


def test_no_flipped_bit_and_no_cut_gives_another_segment():
    for at in range(len(SMALL)):
        for bit in range(8):
            data = bytearray(SMALL)
            data[at] ^= 1 << bit
            assert is_right_or_refused(bytes(data)) is None
        assert is_right_or_refused(SMALL[:at]) is None
        assert at == 0 or is_right_or_refused(SMALL[at:]) is None


@given(mutated(SMALL))
def test_no_other_change_gives_another_segment(data):
    is_right_or_refused(data)


def test_entries_are_not_copied():
    segment = read_segment(SMALL)
    assert np.shares_memory(segment.entries, np.frombuffer(SMALL, np.uint8))


def test_other_kinds_than_data_are_left_out():
    entries = np.zeros(5, ENTRY_DTYPE)
    entries["kind"] = [1, 2, 4, 7, 0]
    entries["offset"] = range(5)
    kept = segment_entries(PackIndex(META, entries), 6)
    assert (kept["offset"].tolist(), kept["pack"].tolist()) == ([0, 3], [6, 6])


def sealed(table, **entry):
    """A segment that says whatever is wanted, with a hash that fits."""
    table = table if isinstance(table, bytes) else json.dumps(table).encode()
    numbers = {"id": bytes(16), "offset": 64, "bytes": 64, "pack": 0} | entry
    body = table + struct.pack("<16sQII", *numbers.values())
    head = b"SSEG" + struct.pack("<IQQ", 1, len(table), 1)
    return head + xxhash.xxh3_64_intdigest(head + body).to_bytes(8, "little") + bytes(32) + body


NAME = new_pack_name("0" * 16)
METAS_JSON = [dict.fromkeys(META.__slots__, "x")]
TABLE = {"metas": METAS_JSON, "packs": [[NAME, 128, 0]]}


def test_what_is_sealed_right_is_read():
    assert len(read_segment(sealed(TABLE)).entries) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (sealed(TABLE, pack=1), "beyond the 1"),
        (sealed({"metas": [], "packs": []}), "beyond the 0"),
        (sealed(TABLE, offset=65), "beyond its pack's end"),
        (sealed(TABLE, offset=2**64 - 64), "beyond its pack's end"),
        (sealed(TABLE, bytes=63), "beyond its pack's end"),
        (sealed(TABLE | {"packs": [["../x.pack", 128, 0]]}), "no name"),
        (sealed(TABLE | {"packs": [[3, 128, 0]]}), "table of packs"),
        (sealed(TABLE | {"packs": [[NAME, -1, 0]]}), "table of packs"),
        (sealed(TABLE | {"packs": [[NAME, True, 0]]}), "table of packs"),
        (sealed(TABLE | {"packs": [[NAME, 128, -1]]}), "table of packs"),
        (sealed(TABLE | {"packs": [[NAME, 128, 1]]}), "table of packs"),
        (sealed(TABLE | {"packs": [[NAME, 128]]}), "table of packs"),
        (sealed(TABLE | {"metas": [{}]}), "texts collection"),
        (sealed([]), "table of packs"),
        (sealed(b"[" * 90_000), "table of packs"),
        (sealed(b"\xff"), "table of packs"),
        (b"SSEG" + struct.pack("<I", 2) + bytes(56), "version 2"),
        (bytes(64), "begins with"),
        (b"", "at least"),
    ],
)
def test_a_lying_segment_is_refused(data, words):
    with pytest.raises(StoreFormatError, match=words):
        read_segment(data)


def test_a_segment_of_many_tells_of_each_meta_once():
    metas = [META, segment_of(pack_bytes([], META)).packs[0].meta]
    packs = tuple(SegmentPack(new_pack_name("0" * 16), 64, meta) for meta in metas * 500)
    data = pack_segment(Segment(packs, np.zeros(0, SEGMENT_DTYPE)))
    assert data.count(META.recipe.replace('"', '\\"').encode()) == 1
    assert read_segment(data).packs == packs
