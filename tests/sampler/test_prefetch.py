"""The next batch, and an iteration's position after any part of it, for all orders."""

from hypothesis import given
from hypothesis import strategies as st

from superdl.sampler.prefetch import PlanPosition, PrefetchBuffer
from superdl.super_wire.batch_ref import BatchRef


def buffer_of(start, end, *, reorder=1, ready=(), page=10**6):
    """A buffer that has received a page."""
    made = PrefetchBuffer(start, end, reorder=reorder)
    fill(made, page, ready)
    return made


def fill(buffer, page, ready):
    while buffer.tail < buffer.end and len(buffer) < page:
        buffer.add(ref_at(buffer.tail), ready=buffer.tail in ready)


def ref_at(position):
    return BatchRef(b"d", "job", 0, 0, position, b"b", b"i" * 16, b"", "int64", b"", (), "unix:///r")


@given(
    end=st.integers(1, 60),
    reorders=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    page=st.integers(1, 12),
    ready=st.sets(st.integers(0, 59)),
    parts=st.lists(st.integers(0, 30), max_size=3),
    consumed=st.integers(0, 100),
)
def test_any_order_resumes_where_it_stopped(end, reorders, page, ready, parts, consumed):
    place, delivered = PlanPosition(2), []
    for part, reorder in zip([*parts, 10**6], [*reorders, *reorders, 1], strict=False):
        buffer, order = buffer_of(place, end, reorder=reorder, ready=ready, page=page), []
        while not buffer.exhausted and len(order) < part:
            fill(buffer, page, ready)
            order.append(buffer.take().position)
        for at, position in enumerate(order):
            overtakers = [other for other in order[:at] if other > position]
            assert len(overtakers) < reorder
        assert buffer.delivered.count == len(order)
        assert buffer.delivered.position_after().position == buffer.head
        count = min(consumed, len(order))  # the trainer may be behind what was given to the loader
        place = buffer.delivered.position_after(count)
        delivered += order[:count]
        known = {*range(place.position), *place.delivered_ahead}
        assert known == set(delivered)
        assert place.position not in known
    rest = buffer_of(place, end, reorder=4, ready=ready)
    while not rest.exhausted:
        delivered.append(rest.take().position)
    assert sorted(delivered) == list(range(end))
