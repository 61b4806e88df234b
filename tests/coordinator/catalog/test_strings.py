"""Packed and compact strings behave as the list that they were made of, and take little memory."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.strings import PackedStrings, compact

# Few different bytes, zero among them, so that strings share beginnings and differ by trailing zeros only.
ALIKE = st.lists(st.sampled_from([0, 1, 97, 255]), max_size=20).map(bytes)
LISTS = st.lists(st.one_of(ALIKE, st.binary(max_size=40)), max_size=200)
HEX_LISTS = st.integers(1, 8).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size).map(lambda raw: raw.hex().encode()))
)


@given(st.one_of(LISTS, LISTS.map(sorted), HEX_LISTS), st.booleans(), st.data())
def test_gives_back_what_was_there(strings, is_compact, data):
    packed = PackedStrings.pack(strings)
    held = compact(packed) if is_compact else packed
    assert len(held) == len(strings)
    assert list(held) == strings
    assert [held[place] for place in range(len(strings))] == strings
    assert held.lengths().tolist() == [len(string) for string in strings]
    start, stop = sorted((data.draw(st.integers(0, 210)), data.draw(st.integers(0, 210))))
    assert held.slice(start, stop) == strings[start:stop]
    places = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=80)) if strings else []
    assert held.take(places) == [strings[place] for place in places]
    assert list(packed.reorder(np.array(places, dtype=np.int64))) == held.take(places)


@given(LISTS)
def test_sorts_by_bytes_and_keeps_equals_in_order(strings):
    packed = PackedStrings.pack(strings)
    order = packed.sort_order()
    assert order.tolist() == sorted(range(len(strings)), key=strings.__getitem__)
    equal = [first == second for first, second in pairwise(sorted(strings))]
    assert packed.reorder(order).equals_next().tolist() == equal


@given(st.lists(LISTS, max_size=5))
def test_concatenates(parts):
    whole = PackedStrings.concatenate([PackedStrings.pack(part) for part in parts])
    assert list(whole) == [string for part in parts for string in part]


def test_many_more_strings_than_are_unpacked_at_a_time():
    strings = [b"%d" % (number * 7919 % 20_011) for number in range(20_011)]
    packed = PackedStrings.pack(strings)
    assert list(packed) == strings
    assert list(packed.reorder(packed.sort_order())) == sorted(strings)


@pytest.mark.parametrize(
    "strings",
    [[b"ab", b"cdef"], [b"abc", b"def"], [b"ab", b"CD"], [b"ab", b"g0"], [b"", b""], []],
    ids=["lengths", "odd", "upper case", "no digit", "empty", "none"],
)
def test_what_is_not_all_hexadecimal_of_one_length_is_held_otherwise(strings):
    assert list(compact(PackedStrings.pack(strings))) == strings


@pytest.mark.parametrize("strings", [[b"a/1", b"a/2"], [b"0a", b"0b"]], ids=["prefixed", "hex"])
@pytest.mark.parametrize("place", [-1, 2])
def test_a_place_outside_is_refused(strings, place):
    packed = PackedStrings.pack(strings)
    for held in (packed, compact(packed)):
        with pytest.raises(IndexError, match="2 strings lie from 0 to 1"):
            held.take(np.array([0, place]))


def test_keys_of_folders_and_etags_take_little_memory():
    count = 10_000
    keys = PackedStrings.pack(
        sorted(f"train/n{i % 50:08d}/n{i % 50:08d}_{i}.JPEG".encode() for i in range(count))
    )
    etags = PackedStrings.pack(f"{i * 2**90 + i:032x}".encode() for i in range(count))
    held = compact(keys)
    assert compact(held) is held
    assert len(pickle.dumps(held)) < 20 * count < 40 * count < len(pickle.dumps(keys))
    assert len(pickle.dumps(compact(etags))) < 16.1 * count
