"""The read path against a model: thousands of random replies and no wrong byte; and nonsense is noticed."""

import random

import numpy as np
import pytest

from superdl.super_dataset.reading.batch import Batch
from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.receiver import Receiver
from superdl.super_wire.cache import ProtocolDoubtError
from tests.hostile.fuzz_reading import FUZZERS, replies_given
from tests.super_dataset.stored_batches import record, ref_of


class Wire:
    """A connection that gives a stream in pieces of the sizes in ``cuts``; the last one repeats."""

    def __init__(self, stream, cuts):
        self.owed, self.late_errors = 0, []
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


def receive(buffer, stream, cuts, asking=()):
    """Receive a whole stream, which must answer all requests."""
    wire = Wire(stream, cuts)
    batch = Batch(ref_of(buffer.size, "unix:///c"), buffer, keys=[b"k"] * buffer.size, in_flight_bytes=2**40)
    receiver = Receiver(wire, batch, range(buffer.size), asking=asking)
    receiver.ask()
    while wire.left:
        receiver.receive()
    receiver.settle()
    assert receiver.finished


GOOD = record(np.full((4, 3), 7, dtype=np.uint8))
REPLY = b"$%d\r\n%b\r\n" % (len(GOOD), GOOD)


def test_an_error_in_answer_to_asking_shifts_nothing():
    """The GET is answered all the same; were the error taken for its answer, others would get its record."""
    buffer = BatchBuffer(3)
    refused = b"-LOADING not yet\r\n"
    stream = refused + REPLY + refused + b"-MOVED 1 h:1\r\n" + b"$-1\r\n"
    receive(buffer, stream, [7], asking={0, 1})
    assert bytes(buffer.raw_headers[0]) + bytes(buffer.payload(0)) == GOOD
    assert buffer.errors == {1: "LOADING not yet"}
    assert buffer.replies[2] == ReplyKind.NIL


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not answer"),
        (b"+OK\r\n", "reply to a GET: 'OK'"),
        (b"$99999999999\r\n", "does not answer"),
        (b"x" * 70_000, "longer"),
        (b"$3\r\nabcde", "instead of a line end"),
        (REPLY[:-2] + b"XX", "instead of a line end"),
        (REPLY[:-2] + b"\rX", "instead of a line end"),
        (b"$-1\r\n" * 4 + b"$-1\r\n", "not requested"),
        (REPLY * 4 + b"$", "not requested"),
    ],
)
def test_nonsense_is_noticed(stream, reason):
    for cuts in ([1] if len(stream) < 1000 else [999], [7, 500], [100_000]):
        with pytest.raises(ProtocolDoubtError, match=reason):
            receive(BatchBuffer(4), stream, cuts)


@pytest.mark.parametrize("name", FUZZERS)
def test_no_reply_makes_a_wrong_byte(name):
    first, seed = next(replies_given), 0
    while next(replies_given) < first + 8_000:
        try:
            FUZZERS[name](random.Random(seed))
        except BaseException as error:
            error.add_note(f"the seed is {seed}")
            raise
        seed += 1
