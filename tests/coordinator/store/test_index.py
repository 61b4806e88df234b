"""Segments of a store's index survive a round trip, and broken or false ones are refused."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.store.index import (
    IndexedPack,
    merge_segments,
    pack_segment,
    read_segments,
    unpack_segment,
    write_segments,
)
from superdl.super_wire.errors import StoreFormatError
from superdl.super_wire.ids import digest128
from superdl.super_wire.store import DirectoryStore, PackIndex
from superdl.super_wire.store.pack import new_pack_name
from tests.super_wire.store.packing import META, METAS, RECORDS, fill, index_of, pack_bytes, records


def indexed(meta, sizes):
    data = pack_bytes(records(sizes), meta)
    return IndexedPack(new_pack_name(meta.collection), len(data), index_of(data))


def shown(packs):
    return [(pack.name, pack.bytes, pack.index.meta, pack.index.entries.tobytes()) for pack in packs]


@given(st.lists(st.builds(indexed, METAS, RECORDS), max_size=3))
def test_segments_survive_a_round_trip(packs):
    assert shown(unpack_segment(pack_segment(packs))) == shown(packs)


def test_a_segment_contains_each_meta_once():
    packs = [indexed(META, [])] * 500
    data = pack_segment(packs)
    assert data.count(META.recipe.replace('"', '\\"').encode()) == 1
    assert shown(unpack_segment(data)) == shown(packs)


def test_merging_keeps_each_existing_pack_once(tmp_path):
    store = DirectoryStore.open(tmp_path, create=True)
    other = replace(META, collection="0" * 16)
    (others,) = write_segments(store, other.collection, [indexed(other, [1])])
    packs = []
    for number in range(20):
        with store.begin_pack(META) as writing:
            fill(writing, records([number, 64], seed=number))
            name = writing.commit()
        packs.append(IndexedPack(name, writing.size, store.read_index(name, writing.size)))
        # As after two coordinators that listed at the same time: half of the packs are in two segments.
        write_segments(store, META.collection, packs[-1 - number % 2 :])
    for gone in packs[:5]:
        store.remove(gone.name)
    merge_segments(store, META.collection)
    (merged,) = set(store.segments()) - {others}
    (contents,) = read_segments(store, [merged])
    assert sorted(shown(contents)) == sorted(shown(packs[5:]))


PACK = indexed(META, [1])


def with_entry(**changes):
    entries = PACK.index.entries.copy()
    for name, value in changes.items():
        entries[name] = value
    return replace(PACK, index=PackIndex(PACK.index.meta, entries))


ENTRIES = PACK.index.entries.tobytes()


def sealed(table, entries=ENTRIES):
    """Return any table with a matching digest."""
    table = table if isinstance(table, bytes) else json.dumps(table).encode()
    body = len(table).to_bytes(8, "little") + table + entries
    return body + digest128(body)


META_TABLE = asdict(META)
GOOD = pack_segment([PACK])


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x" * 100, GOOD[:-1], GOOD[1:], b"SSEG" + bytes(60)),
        *(pack_segment([replace(PACK, name=name)]) for name in ("../x.pack", "")),
        pack_segment([replace(PACK, bytes=64)]),
        *(pack_segment([with_entry(**lie)]) for lie in ({"offset": 2**64 - 64}, {"bytes": 63})),
        *(
            sealed({"metas": [META_TABLE], "packs": [[PACK.name, *row]]})
            for row in (
                *([PACK.bytes, count, 0] for count in (0, 2, -1, 2**64 - 1, None, "x")),
                *([size, 1, 0] for size in (-1, 10**30, "x", None)),
                *([PACK.bytes, 1, number] for number in (1, None)),
                [PACK.bytes, 1],
            )
        ),
        sealed({"metas": [{}], "packs": [[PACK.name, PACK.bytes, 1, 0]]}),
        sealed({"metas": [META_TABLE], "packs": [["../x", PACK.bytes, 1, 0]]}),
        sealed({"metas": [META_TABLE], "packs": []}),
        *map(sealed, ([3], {"a": 1}, 3, b"[" * 90_000, b"\xff", b"")),
        sealed({"metas": [], "packs": []}, bytes(31)),
        digest128(b""),
    ],
)
def test_broken_and_false_segments_are_refused(data):
    honest = sealed({"metas": [META_TABLE], "packs": [[PACK.name, PACK.bytes, 1, 0]]})
    assert shown(unpack_segment(honest)) == shown(unpack_segment(GOOD)) == shown([PACK])
    with pytest.raises(StoreFormatError):
        unpack_segment(data)
