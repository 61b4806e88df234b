"""The replies' bytes reach their places however the network cuts them, and nonsense is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.scatter import ReplyScatter
from superdl.super_wire.cache import ProtocolDoubtError
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import record, tombstone


def bulk(value):
    return b"$%d\r\n%b\r\n" % (len(value), value)


def feed(scatter, stream, cuts):
    """Give the stream as ``recvmsg_into`` would, in pieces of the sizes in ``cuts`` (the last repeats)."""
    sizes = iter(cuts)
    size, at = 1, 0
    while at < len(stream):
        size = next(sizes, size)
        left = size
        for view in scatter.buffers():
            taken = min(left, len(view), len(stream) - at)
            view[:taken] = stream[at : at + taken]
            at += taken
            left -= taken
            if taken < len(view):
                break
        scatter.received(size - left)


array_of = {
    "equal": lambda n: np.full((4, 3), n % 256, dtype=np.uint8),
    "other": lambda n: np.full((n % 5, 7), n % 100, dtype=np.int16),
    "large": lambda n: np.full((700,), n % 256, dtype=np.uint8),
}
kinds = st.one_of(
    st.just("equal"),
    st.sampled_from(["equal", "other", "large", "nil", "error", "tombstone", "short", "empty"]),
)


def reply_of(kind, n):
    if kind == "nil":
        return b"$-1\r\n"
    if kind == "error":
        return b"-LOADING reply %d\r\n" % n
    if kind == "tombstone":
        return bulk(tombstone(f"key {n}"))
    if kind == "short":
        return bulk(b"\r\n$5" * (n % 3) + b"x")
    if kind == "empty":
        return bulk(b"")
    return bulk(record(array_of[kind](n)))


def check(buffer, offset, kind):
    if kind in ("nil", "error"):
        assert buffer.replies[offset] == (ReplyKind.NIL if kind == "nil" else ReplyKind.ERROR)
        assert buffer.errors.get(offset) == (None if kind == "nil" else f"LOADING reply {offset}")
        return
    assert buffer.replies[offset] == ReplyKind.RECORD
    whole = reply_of(kind, offset).split(b"\r\n", 1)[1][:-2]
    assert buffer.record_bytes[offset] == len(whole)
    if len(whole) < HEADER_BYTES:
        assert bytes(buffer.payload(offset)) == whole
    else:
        assert bytes(buffer.raw_headers[offset]) + bytes(buffer.payload(offset)) == whole


@given(
    asked=st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=20),
    skip=st.lists(
        st.sampled_from([b"+OK\r\n", b"-MOVED 1 h:1\r\n", b"$-1\r\n", b"$2\r\nab\r\n"]), max_size=2
    ),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
)
def test_what_stands_between_replies_is_let_pass(asked, skip, cuts):
    """Answers that nobody waits for, and the answers to ASKING."""
    buffer = BatchBuffer(len(asked))
    offsets = list(range(len(asked)))
    asking = [at for at, (_, redirected) in enumerate(asked) if redirected]
    scatter = ReplyScatter(buffer, offsets, skip=len(skip), asking=asking)
    scatter.requested = len(asked)
    parts = list(skip)
    for offset, (kind, redirected) in enumerate(asked):
        parts += [b"+OK\r\n" if redirected else b"", reply_of(kind, offset)]
    feed(scatter, b"".join(parts), cuts)
    assert scatter.finished
    assert scatter.skipped_errors == [reply[1:-2].decode() for reply in skip if reply[:1] == b"-"]
    for offset, (kind, _) in enumerate(asked):
        check(buffer, offset, kind)


def test_an_error_in_answer_to_asking_shifts_nothing():
    """The GET is answered all the same; were the error taken for its answer, others would get its record."""
    buffer = BatchBuffer(3)
    scatter = ReplyScatter(buffer, [0, 1, 2], asking={0, 1})
    scatter.requested = 3
    first = b"-LOADING not yet\r\n" + reply_of("equal", 0)
    feed(scatter, first, [1000])
    assert not scatter.finished
    feed(scatter, b"-LOADING not yet\r\n-MOVED 1 h:1\r\n" + b"$-1\r\n", [7])
    assert scatter.finished
    check(buffer, 0, "equal")
    assert buffer.errors == {1: "LOADING not yet"}
    assert buffer.replies[2] == ReplyKind.NIL


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "no answer"),
        (b"+OK\r\n", "answered by 'OK'"),
        (b"$99999999999\r\n", "no answer"),
        (b"x" * 70_000, "longer"),
        (b"$3\r\nabcde", "instead of a line's end"),
        (reply_of("equal", 0)[:-2] + b"XX", "instead of a line's end"),
        (reply_of("equal", 0)[:-2] + b"\rX", "instead of a line's end"),
        (b"$-1\r\n" * 4 + b"$-1\r\n", "nobody asked"),
        (reply_of("equal", 0) * 4 + b"$", "nobody asked"),
    ],
)
def test_nonsense_is_noticed(stream, reason):
    for cuts in ([1] if len(stream) < 1000 else [999], [7, 500], [100_000]):
        buffer = BatchBuffer(4)
        scatter = ReplyScatter(buffer, list(range(4)))
        scatter.requested = 4
        with pytest.raises(ProtocolDoubtError, match=reason):
            feed(scatter, stream, cuts)
