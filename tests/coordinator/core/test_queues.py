"""What waits: the heap of times, retries and misses, what readers said they wait for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import EVERY_EPOCH, SetKey
from superdl.coordinator.core.queues import BatchPlace, ReportedMisses, RetryQueue, TimeQueue

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


def test_retries_come_when_they_are_due_in_that_order():
    queue = RetryQueue()
    for due_s, index in ((3.0, 3), (1.0, 1), (2.0, 2), (1.0, 4)):
        queue.add(due_s, KEY, at(index), "job")
    assert queue.next_due_s == 1.0
    assert queue.take_due() is None
    assert [retry.indices.tolist() for retry in queue.become_due(2.0)] == [[1], [4], [2]]
    assert queue.next_due_s == 3.0
    assert taken(queue) == [[1], [4], [2]]
    assert len(queue) == 1


def test_misses_come_first_in_order_of_arrival():
    queue = RetryQueue()
    queue.add(0.0, KEY, at(1), "job")
    queue.become_due(0.0)
    queue.add_urgent(KEY, at(2), PLACE)
    queue.add_urgent(KEY, at(3), PLACE._replace(position=8))
    assert queue.waiting
    assert taken(queue) == [[2], [3], [1]]
    assert not queue.waiting


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
            queue.add(0.0, KEY, at(position, 10), "job", alone=True)
    queue.become_due(0.0)
    retry = queue.take_due()
    queue.put_back(retry, retry.indices[1:])
    again = queue.take_due()
    assert (again.indices.tolist(), again.urgent, again.alone) == ([10], urgent, not urgent)
    queue.put_back(again, at())
    assert taken(queue) == [[2, 10]]


def test_nothing_is_no_retry():
    queue = RetryQueue()
    queue.add(0.0, KEY, at(), "job")
    queue.add_urgent(KEY, at(), PLACE)
    assert len(queue) == 0
    assert queue.next_due_s is None


OTHER = SetKey(b"other", 3)


def test_the_last_report_of_a_batch_counts():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(1, 2, 3), 0.0)
    misses.report(PLACE._replace(position=8), KEY, at(9), 0.0)
    misses.report(PLACE._replace(job="b"), OTHER, at(4), 0.0)
    misses.report(PLACE, KEY, at(3), 1.0)
    found = misses.by_set(1.0)
    assert {key: sorted(indices.tolist()) for key, indices in found.items()} == {KEY: [3, 9], OTHER: [4]}


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
