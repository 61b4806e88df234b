"""Unusual replies are skipped, kept or detected; ``tests/hostile/fuzz_reading.py`` covers others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.reading.batch import Batch
from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.receiver import Receiver
from tests.super_dataset.stored_batches import record, ref_of


class Wire:
    """A connection that delivers a stream in pieces of the sizes in ``cuts``, repeating the last size.

    Its first ``owed`` replies belong to earlier requests.
    """

    def __init__(self, stream, cuts, owed=0):
        self.owed, self.late_errors = owed, []
        self._stream, self._cuts, self._size = memoryview(stream), iter(cuts), 1

    def send(self, data):
        pass

    def receive(self, buffers, *, once=False):
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


def receive(buffer, stream, cuts, asking=(), owed=0):
    """Receive a stream that answers every request, and return the connection."""
    wire = Wire(stream, cuts, owed)
    batch = Batch(ref_of(buffer.size, "unix:///c"), buffer, in_flight_bytes=2**40)
    receiver = Receiver(wire, batch, range(buffer.size), asking=asking)
    receiver.send_requests()
    while wire.left:
        receiver.receive()
    receiver.settle()
    assert receiver.finished
    return wire


GOOD = record(np.full((4, 3), 7, dtype=np.uint8))
REPLY = b"$%d\r\n%b\r\n" % (len(GOOD), GOOD)


LATE = st.sampled_from([b"+OK\r\n", b"-MOVED 1 h:1\r\n", b"$-1\r\n", b"$2\r\nab\r\n"])


@given(
    late=st.lists(LATE, min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 300), min_size=1, max_size=30),
    redirected=st.booleans(),
)
def test_late_replies_are_skipped_and_their_errors_kept(late, cuts, redirected):
    buffer, asking = BatchBuffer(3), {0} if redirected else ()
    own = [*[b"+OK\r\n"] * redirected, REPLY, REPLY, b"$-1\r\n"]
    wire = receive(buffer, b"".join([*late, *own]), cuts, asking, owed=len(late))
    assert wire.owed == 0
    assert wire.late_errors == [reply[1:-2].decode() for reply in late if reply[:1] == b"-"]
    for offset in (0, 1):
        assert bytes(buffer.raw_headers[offset]) + bytes(buffer.payload(offset)) == GOOD
    assert buffer.replies[2] == ReplyKind.NIL
    assert not buffer.errors


def test_an_error_reply_to_asking_shifts_no_reply():
    """If the error counted as the GET's reply, the record would go to another sample."""
    buffer = BatchBuffer(3)
    refused = b"-LOADING not yet\r\n"
    stream = refused + REPLY + refused + b"-MOVED 1 h:1\r\n" + b"$-1\r\n"
    receive(buffer, stream, [7], asking={0, 1})
    assert bytes(buffer.raw_headers[0]) + bytes(buffer.payload(0)) == GOOD
    assert buffer.errors == {1: "LOADING not yet"}
    assert buffer.replies[2] == ReplyKind.NIL
