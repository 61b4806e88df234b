"""Compact strings behave as the list they were made of, and take little memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.compact import HexStrings, PrefixedStrings, compact
from superdl.coordinator.catalog.packed import PackedStrings

ALIKE = st.lists(st.sampled_from([0, 97, 255]), max_size=12).map(bytes)
LISTS = st.lists(st.one_of(ALIKE, st.binary(max_size=30)), max_size=200)
HEX_LISTS = st.integers(1, 8).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size).map(lambda raw: raw.hex().encode()))
)


@given(st.one_of(LISTS, LISTS.map(sorted), HEX_LISTS), st.data())
def test_gives_back_what_was_there(strings, data):
    held = compact(PackedStrings.pack(strings))
    assert len(held) == len(strings)
    assert list(held) == strings
    assert [held[place] for place in range(len(strings))] == strings
    assert held.lengths().tolist() == [len(string) for string in strings]
    start, stop = sorted((data.draw(st.integers(0, 210)), data.draw(st.integers(0, 210))))
    assert held.slice(start, stop) == strings[start:stop]
    places = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=80)) if strings else []
    assert held.take(places) == [strings[place] for place in places]


@pytest.mark.parametrize(
    "strings",
    [[b"ab", b"cdef"], [b"abc", b"def"], [b"ab", b"CD"], [b"ab", b"g0"], [b"", b""], []],
    ids=["lengths", "odd", "upper case", "no digit", "empty", "none"],
)
def test_what_is_not_all_hexadecimal_of_one_length_is_held_otherwise(strings):
    packed = PackedStrings.pack(strings)
    assert HexStrings.of(packed) is None
    assert list(compact(packed)) == strings


@pytest.mark.parametrize("strings", [[b"a/1", b"a/2"], [b"0a", b"0b"]], ids=["prefixed", "hex"])
@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_outside_is_refused(strings, place):
    held = compact(PackedStrings.pack(strings))
    with pytest.raises(IndexError, match="from 0 to 1"):
        held.take(np.array([0, place]))


def test_what_is_compact_stays_as_it_is():
    held = compact(PackedStrings.pack([b"a/1", b"a/2"]))
    assert isinstance(held, PrefixedStrings)
    assert compact(held) is held


def test_keys_of_folders_and_etags_take_little_memory():
    count = 10_000
    keys = PackedStrings.pack(
        sorted(f"train/n{i % 50:08d}/n{i % 50:08d}_{i}.JPEG".encode() for i in range(count))
    )
    etags = PackedStrings.pack(f"{i * 2**90 + i:032x}".encode() for i in range(count))
    assert compact(keys).nbytes < 20 * count < 40 * count < keys.nbytes
    assert compact(etags).nbytes == 16 * count
