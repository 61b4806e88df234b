"""What readers said they miss: believed for some seconds, one word for each batch."""

from __future__ import annotations

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, SetKey
from superdl.coordinator.core.queues import BatchPlace, ReportedMisses

KEY, OTHER = SetKey(b"data", EVERY_EPOCH), SetKey(b"other", 3)
PLACE = BatchPlace("job", 0, 0, 7)


def at(*indices: int) -> np.ndarray:
    return np.array(indices, dtype=np.int64)


def test_the_last_report_of_a_batch_counts():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(1, 2, 3), 0.0)
    misses.report(PLACE._replace(position=8), KEY, at(9), 0.0)
    misses.report(PLACE._replace(job="b"), OTHER, at(4), 0.0)
    misses.report(PLACE, KEY, at(3), 1.0)
    found = misses.by_set(1.0)
    assert {key: sorted(indices.tolist()) for key, indices in found.items()} == {KEY: [3, 9], OTHER: [4]}


def test_a_batch_that_was_read_awaits_nothing():
    misses = ReportedMisses()
    misses.report(PLACE, KEY, at(1), 0.0)
    misses.discard(PLACE)
    misses.discard(PLACE)
    assert misses.by_set(0.0) == {}


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
