"""A store's limit, the order in which packs are removed, and the locations of records."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.store.locations import Joined, Places, join
from superdl.coordinator.store.space import Room, StoredPack, room_bytes, to_prune
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.store import DATA_KINDS, ENTRY_DTYPE

SIZES = st.integers(0, 2**45)
A, B, C = ("a" * 16, "b" * 16, "c" * 16)


@given(limit=SIZES, stored=SIZES, free=SIZES, more=SIZES)
def test_the_last_tenth_of_a_disk_stays_free(limit, stored, free, more):
    disk = stored + free + more
    room = room_bytes(limit, stored, free, disk)
    assert room <= (limit or (stored + free) // 4)
    assert stored + free - room >= disk // 10 or room == 0


def test_the_default_share_does_not_shrink_as_it_is_used():
    assert room_bytes(0, 0, 800, 1000) == room_bytes(0, 200, 600, 1000) == 200


PACKS = st.builds(
    StoredPack,
    name=st.uuids().map(str),
    bytes=st.integers(1, 100),
    useless=st.booleans(),
    used_s=st.integers(0, 5).map(float),
    live=st.sampled_from([0.0, 0.4, 0.6, 1.0]),
    in_use=st.booleans(),
)


@given(st.lists(PACKS), st.integers(0, 500), st.integers(0, 500))
def test_as_little_as_possible_is_removed_in_order(packs, bytes_to_free, margin_bytes):
    bytes_too_many = bytes_to_free - margin_bytes
    chosen = to_prune(packs, bytes_to_free, bytes_too_many)
    by_name = {pack.name: pack for pack in packs}
    gone, stay = [by_name[name] for name in chosen], [pack for pack in packs if pack.name not in chosen]

    def kept_by_jobs(pack):
        return pack.in_use and not pack.useless and pack.live >= 0.5

    assert sum(pack.bytes for pack in gone[:-1]) < max(bytes_to_free, 1)
    if sum(pack.bytes for pack in gone) < bytes_to_free:
        assert all(kept_by_jobs(pack) for pack in stay)
        assert not stay or sum(pack.bytes for pack in gone) >= bytes_too_many
    if any(map(kept_by_jobs, gone)):
        assert sum(pack.bytes for pack in gone[:-1]) < bytes_too_many
        assert all(map(kept_by_jobs, stay))
    for removed in gone:
        assert removed.useless or not any(pack.useless for pack in stay)
        if not (removed.useless or removed.live < 0.5 or removed.in_use):
            assert all(removed.used_s <= pack.used_s for pack in stay if not pack.in_use)


def test_packs_written_during_a_listing_are_counted():
    room = Room("s3://bucket/store", 1600)
    room.add(f"{A}-x", 500, 1)
    before = set(room.sizes)
    room.add(f"{B}-x", 700, 1)
    room.add(f"{B}-x", 700, 1)
    assert room.used_bytes == 1200
    room.adopt({f"{C}-x": 800}, before)
    assert room.sizes == {f"{B}-x": 700, f"{C}-x": 800}
    assert room.excess_bytes == 1500 - 1500 + 1500 // 32
    room.forget([f"{A}-x", f"{C}-x"])
    assert room.used_bytes == 700


def test_a_bucket_is_limited_only_by_its_setting_and_a_directory_by_its_disk(tmp_path):
    free = Room("s3://bucket/store", 0)
    free.add(f"{A}-x", 2**50, 10)
    free.measure()
    assert (free.bounded, free.excess_bytes, free.is_overdue) == (False, 0, False)
    capped = Room("s3://bucket/store", 1600)
    capped.adopt({f"{A}-x": 700, f"{B}-x": 700, f"{C}-x": 200}, {})
    assert capped.excess_bytes == 1600 - 1500 + 1500 // 32
    assert capped.to_prune({A: 5.0, B: 3.0, C: 1.0}, {C}, {}, now=1e6) == [f"{B}-x"]
    assert capped.to_prune({A: 5.0, B: 3.0, C: 1e6 - 60}, {}, {}, now=1e6) == [f"{B}-x"]
    assert capped.to_prune({A: 5.0, B: 3.0}, {A, B, C}, {f"{A}-x": 0.1}, now=1e6) == [f"{A}-x"]
    capped.forget([f"{B}-x"])
    assert (capped.used_bytes, capped.excess_bytes) == (900, 0)
    here = Room(str(tmp_path), 2**20)
    here.add(f"{A}-x", 2**19, 3)
    assert here.is_overdue
    here.measure()
    assert 0 < here.bytes <= 2**20
    assert not here.is_overdue


CONTENT = b"c" * 16
IDS = st.integers(0, 8).map(lambda n: bytes([n]) * ID_BYTES)  # few, so that many are equal


@given(
    st.lists(IDS, unique=True),
    st.lists(st.tuples(IDS, st.sampled_from([1, 7, 4]), st.integers(64, 2**40))),
)
def test_a_join_finds_the_last_data_entry_of_each_id(catalog, stored):
    entries = np.zeros(len(stored), dtype=ENTRY_DTYPE)
    for entry, (sample_id, kind, offset) in zip(entries, stored, strict=True):
        entry["id"], entry["kind"], entry["offset"], entry["bytes"] = sample_id, kind, offset, offset % 1000
    expected = {
        sample_id: (number, offset, offset % 1000)
        for number, (sample_id, kind, offset) in enumerate(stored)
        if kind in DATA_KINDS and sample_id in catalog
    }
    ids = np.frombuffer(b"".join(catalog), dtype=np.uint8).reshape(-1, ID_BYTES)
    joined = join(ids, entries, np.arange(len(stored), dtype=np.uint32))
    assert expected == {
        catalog[index]: (pack, offset, length)
        for index, pack, offset, length in zip(*(column.tolist() for column in joined), strict=True)
    }
    assert joined.indices.tolist() == sorted(joined.indices.tolist())


def placed(places, indices, pack):
    number = places.number(pack)
    columns = [np.array(indices, dtype=kind) for kind in (np.int64, np.uint32, np.uint64, np.uint32)]
    joined = Joined(columns[0], np.full(len(indices), number, np.uint32), columns[2] * 4096, columns[3] + 64)
    places.put(CONTENT, joined)


def test_lost_packs_and_damaged_records_are_unknown_but_still_available_to_earlier_requests():
    places = Places()
    places.open(CONTENT, 10)
    placed(places, [1, 2, 3], "one")
    placed(places, [5, 6], "two")
    every = np.array([0, 1, 2, 5, 6])
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3, 5, 6]
    assert places.live() == {"one": 3, "two": 2}
    two = places.number("two")
    assert places.mark_lost(["two", "never-seen"]).tolist() == [two]
    places.forget(CONTENT, np.array([2, 9]))
    now = places.of(CONTENT, every)
    assert now is not None
    assert (now.packs, now.pack_of.tolist()) == (("one",), [0, 1, 0, 0, 0])
    assert (now.offsets[1], now.lengths[1]) == (4096, 65)
    assert places.known(CONTENT)[0].tolist() == [1, 3]
    assert places.live() == {"one": 2}
    before = places.of(CONTENT, every[1:], with_gone=True)
    assert before is not None
    assert [before.packs[of - 1] for of in before.pack_of.tolist()] == ["one", "one", "two", "two"]
    placed(places, [2], "three")  # rewritten
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3]
    places.number("two")  # a new listing has found it again
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3, 5, 6]


def test_a_closed_dataset_is_dropped_and_pack_numbers_are_not_reused():
    places = Places()
    places.open(CONTENT, 4)
    placed(places, [0], "one")
    assert places.close_unknown([]) == [CONTENT]
    placed(places, [1], "one")
    places.forget(CONTENT, np.array([1]))
    assert places.of(CONTENT, np.array([0])) is None
    assert places.known(CONTENT)[0].size == 0
    assert places.number("one") != places.number("two")
    assert len({places.number(f"pack {number}") for number in range(5000)}) == 5000
    assert places.mark_lost(["pack 4999"]).size == 1
