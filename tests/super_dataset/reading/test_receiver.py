"""The replies' bytes reach their places however the network cuts them, and nonsense is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.reading.batch import Batch
from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.receiver import Receiver
from superdl.super_wire.cache import ProtocolDoubtError
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import record, ref_of, tombstone


def bulk(value):
    return b"$%d\r\n%b\r\n" % (len(value), value)


class Wire:
    """A connection that gives a stream in pieces of the sizes in ``cuts``; the last one repeats."""

    def __init__(self, stream, cuts, owed=0):
        self.owed, self.late_errors = owed, []
        self._stream, self._cuts, self._size = memoryview(stream), iter(cuts), 1

    def send(self, data):
        pass

    def receive(self, buffers):
        self._size = next(self._cuts, self._size)
        left = count = min(self._size, len(self._stream), sum(map(len, buffers)))
        for view in buffers:
            taken = min(left, len(view))
            view[:taken] = self._stream[:taken]
            self._stream = self._stream[taken:]
            left -= taken
        return count

    @property
    def left(self):
        return len(self._stream)


def receive(buffer, stream, cuts, owed=0, asking=()):
    """Receive a whole stream; the connection, which must be answered for in full."""
    wire = Wire(stream, cuts, owed)
    batch = Batch(ref_of(buffer.size, "unix:///c"), buffer, keys=[b"k"] * buffer.size, in_flight_bytes=2**40)
    receiver = Receiver(wire, batch, range(buffer.size), asking=asking)
    receiver.ask()
    while wire.left:
        receiver.receive()
    receiver.settle()
    assert receiver.finished
    return wire


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
    asking = [at for at, (_, redirected) in enumerate(asked) if redirected]
    parts = list(skip)
    for offset, (kind, redirected) in enumerate(asked):
        parts += [b"+OK\r\n" if redirected else b"", reply_of(kind, offset)]
    wire = receive(buffer, b"".join(parts), cuts, len(skip), asking)
    assert wire.late_errors == [reply[1:-2].decode() for reply in skip if reply[:1] == b"-"]
    assert wire.owed == 0
    for offset, (kind, _) in enumerate(asked):
        check(buffer, offset, kind)


def test_an_error_in_answer_to_asking_shifts_nothing():
    """The GET is answered all the same; were the error taken for its answer, others would get its record."""
    buffer = BatchBuffer(3)
    refused = b"-LOADING not yet\r\n"
    stream = refused + reply_of("equal", 0) + refused + b"-MOVED 1 h:1\r\n" + b"$-1\r\n"
    receive(buffer, stream, [7], asking={0, 1})
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
        with pytest.raises(ProtocolDoubtError, match=reason):
            receive(BatchBuffer(4), stream, cuts)
