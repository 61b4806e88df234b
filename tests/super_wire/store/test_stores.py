"""Behaviour of both kinds of stores, in a directory and in S3."""

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
    StoreError,
    StoreFormatError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.store import open_store
from tests.super_wire.store.packing import (
    META,
    METAS,
    RECORDS,
    Putter,
    fill,
    intact,
    records,
)

DAY_S = 86400.0
SAMPLES = records([9, 70_000, 1])
PACK = f"{META.collection}-{'0' * 24}.pack"
SEGMENT = b"what the coordinator keeps of packs"
FOLDERS = ("packs", "index", "open", "used")


class StoreUse(RuleBasedStateMachine):
    """A store and its model, with foreign files in its folders."""

    def __init__(self, put):
        super().__init__()
        self.put, self.address = put, put.address
        self.store = open_store(self.address, create=True)
        self.id, self.now = self.store.id, time.time()
        self.packs, self.segments, self.used, self.open = {}, {}, set(), set()
        for folder in FOLDERS:
            put(f"{folder}/notes.txt", b"mine")

    @rule(sizes=RECORDS, meta=METAS, commits=st.booleans())
    def write_pack(self, sizes, meta, commits):
        samples = records(sizes)
        with self.store.begin_pack(meta) as pack:
            fill(pack, samples)
            if commits:
                name = pack.commit()
                assert name.startswith(meta.collection)
                self.packs[name] = (pack.size, {sample: array.tobytes() for sample, array in samples})
        pack.abandon()  # no effect
        for use in (pack.commit, lambda: fill(pack, SAMPLES)):
            with pytest.raises(ValueError, match="committed or abandoned"):
                use()

    @rule(data=st.data())
    def remove_pack(self, data):
        name = data.draw(st.sampled_from(sorted(self.packs) or [PACK]))
        self.store.remove(name)
        size, _ = self.packs.pop(name, (0, {}))
        reads = (
            lambda: self.store.read(name, 0, 1),
            lambda: self.store.read_many(name, [(0, 1)]),
            lambda: self.store.read_index(name, size),
        )
        for read in reads if size else ():
            with pytest.raises(StoreGoneError, match=name):
                read()
        self.store.remove(name)

    @rule(data=st.data())
    def read_spans(self, data):
        """Reads end with the pack, and its index needs its exact size."""
        name = data.draw(st.sampled_from(sorted(self.packs) or [PACK]))
        if name not in self.packs:
            return
        size, _ = self.packs[name]
        whole = self.store.read(name, 0, size)
        assert len(whole) == size
        places = st.sampled_from([0, 2, size - 5, size, size + 3, 10**12])
        spans = data.draw(st.lists(st.tuples(places, st.integers(1, 10)), max_size=5))
        parts = [whole[offset : offset + length] for offset, length in spans]
        assert [self.store.read(name, *span) for span in spans] == parts
        assert self.store.read_many(name, [*spans, (2, 0)]) == [*parts, b""]
        with pytest.raises(StoreFormatError, match=name):
            self.store.read_index(name, data.draw(st.sampled_from([size - 1, size + 1, 64, 0])))

    @rule(collection=st.sampled_from(["", META.collection]))
    def write_segment(self, collection):
        name = self.store.write_segment(SEGMENT, collection)
        assert name.startswith(collection)
        self.segments[name] = SEGMENT

    @rule(data=st.data())
    def remove_segment(self, data):
        name = data.draw(st.sampled_from(sorted(self.segments) or [f"{'0' * 24}.segment"]))
        self.store.remove_segment(name)
        if self.segments.pop(name, None):
            with pytest.raises(StoreGoneError, match=name):
                self.store.read_segment(name)

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
        assert (store.id, store.read_only) == (self.id, True)
        assert store.packs() == {name: size for name, (size, _) in self.packs.items()}
        for name, (size, held) in self.packs.items():
            assert intact(store, name, size) == held
        assert sorted(store.segments()) == sorted(self.segments)
        assert all(store.read_segment(name) == SEGMENT for name in self.segments)
        assert (set(store.used()), set(store.others("c", self.now))) == (self.used, self.open)
        assert store.others("a", self.now) == sorted(self.open - {"a"})
        assert store.others("c", self.now + 700) == []
        assert all(abs(used_s - self.now) < 100 for used_s in store.used().values())
        assert all(self.put.held(f"{folder}/notes.txt") == b"mine" for folder in FOLDERS)
        for write in (
            lambda: store.begin_pack(META),
            lambda: store.remove(min(self.packs, default=PACK)),
            lambda: store.write_segment(b""),
            lambda: store.remove_segment(min(self.segments, default=f"{'0' * 24}.segment")),
            lambda: store.touch("b"),
            lambda: store.forget("a"),
            lambda: store.mark_used("a" * 16),
            lambda: store.sweep(0.0),
        ):
            with pytest.raises(StoreRefusedError, match="read-only"):
                write()


def test_a_store_behaves_like_its_model(new_address):
    run_state_machine_as_test(
        lambda: StoreUse(Putter(new_address())),
        settings=settings(max_examples=8, stateful_step_count=12, deadline=None),
    )


@pytest.mark.parametrize(
    "name", ["../store.json", "x", "", "store.json", "/etc/passwd", "..\\x", "\0", ".", "..", "a/b", "a\0b"]
)
def test_no_name_leads_out_of_a_store(opened, name):
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


def test_a_store_is_only_created_on_request(opened):
    for options in ({"create": False}, {"read_only": True}, {"create": False, "read_only": True}):
        with pytest.raises(StoreGoneError):
            opened(**options)
    assert opened().id == opened().id == opened(create=False).id == opened(read_only=True).id


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


def test_two_concurrent_writers_create_one_store(opened, address):
    """Two processes create and fill the store while this one reads it."""
    command, seen, store = [sys.executable, "-c", WRITER, address], set(), None
    with (
        subprocess.Popen([*command, "100"], stdout=subprocess.PIPE, text=True) as first,
        subprocess.Popen([*command, "200"], stdout=subprocess.PIPE, text=True) as second,
    ):
        while first.poll() is None or second.poll() is None:
            if store is None:
                with contextlib.suppress(StoreGoneError):  # not yet created
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


@pytest.mark.parametrize("name", ["photo.jpg", "packs/x", "zebra/1"])
def test_other_files_are_not_a_store(opened, put, name):
    put(name, b"mine")
    for create in (True, False):
        with pytest.raises(StoreFormatError if create else StoreError):
            opened(create=create)
    assert put.held(name) == b"mine"
    with pytest.raises(StoreFormatError, match=f"contains '.*{name.split('/')[0]}"):
        opened()


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"{}",
        b"[" * 4000,
        b"x" * 10_000,
        *(b'{"super_store": %b}' % rest for rest in (b'9, "id": "x"', b'1, "id": "x"', b'1, "id": 3')),
    ],
)
def test_an_invalid_mark_is_refused(opened, put, mark):
    put("store.json", mark)
    with pytest.raises(StoreFormatError):
        opened()
    assert put.held("store.json") == mark
