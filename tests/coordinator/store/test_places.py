"""Places of records: joined by ids as a dictionary would, sixteen bytes a sample, and nameable to the end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.store.places import Joined, Places, join
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.store import SEGMENT_DTYPE

CONTENT = b"c" * 16
SAMPLE_IDS = st.integers(0, 40).map(lambda n: n.to_bytes(8, "little") + (n % 3).to_bytes(8, "little"))
# Some share their first half alone.
IDS = SAMPLE_IDS | st.integers(0, 40).map(lambda n: n.to_bytes(8, "little") + b"\xff" * 8)


def as_array(ids: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, ID_BYTES)


@given(
    st.lists(IDS, unique=True),
    st.lists(st.tuples(IDS, st.integers(0, 4), st.integers(64, 2**40))),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
def test_joining_finds_what_a_dictionary_finds(catalog, stored, numbers):
    entries = np.zeros(len(stored), dtype=SEGMENT_DTYPE)
    for entry, (sample_id, pack, offset) in zip(entries, stored, strict=True):
        entry["id"], entry["pack"], entry["offset"], entry["bytes"] = sample_id, pack, offset, offset % 1000
    expected = {
        sample_id: (numbers[pack], offset, offset % 1000)
        for sample_id, pack, offset in stored
        if numbers[pack]
    }
    found = join(as_array(catalog), entries, np.array(numbers, dtype=np.uint32))
    got = {
        catalog[index]: (pack, offset, length)
        for index, pack, offset, length in zip(*(column.tolist() for column in found), strict=True)
    }
    # Of ids that share their first half one may be missed, and is decoded again; none is ever mistaken.
    shared = {one for one in expected if sum(other[:8] == one[:8] for other in expected) > 1}
    assert {one: expected.get(one) for one in got} == got
    assert set(expected) & set(catalog) - shared <= set(got)
    assert found.indices.tolist() == sorted(found.indices.tolist())


def placed(places: Places, indices: list[int], pack: str) -> None:
    number = places.number(pack)
    columns = [np.array(indices, dtype=kind) for kind in (np.int64, np.uint32, np.uint64, np.uint32)]
    joined = Joined(columns[0], np.full(len(indices), number, np.uint32), columns[2] * 4096, columns[3] + 64)
    places.put(CONTENT, joined)


def test_what_is_gone_or_spoilt_is_known_no_more_and_can_still_be_asked_for():
    places = Places()
    places.open(CONTENT, 10)
    placed(places, [1, 2, 3], "one")
    placed(places, [5, 6], "two")
    every = np.array([0, 1, 2, 5, 6])
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3, 5, 6]
    assert places.live() == {"one": 3, "two": 2}
    two = places.number("two")
    assert places.lose(["two", "never-seen"]).tolist() == [two]
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
    placed(places, [2], "three")  # written anew
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3]
    places.number("two")  # a look has found it again
    assert places.known(CONTENT)[0].tolist() == [1, 2, 3, 5, 6]


def test_a_closed_dataset_is_forgotten_and_its_numbers_are_never_another_packs():
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
    assert places.lose(["pack 4999"]).size == 1
