"""Which batch goes next, for all ways in which batches may become ready."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.sampler.window import Planned, Window
from superdl.super_wire.batch_ref import BatchRef


def planned(position, ready=False):
    ref = BatchRef(b"d", "job", 0, 0, position, b"b", b"i" * 16, b"", "int64", b"", (), "unix:///r")
    return Planned(ref, ready)


def filled(count, *, reorder=1, ready=()):
    window = Window(0, count, reorder=reorder)
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
    window = Window(3, 5)
    with pytest.raises(ValueError, match="4 came where 3"):
        window.add(planned(4))
    window.add(planned(3))
    window.add(planned(4))
    with pytest.raises(ValueError, match="5 came where 5 of 5"):
        window.add(planned(5))


def test_what_an_earlier_iteration_gave_ahead_does_not_go_again():
    window = Window(3, 8, reorder=2, given_ahead=(4, 7))
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
    window = Window(0, count, reorder=reorder)
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
