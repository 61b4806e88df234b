"""What an iteration has given out, and the place after any part of it, for all orders that a window makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from superdl.sampler.given import GivenOut, Place
from superdl.sampler.window import Planned, Window
from superdl.super_wire.batch_ref import BatchRef


def planned(position, ready):
    ref = BatchRef(b"d", "job", 0, 0, position, b"b", b"i" * 16, b"", "int64", b"", (), "unix:///r")
    return Planned(ref, ready)


def passed(start, end, reorder, page, ready, most):
    """Positions given out by an iteration from ``start`` on, at most so many, and what it remembers."""
    window = Window(start.position, end, reorder=reorder, given_ahead=start.given_ahead)
    remembered = GivenOut(start, reorder=reorder)
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
    remembered = GivenOut(Place(3, 10))
    for position in range(10, 15):
        remembered.add(position)
    assert [remembered.place(count) for count in (0, 2, 5)] == [Place(3, 10), Place(3, 12), Place(3, 15)]
    assert remembered.place() == Place(3, 15)


def test_in_order_after_one_had_gone_ahead_it_is_not_given_again():
    start = Place(2, 7, (8,))
    order, remembered, window = passed(start, 10, 1, 2, set(), 1)
    assert order == [7]
    assert remembered.place() == Place(2, 9)
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
    place, delivered = Place(2), []
    for part, reorder in zip([*parts, 10**6], [*reorders, *reorders, 1], strict=False):
        order, remembered, window = passed(place, end, reorder, page, ready, part)
        assert remembered.count == len(order)
        assert remembered.place().position == window.head
        count = min(consumed, len(order))  # the trainer may be behind what was given to the loader
        place = remembered.place(count)
        delivered += order[:count]
        known = {*range(place.position), *place.given_ahead}
        assert known == set(delivered)
        assert place.position not in known
    order, _, _ = passed(place, end, 4, page, ready, 10**6)
    assert sorted(delivered + order) == list(range(end))
