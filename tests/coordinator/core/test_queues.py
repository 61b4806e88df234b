"""What waits: the heap of times, retries and misses, what readers said they wait for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, SetKey
from superdl.coordinator.core.queues import BatchPlace, ReportedMisses, Retry, RetryQueue, TimeQueue

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
    while (retry := queue.take_due()) is not None:
        found.append(retry.indices.tolist())
    return found


def test_repeated_misses_of_a_batch_are_one_retry():
    queue = RetryQueue()
    for _ in range(1000):
        queue.add_urgent(KEY, at(4, 5), PLACE)
    queue.add_urgent(KEY, at(6, 4), PLACE)
    assert len(queue) == 1
    assert taken(queue) == [[4, 5, 6]]


@pytest.mark.parametrize("urgent", [True, False])
def test_what_is_put_back_comes_next(urgent):
    queue = RetryQueue()
    for position in (1, 2):
        if urgent:
            queue.add_urgent(KEY, at(position, 10), PLACE._replace(position=position))
        else:
            queue.add(0.0, Retry(KEY, at(position, 10), "job", alone=True))
    queue.become_due(0.0)
    retry = queue.take_due()
    queue.put_back(retry, retry.indices[1:])
    again = queue.take_due()
    assert (again.indices.tolist(), again.urgent, again.alone) == ([10], urgent, not urgent)
    queue.put_back(again, at())
    assert taken(queue) == [[2, 10]]


def test_a_reader_that_fell_silent_is_not_waited_for():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(1), 0.0)
    misses.report(PLACE._replace(position=8), KEY, at(2), 2.0)
    first_s = misses.next_expiry_s(0.0)
    assert misses.by_set(first_s)[KEY].tolist() == [2]
    second_s = misses.next_expiry_s(first_s)
    assert second_s == first_s + 2.0
    assert misses.by_set(second_s) == {}
    assert misses.next_expiry_s(second_s) is None
    assert len(misses) == 0
