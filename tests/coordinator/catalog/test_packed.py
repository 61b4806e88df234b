"""Packed strings behave as the list they were packed from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.packed import PackedStrings, PackedStringsBuilder

# Few different bytes, zero among them, so that strings share beginnings and differ by trailing zeros only.
ALIKE = st.lists(st.sampled_from([0, 1, 97, 255]), max_size=20).map(bytes)
STRINGS = st.lists(st.one_of(ALIKE, st.binary(max_size=40)), max_size=60)


@given(STRINGS)
def test_gives_back_what_was_packed(strings):
    packed = PackedStrings.pack(strings)
    assert len(packed) == len(strings)
    assert list(packed) == strings
    assert [packed[i] for i in range(len(strings))] == strings
    assert packed.lengths().tolist() == [len(string) for string in strings]
    assert packed.nbytes == sum(map(len, strings)) + 8 * (len(strings) + 1)


@given(STRINGS, st.data())
def test_takes_any_places_in_any_order(strings, data):
    packed = PackedStrings.pack(strings)
    places = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=80)) if strings else []
    expected = [strings[place] for place in places]
    assert packed.take(places) == expected
    assert list(packed.reorder(np.array(places, dtype=np.int64))) == expected
    start, stop = sorted((data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))))
    assert packed.slice(start, stop) == strings[start:stop]


@given(STRINGS)
def test_sorts_by_bytes_and_keeps_equals_in_order(strings):
    packed = PackedStrings.pack(strings)
    order = packed.sort_order()
    assert order.tolist() == sorted(range(len(strings)), key=strings.__getitem__)
    ordered = sorted(strings)
    equal = [first == second for first, second in pairwise(ordered)]
    assert packed.reorder(order).equals_next().tolist() == equal


@given(st.lists(STRINGS, max_size=5))
def test_concatenates(parts):
    whole = PackedStrings.concatenate([PackedStrings.pack(part) for part in parts])
    assert list(whole) == [string for part in parts for string in part]


@given(STRINGS, STRINGS)
def test_equality_is_that_of_the_lists(first, second):
    assert (PackedStrings.pack(first) == PackedStrings.pack(second)) is (first == second)
    assert hash(PackedStrings.pack(first)) == hash(PackedStrings.pack(iter(first)))


def test_many_more_strings_than_are_unpacked_at_a_time():
    strings = [b"%d" % (number * 7919 % 20_011) for number in range(20_011)]
    packed = PackedStrings.pack(strings)
    assert list(packed) == strings
    assert list(packed.reorder(packed.sort_order())) == sorted(strings)


def test_a_builder_may_go_on_after_building():
    builder = PackedStringsBuilder()
    builder.append(b"a")
    first = builder.build()
    builder.append(b"b")
    assert list(first) == [b"a"]
    assert list(builder.build()) == [b"a", b"b"]
    assert len(builder) == 2


@pytest.mark.parametrize("index", [-1, 2, 10**30])
def test_places_outside_are_refused(index):
    packed = PackedStrings.pack([b"a", b"b"])
    with pytest.raises(IndexError, match="2 packed strings"):
        packed[index]


@pytest.mark.parametrize("index", [-1, 2])
def test_taking_from_outside_is_refused(index):
    with pytest.raises(IndexError, match="2 packed strings"):
        PackedStrings.pack([b"a", b"b"]).take([0, index])


def test_offsets_that_do_not_fit_the_blob_are_refused():
    with pytest.raises(ValueError, match="from 0 to 3"):
        PackedStrings(b"abc", np.array([0, 2], dtype=np.uint64))


def test_equals_nothing_else():
    assert PackedStrings.pack([b"a"]) != [b"a"]
    assert repr(PackedStrings.pack([b"a", b"bc"])) == "PackedStrings(2 strings, 3 bytes)"
