"""What waits: the heap of times, and misses that are reported again and again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, SetKey
from superdl.coordinator.core.queues import BatchPlace, RetryQueue, TimeQueue
from superdl.coordinator.core.teams import NO_TEAM

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
PLACE = BatchPlace("job", 0, 0, 7)


def at(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def taken(queue: RetryQueue) -> list[list[int]]:
    found = []
    while teams := queue.teams:
        found.append(queue.take_due(min(teams)).indices.tolist())
    return found


def test_repeated_misses_of_a_batch_are_one_retry():
    queue = RetryQueue()
    for _ in range(1000):
        queue.add_urgent(KEY, at(4, 5), PLACE, NO_TEAM)
    queue.add_urgent(KEY, at(6, 4), PLACE, NO_TEAM)
    assert len(queue) == 1
    assert taken(queue) == [[4, 5, 6]]
