"""Which batch goes next, and where an iteration stands after any part of it, for all orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.sampler.prefetch import Delivered, Planned, PlanPosition, ReorderWindow
from superdl.super_wire.batch_ref import BatchRef


def planned(position, ready=False):
    ref = BatchRef(b"d", "job", 0, 0, position, b"b", b"i" * 16, b"", "int64", b"", (), "unix:///r")
    return Planned(ref, ready)


def filled(count, *, reorder=1, ready=()):
    window = ReorderWindow(0, count, reorder=reorder)
    for position in range(count):
        window.add(planned(position, position in ready))
    return window


def test_in_order_readiness_has_no_say():
    window = filled(5, ready={3})
    assert [window.take().position for _ in range(5)] == [0, 1, 2, 3, 4]
    assert window.take() is None
    assert window.exhausted


def test_the_first_ready_one_of_the_window_goes_first():
    window = filled(6, reorder=3, ready={2, 4})
    assert window.waits_for_head()
    assert window.take().position == 2
    assert window.head == 0
    assert window.take().position == 0, "4 is outside the window, so the head goes"
    assert window.take().position == 1, "now 4 is outside still: the window is 1, 2, 3"
    assert window.head == 3
    assert window.take().position == 4
    assert [window.take().position, window.take().position] == [3, 5]


def test_newer_statuses_change_what_goes_next():
    window = filled(4, reorder=4)
    window.mark_ready(2)
    window.mark_ready(99)
    assert window.take().position == 2
    window.mark_ready(0)
    assert not window.waits_for_head()
    assert window.take().position == 0


def test_pages_come_in_order_and_end_with_the_epoch():
    window = ReorderWindow(3, 5)
    with pytest.raises(ValueError, match="4 came where 3"):
        window.add(planned(4))
    window.add(planned(3))
    window.add(planned(4))
    with pytest.raises(ValueError, match="5 came where 5 of 5"):
        window.add(planned(5))


def test_what_an_earlier_iteration_gave_ahead_does_not_go_again():
    window = ReorderWindow(3, 8, reorder=2, delivered_ahead=(4, 7))
    for position in range(3, 8):
        window.add(planned(position, ready=position == 4))
    assert [window.take().position for _ in range(3)] == [3, 5, 6]
    assert window.take() is None
    assert window.exhausted


@given(
    events=st.lists(st.one_of(st.just("take"), st.integers(0, 39)), max_size=200),
    count=st.integers(1, 40),
    reorder=st.integers(1, 9),
    page=st.integers(1, 10),
)
def test_each_batch_goes_once_and_few_overtake_one(events, count, reorder, page):
    window = ReorderWindow(0, count, reorder=reorder)
    given_out = []
    for event in [*events, *["take"] * (count + 40)]:
        if event == "take":
            while window.asked < count and len(window) < page:
                window.add(planned(window.asked))
            batch = window.take()
            if batch is not None:
                given_out.append(batch.position)
        else:
            window.mark_ready(event)
    assert sorted(given_out) == list(range(count))
    assert window.exhausted
    for at, position in enumerate(given_out):
        overtakers = [other for other in given_out[:at] if other > position]
        assert len(overtakers) < reorder
        assert all(other < position + reorder for other in overtakers)


def passed(start, end, reorder, page, ready, most):
    """Positions given out by an iteration from ``start`` on, at most so many, and what it remembers."""
    window = ReorderWindow(start.position, end, reorder=reorder, delivered_ahead=start.delivered_ahead)
    remembered = Delivered(start, reorder=reorder)
    order = []
    while not window.exhausted and len(order) < most:
        while window.asked < end and len(window) < page:
            window.add(planned(window.asked, window.asked in ready))
        batch = window.take()
        if batch is not None:
            order.append(batch.position)
            remembered.add(batch.position)
    return order, remembered, window


def test_in_order_counting_suffices():
    remembered = Delivered(PlanPosition(3, 10))
    for position in range(10, 15):
        remembered.add(position)
    assert [remembered.place(count) for count in (0, 2, 5)] == [
        PlanPosition(3, 10),
        PlanPosition(3, 12),
        PlanPosition(3, 15),
    ]
    assert remembered.place() == PlanPosition(3, 15)


def test_in_order_after_one_had_gone_ahead_it_is_not_given_again():
    start = PlanPosition(2, 7, (8,))
    order, remembered, window = passed(start, 10, 1, 2, set(), 1)
    assert order == [7]
    assert remembered.place() == PlanPosition(2, 9)
    assert window.head == 9


@given(
    end=st.integers(1, 60),
    reorders=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    page=st.integers(1, 12),
    ready=st.sets(st.integers(0, 59)),
    parts=st.lists(st.integers(0, 30), max_size=3),
    consumed=st.integers(0, 100),
)
def test_whatever_the_order_an_epoch_goes_on_where_it_was_left(end, reorders, page, ready, parts, consumed):
    place, delivered = PlanPosition(2), []
    for part, reorder in zip([*parts, 10**6], [*reorders, *reorders, 1], strict=False):
        order, remembered, window = passed(place, end, reorder, page, ready, part)
        assert remembered.count == len(order)
        assert remembered.place().position == window.head
        count = min(consumed, len(order))  # the trainer may be behind what was given to the loader
        place = remembered.place(count)
        delivered += order[:count]
        known = {*range(place.position), *place.delivered_ahead}
        assert known == set(delivered)
        assert place.position not in known
    order, _, _ = passed(place, end, 4, page, ready, 10**6)
    assert sorted(delivered + order) == list(range(end))
