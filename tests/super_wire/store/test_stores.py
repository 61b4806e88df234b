"""What holds of a store, directory and S3 prefix alike: whole packs or none, and nobody else's files."""

import contextlib
import json
import subprocess
import sys
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from superdl.super_wire.errors import (
    RecordError,
    StoreError,
    StoreFormatError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.store import check_record, open_store
from tests.super_wire.store.packing import (
    META,
    METAS,
    RECORDS,
    fill,
    intact,
    records,
)

DAY_S = 86400.0
SAMPLES = records([9, 70_000, 1])
PACK = f"{META.collection}-{'0' * 24}.pack"
SEGMENT = b"what the coordinator keeps of packs"


def write(store, samples, meta=META):
    """A pack's name, and what :func:`intact` finds of it later."""
    with store.begin_pack(meta) as pack:
        fill(pack, samples)
        name = pack.commit()
    return name, {sample_id: array.tobytes() for sample_id, array in samples}


class StoreUse(RuleBasedStateMachine):
    """A store beside what must be in it."""

    def __init__(self, address):
        super().__init__()
        self.address = address
        self.store = open_store(address, create=True)
        self.id, self.now = self.store.id, time.time()
        self.packs, self.segments, self.used, self.open = {}, {}, set(), set()

    @rule(sizes=RECORDS, meta=METAS, commits=st.booleans())
    def write_pack(self, sizes, meta, commits):
        samples = records(sizes)
        with self.store.begin_pack(meta) as pack:
            fill(pack, samples)
            if commits:
                name = pack.commit()
                assert name.startswith(meta.collection)
                self.packs[name] = (pack.size, {sample: array.tobytes() for sample, array in samples})

    @rule(data=st.data())
    def remove_pack(self, data):
        name = data.draw(st.sampled_from(sorted(self.packs) or [PACK]))
        self.store.remove(name)
        if self.packs.pop(name, None):
            with pytest.raises(StoreGoneError, match=name):
                self.store.read(name, 0, 1)
        self.store.remove(name)

    @rule(collection=st.sampled_from(["", META.collection]))
    def write_segment(self, collection):
        name = self.store.write_segment(SEGMENT, collection)
        assert name.startswith(collection)
        self.segments[name] = SEGMENT

    @rule(data=st.data())
    def remove_segment(self, data):
        name = data.draw(st.sampled_from(sorted(self.segments) or [f"{'0' * 24}.segment"]))
        self.store.remove_segment(name)
        self.segments.pop(name, None)

    @rule(instance=st.sampled_from("ab"), leaves=st.booleans())
    def use(self, instance, leaves):
        (self.store.forget if leaves else self.store.touch)(instance)
        self.open = self.open - {instance} if leaves else self.open | {instance}

    @rule(collection=st.sampled_from(["a" * 16, "b" * 16]))
    def mark_used(self, collection):
        self.store.mark_used(collection)
        self.used.add(collection)

    @rule(days=st.sampled_from([0.5, 2]))
    def sweep(self, days):
        assert self.store.sweep(self.now + days * DAY_S) == (len(self.open) if days > 1 else 0)
        self.open = set() if days > 1 else self.open

    @invariant()
    def all_processes_see_it(self):
        store = open_store(self.address, create=False, read_only=True)
        assert store.id == self.id
        assert store.packs() == {name: size for name, (size, _) in self.packs.items()}
        for name, (size, held) in self.packs.items():
            assert intact(store, name, size) == held
        assert sorted(store.segments()) == sorted(self.segments)
        assert all(store.read_segment(name) == SEGMENT for name in self.segments)
        assert (set(store.used()), set(store.others("c", self.now))) == (self.used, self.open)
        assert store.others("a", self.now) == sorted(self.open - {"a"})
        assert store.others("c", self.now + 700) == []
        assert all(abs(used_s - self.now) < 100 for used_s in store.used().values())


def test_any_use_of_a_store(new_address):
    run_state_machine_as_test(
        lambda: StoreUse(new_address()),
        settings=settings(max_examples=8, stateful_step_count=12, deadline=None),
    )


def test_a_pack_is_committed_or_abandoned_once(opened):
    store = opened()
    first, second = store.begin_pack(META), store.begin_pack(META)
    fill(first, SAMPLES)
    fill(second, SAMPLES)
    assert store.packs() == {}
    second.abandon()
    name = first.commit()
    first.abandon()  # of no effect any more
    assert store.packs() == {name: first.size}
    for finished in (first, second):
        for use in (finished.commit, lambda: fill(finished, SAMPLES)):  # noqa: B023 # called at once
            with pytest.raises(ValueError, match="committed or abandoned"):
                use()


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
    segment = store.write_segment(SEGMENT)
    store.remove(name)
    store.remove_segment(segment)
    for ask in (
        lambda: store.read(name, 0, 1),
        lambda: store.read_many(name, [(0, 1)]),
        lambda: store.read_index(name, size),
        lambda: store.read_segment(segment),
    ):
        with pytest.raises(StoreGoneError, match=f"{name}|{segment}"):
            ask()


@pytest.mark.parametrize(
    "name", ["../store.json", "x", "", "store.json", "/etc/passwd", "..\\x", "\0", ".", "..", "a/b", "a\0b"]
)
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
        with pytest.raises(StoreFormatError, match="not a valid name in"):
            ask()
    assert opened(create=False).id == store.id


def test_a_store_is_made_only_if_it_may_be(opened):
    for options in ({"create": False}, {"read_only": True}, {"create": False, "read_only": True}):
        with pytest.raises(StoreGoneError):
            opened(**options)
    assert opened().id == opened().id == opened(create=False).id == opened(read_only=True).id


def test_nothing_is_written_where_only_reading_was_asked_for(opened):
    store = opened()
    name, held = write(store, SAMPLES)
    segment = store.write_segment(SEGMENT)
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
    ):
        with pytest.raises(StoreRefusedError, match="read-only"):
            ask()
    assert reader.packs() == store.packs()
    assert intact(reader, name, reader.packs()[name]) == held
    assert reader.segments() == [segment]
    assert reader.others("b", time.time()) == ["a"]


WRITER = """
import json, sys
from superdl.super_wire.store import open_store
from tests.super_wire.store.packing import META, fill, records
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
segment = store.write_segment(b"of this writer")
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
    with pytest.raises(StoreFormatError, match=f"contains '.*{name.split('/')[0]}"):
        opened()


@pytest.mark.parametrize(
    "mark",
    [
        *(b"", b"{}", b"[" * 4000, b"x" * 10_000),
        *(b'{"super_store": %b}' % rest for rest in (b'9, "id": "x"', b'1, "id": "x"', b'1, "id": 3')),
    ],
)
def test_what_is_marked_otherwise_is_no_store(opened, put, mark):
    put("store.json", mark)
    with pytest.raises(StoreFormatError):
        opened()
    assert put.held("store.json") == mark
