"""What waits: the heap of times, and misses that are reported again and again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, SetKey
from superdl.coordinator.core.queues import BatchPlace, ReportedMisses, TimeQueue

CURSORS = st.tuples(st.sampled_from("abc"), st.integers(0, 2))


@given(st.lists(st.tuples(CURSORS, st.one_of(st.none(), st.floats(0, 9)))))
def test_the_last_time_given_for_an_item_counts(changes):
    queue, expected = TimeQueue(), {}
    for cursor, deadline_s in changes:
        if deadline_s is None:
            queue.discard(cursor)
            expected.pop(cursor, None)
        else:
            queue.add(cursor, deadline_s)
            expected[cursor] = deadline_s
        assert len(queue) == len(expected)
        assert (cursor in queue) == (cursor in expected)
    popped = [queue.pop() for _ in expected]
    assert sorted(popped) == sorted(expected)
    assert [expected[cursor] for cursor in popped] == sorted(expected.values())


def test_changing_deadlines_often_does_not_fill_memory():
    queue = TimeQueue()
    for number in range(10_000):
        queue.add(("job", number % 3), float(number))
    assert len(queue._heap) < 100


KEY = SetKey(b"data", EVERY_EPOCH)
PLACE, OTHER = BatchPlace("job", 0, 0, 7), BatchPlace("job", 1, 0, 7)


def at(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def test_repeated_misses_of_a_batch_are_one_entry_that_keeps_its_place():
    misses = ReportedMisses()
    for _ in range(1000):
        misses.report(PLACE, KEY, at(4, 5), now=0.0)
    misses.report(OTHER, KEY, at(1), now=0.0)
    misses.report(PLACE, KEY, at(6), now=1.0)
    assert list(misses.unserved) == [PLACE, OTHER]
    assert misses[PLACE].indices.tolist() == [6]


def test_what_was_served_is_looked_at_again_once_samples_of_its_set_are_absent_again():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(4), now=0.0)
    misses.served(PLACE)
    misses.reopen(SetKey(b"other", EVERY_EPOCH))
    assert not misses.unserved
    misses.reopen(KEY)
    assert list(misses.unserved) == [PLACE]
    misses.discard(PLACE)
    misses.reopen(KEY)
    assert not misses.unserved


def test_what_a_reader_repeats_no_more_is_not_believed_for_long():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(4), now=0.0)
    assert misses.next_expiry_s(2.0) == 3.0
    assert misses.next_expiry_s(3.0) is None
    assert not misses.unserved
