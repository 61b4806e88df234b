"""Packed strings behave like the list they were made from."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.strings import PackedStrings

# Few distinct bytes, including zero, so that strings share prefixes and differ only by trailing zeros.
ALIKE = st.lists(st.sampled_from([0, 1, 97, 255]), max_size=20).map(bytes)
LISTS = st.lists(st.one_of(ALIKE, st.binary(max_size=40)), max_size=200)


@given(LISTS, st.data())
def test_packed_strings_equal_the_originals(strings, data):
    packed = PackedStrings.pack(strings)
    assert len(packed) == len(strings)
    assert list(packed) == strings
    assert [packed[place] for place in range(len(strings))] == strings
    places = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=80)) if strings else []
    taken = [strings[place] for place in places]
    assert packed.take(places) == taken
    assert list(packed.reorder(np.array(places, dtype=np.int64))) == taken
    repeated = packed.repeated(np.array(places, dtype=np.uint8))
    assert list(repeated) == repeated.take(range(len(places))) == taken
    assert b"".join(chunk.parts()[0] for chunk in repeated.chunks()) == b"".join(taken)


@given(LISTS)
def test_strings_are_sorted_by_bytes_and_found_by_value(strings):
    packed = PackedStrings.pack(strings)
    order = packed.sort_order()
    assert order.tolist() == sorted(range(len(strings)), key=strings.__getitem__)
    equal = [first == second for first, second in pairwise(sorted(strings))]
    assert packed.reorder(order).equals_next().tolist() == equal
    distinct = list(dict.fromkeys(strings))
    assert packed.find_in(PackedStrings.pack(distinct)).tolist() == [distinct.index(text) for text in strings]
    assert PackedStrings.pack([b"not there, too long"]).find_in(packed).tolist() == [-1]


def test_strings_beyond_64_mb_lie_in_a_file():
    strings = [bytes([byte]) * (20 << 20) for byte in (3, 1, 4, 2, 4)]
    packed = PackedStrings.pack(strings).reorder(np.arange(5))
    assert packed.take([4, 0]) == [strings[4], strings[0]]
    assert list(packed.reorder(np.array([3, 1]))) == [strings[3], strings[1]]
