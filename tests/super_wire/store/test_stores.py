"""What holds of a store, directory and S3 prefix alike: whole packs or none, and nobody else's files."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings

from superdl.super_wire.errors import (
    RecordError,
    StoreError,
    StoreFormatError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.record import Tombstone, pack_tombstone
from superdl.super_wire.store import SegmentPack, check_record, open_store, pack_segment
from tests.super_wire.store.packing import (
    META,
    METAS,
    RECORDS,
    fill,
    intact,
    pack_bytes,
    records,
    segment_of,
)

DAY_S = 86400.0
SAMPLES = records([9, 70_000, 1])


def write(store, samples, meta=META):
    """A pack's name, and what :func:`intact` finds of it later."""
    with store.begin_pack(meta) as pack:
        fill(pack, samples)
        name = pack.commit()
    return name, {sample_id: array.tobytes() for sample_id, array in samples}


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(METAS, RECORDS)
def test_packs_round_trip(opened, meta, sizes):
    store = opened()
    with store.begin_pack(meta) as pack:
        samples = records(sizes)
        offsets = fill(pack, samples)
        name = pack.commit()
    assert name.startswith(meta.collection)
    assert store.packs()[name] == pack.size
    index = store.read_index(name, pack.size)
    assert (index.meta, index.entries["offset"].tolist()) == (meta, offsets)
    assert intact(store, name, pack.size) == {sample_id: array.tobytes() for sample_id, array in samples}
    for entry, (sample_id, _) in zip(index.entries, samples, strict=True):
        check_record(store.read(name, int(entry["offset"]), int(entry["bytes"])), sample_id)


def test_a_pack_appears_whole_or_not_at_all(opened):
    store = opened()
    first, second = store.begin_pack(META), store.begin_pack(META)
    fill(first, SAMPLES)
    fill(second, SAMPLES)
    assert store.packs() == {}
    second.abandon()
    name = first.commit()
    assert store.packs() == {name: first.size}
    first.abandon()  # of no effect any more
    with store.begin_pack(META) as third:
        fill(third, SAMPLES)
    assert store.packs() == {name: first.size}
    for finished in (first, second, third):
        with pytest.raises(ValueError, match="committed or abandoned"):
            finished.commit()
        with pytest.raises(ValueError, match="committed or abandoned"):
            fill(finished, SAMPLES)


def test_a_record_that_no_pack_holds_does_not_spoil_the_pack(opened):
    store = opened()
    tombstone = pack_tombstone(Tombstone("k", "r", "m", permanent=True), bytes(16))
    with store.begin_pack(META) as pack:
        with pytest.raises(ValueError, match="packs hold data"):
            pack.add(bytes(16), tombstone[:64], tombstone[64:])
        fill(pack, SAMPLES)
        name = pack.commit()
    assert len(intact(store, name, pack.size)) == 3


def test_reads_end_with_the_pack(opened):
    store = opened()
    name, _ = write(store, SAMPLES)
    size = store.packs()[name]
    whole = store.read(name, 0, size)
    assert len(whole) == size
    assert store.read(name, size - 5, 10) == whole[-5:]
    assert store.read(name, size + 5, 10) == b""
    spans = [(size - 5, 10), (0, 4), (2, 0), (2, 4), (size + 3, 3), (10**12, 3)]
    assert store.read_many(name, spans) == [whole[-5:], b"SPAK", b"", whole[2:6], b"", b""]


def test_a_pack_that_is_cut_off_or_gone_is_told(opened):
    store = opened()
    name, _ = write(store, SAMPLES)
    size = store.packs()[name]
    for other in (size - 1, size + 1, 64, 0):
        with pytest.raises(StoreFormatError, match=name):
            store.read_index(name, other)
    with pytest.raises(RecordError):
        check_record(store.read(name, 64, 65), SAMPLES[0][0])
    store.remove(name)
    store.remove(name)
    assert store.packs() == {}
    for ask in (
        lambda: store.read(name, 0, 1),
        lambda: store.read_many(name, [(0, 1)]),
        lambda: store.read_index(name, size),
    ):
        with pytest.raises(StoreGoneError, match=name):
            ask()


@pytest.mark.parametrize("name", ["../store.json", "x", "", "store.json", "/etc/passwd", "..\\x", "\0"])
def test_no_name_leads_out(opened, name):
    store = opened()
    for ask in (
        lambda: store.read(name, 0, 1),
        lambda: store.read_index(name, 500),
        lambda: store.remove(name),
        lambda: store.read_segment(name),
        lambda: store.remove_segment(name),
        lambda: store.touch(name + "/"),
        lambda: store.forget(name + "/"),
        lambda: store.mark_used(name),
        lambda: store.write_segment(b"", name + "/"),
    ):
        with pytest.raises(StoreFormatError, match="no name in"):
            ask()
    assert opened(create=False).id == store.id


def test_segments(opened):
    store = opened()
    segment = segment_of(pack_bytes(SAMPLES), pack_bytes([]))
    names = [store.write_segment(pack_segment(segment), collection) for collection in ("", META.collection)]
    assert names[1].startswith(META.collection)
    assert sorted(store.segments()) == sorted(names)
    for name in names:
        found = store.read_segment(name)
        assert all(isinstance(pack, SegmentPack) for pack in found.packs)
        assert (found.packs, found.entries.tobytes()) == (segment.packs, segment.entries.tobytes())
    broken = store.write_segment(pack_segment(segment)[:-1])
    with pytest.raises(StoreFormatError, match=broken):
        store.read_segment(broken)
    store.remove_segment(broken)
    store.remove_segment(broken)
    with pytest.raises(StoreGoneError, match=broken):
        store.read_segment(broken)
    assert sorted(store.segments()) == sorted(names)


def test_who_has_it_open(opened):
    store = opened()
    now = time.time()
    store.touch("a")
    store.touch("b")
    assert store.others("a", now) == ["b"]
    assert store.others("c", now + 500) == store.others("c", now) == sorted(["a", "b"])
    assert store.others("c", now + 700) == []
    store.forget("b")
    store.forget("b")
    assert store.others("a", now) == []
    assert store.sweep(now + DAY_S / 2) == 0
    assert store.others("c", now) == ["a"]
    assert store.sweep(now + 2 * DAY_S) == 1
    assert store.others("c", now) == []


def test_when_collections_were_used(opened):
    store = opened()
    assert store.used() == {}
    store.mark_used("a" * 16)
    store.mark_used("b" * 16)
    store.mark_used("b" * 16)
    assert store.used() == pytest.approx(dict.fromkeys(("a" * 16, "b" * 16), time.time()), abs=60)


def test_marks_are_cleared_and_nothing_else(opened):
    store = opened()
    name, _ = write(store, SAMPLES)
    segment = store.write_segment(pack_segment(segment_of(pack_bytes(SAMPLES))))
    store.touch("a")
    store.mark_used("a" * 16)
    store.clear_marks()
    assert (store.used(), store.others("b", time.time())) == ({}, [])
    assert (list(store.packs()), store.segments(), opened(create=False).id) == ([name], [segment], store.id)


def test_a_store_is_made_only_if_it_may_be(opened):
    for options in ({"create": False}, {"read_only": True}, {"create": False, "read_only": True}):
        with pytest.raises(StoreGoneError):
            opened(**options)
    assert opened().id == opened().id == opened(create=False).id == opened(read_only=True).id


def test_nothing_is_written_where_only_reading_was_asked_for(opened):
    store = opened()
    name, held = write(store, SAMPLES)
    segment = store.write_segment(pack_segment(segment_of(pack_bytes(SAMPLES))))
    store.touch("a")
    reader = opened(create=False, read_only=True)
    assert reader.read_only
    for ask in (
        lambda: reader.begin_pack(META),
        lambda: reader.remove(name),
        lambda: reader.write_segment(b""),
        lambda: reader.remove_segment(segment),
        lambda: reader.touch("b"),
        lambda: reader.forget("a"),
        lambda: reader.mark_used("a" * 16),
        lambda: reader.sweep(0.0),
        reader.clear_marks,
    ):
        with pytest.raises(StoreRefusedError, match="for reading only"):
            ask()
    assert reader.packs() == store.packs()
    assert intact(reader, name, reader.packs()[name]) == held
    assert reader.segments() == [segment]
    assert reader.others("b", time.time()) == ["a"]


WRITER = """
import json, sys
from superdl.super_wire.store import open_store, pack_segment
from tests.super_wire.store.packing import META, fill, pack_bytes, records, segment_of
address, seed = sys.argv[1], int(sys.argv[2])
store = open_store(address, create=True)
packs = {}
for number in range(12):
    with store.begin_pack(META) as pack:
        samples = records([9, 70_000, number], seed + number)
        fill(pack, samples)
        packs[pack.commit()] = [sample_id.hex() for sample_id, _ in samples]
    store.mark_used(f"{seed:016}")
    store.touch(f"writer-{seed}")
segment = store.write_segment(pack_segment(segment_of(pack_bytes(samples))))
print(json.dumps({"id": store.id, "packs": packs, "segment": segment}))
"""


def test_two_writers_at_once(opened, address):
    """From the store's making on, in processes of their own, while another looks at what is there."""
    command, seen, store = [sys.executable, "-c", WRITER, address], set(), None
    with (
        subprocess.Popen([*command, "100"], stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen([*command, "200"], stdout=subprocess.PIPE, text=True) as second,
    ):
        while first.poll() is None or second.poll() is None:
            if store is None:
                with contextlib.suppress(StoreGoneError):  # nobody has made it yet
                    store = opened(create=False, read_only=True)
                continue
            store.used()
            for name, size in store.packs().items():
                if name not in seen:
                    seen.add(name)
                    assert len(intact(store, name, size)) == 3
        told = [json.loads(writer.communicate()[0]) for writer in (first, second)]
    store = opened(create=False)
    assert {writer["id"] for writer in told} == {store.id}
    packs = store.packs()
    assert packs.keys() == told[0]["packs"].keys() | told[1]["packs"].keys()
    assert len(packs) == 24
    for writer in told:
        for name, ids in writer["packs"].items():
            assert [sample_id.hex() for sample_id in intact(store, name, packs[name])] == ids
    assert sorted(store.segments()) == sorted(writer["segment"] for writer in told)
    assert store.used().keys() == {"0" * 13 + seed for seed in ("100", "200")}
    assert sorted(store.others("me", time.time())) == ["writer-100", "writer-200"]


def test_what_others_put_there_is_left_alone(opened, put):
    store = opened()
    for folder in ("packs", "index", "open", "used"):
        put(f"{folder}/notes.txt", b"mine")
    assert (store.packs(), store.segments(), store.used()) == ({}, [], {})
    assert store.others("a", time.time()) == []
    store.clear_marks()
    assert store.sweep(time.time() + 9 * DAY_S) == 0
    assert put.held("packs/notes.txt") == b"mine"


@pytest.mark.parametrize("name", ["photo.jpg", "packs/x", "zebra/1"])
def test_what_holds_other_things_is_no_store(opened, put, name):
    put(name, b"mine")
    for create in (True, False):
        with pytest.raises(StoreError) as refused:
            opened(create=create)
        assert type(refused.value) is (StoreFormatError if create else type(refused.value))
    assert put.held(name) == b"mine"
    with pytest.raises(StoreFormatError, match=f"it has '.*{name.split('/')[0]}"):
        opened()


@pytest.mark.parametrize("mark", [b"", b"{}", b'{"super_store": 9, "id": "x"}', b"x" * 10_000])
def test_what_is_marked_otherwise_is_no_store(opened, put, mark):
    put("store.json", mark)
    with pytest.raises(StoreFormatError):
        opened()
    assert put.held("store.json") == mark


def test_a_directory_that_is_not_there():
    with pytest.raises(StoreError):
        open_store("/nowhere/at/all", create=False)
