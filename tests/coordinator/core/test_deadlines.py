"""The queue of ranks: earliest deadline first, ties in order of arrival, and a heap that stays small."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core.queues import TimeQueue

LANES = st.tuples(st.sampled_from("abc"), st.integers(0, 2))


def test_the_earliest_deadline_comes_first():
    queue = TimeQueue()
    for cursor, deadline_s in ((("a", 0), 3.0), (("b", 0), 1.0), (("c", 0), 2.0)):
        queue.add(cursor, deadline_s)
    assert queue.soonest_s() == 1.0
    assert [queue.pop() for _ in range(4)] == [("b", 0), ("c", 0), ("a", 0), None]
    assert queue.soonest_s() is None


def test_ties_go_in_order_of_arrival():
    queue = TimeQueue()
    for rank in (5, 1, 3):
        queue.add(("job", rank), 1.0)
    assert [queue.pop()[1] for _ in range(3)] == [5, 1, 3]


@given(st.lists(st.tuples(LANES, st.one_of(st.none(), st.floats(0, 9)))))
def test_the_last_word_about_a_lane_counts(changes):
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
