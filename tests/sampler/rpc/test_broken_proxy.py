"""Errors that a proxy returns, and streams that it breaks, are retried or raised."""

import contextlib
import socket
import struct
import threading

import pytest

from superdl.sampler.rpc.client import Client, Patience
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import (
    CoordinatorTrustError,
    CoordinatorUnreachableError,
    ProtocolMismatchError,
)
from tests.fixtures.cut_network import CutNetwork

PATIENCE = Patience(attempts=12, total_s=30.0, deadline_s=10.0, backoff_s=0.05)
DATA, HEADERS, RESET, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def headers(stream, fields, *, last=False):
    """Fields as HPACK's literals, in no table."""
    literals = [
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    ]
    return frame(HEADERS, END_HEADERS | (END_STREAM if last else 0), stream, b"".join(literals))


def http(status):
    page = {":status": str(status), "content-type": "text/html"}
    return lambda stream: headers(stream, page) + frame(DATA, END_STREAM, stream, b"<html>no</html>")


def grpc_message(data, trailer):
    def answer(stream):
        begin = headers(stream, {":status": "200", "content-type": "application/grpc"})
        if trailer is None:
            return begin + frame(DATA, END_STREAM, stream, data)
        return begin + frame(DATA, 0, stream, data) + headers(stream, trailer, last=True)

    return answer


OK = {"grpc-status": "0"}
PASSING = {
    **{f"HTTP {status}": http(status) for status in (400, 408, 429, 500, 502, 503, 504, 520)},
    "a page of HTML": http(200),
    "no trailers": grpc_message(b"", None),
    "half a message": grpc_message(b"\0\0\0\0\x10abc", None),
    "no message": grpc_message(b"", OK),
    "a message that is none": grpc_message(b"\0\0\0\0\x04\xff\xff\xff\xff", OK),
    "a compressed message": grpc_message(b"\1\0\0\0\x04\xff\xff\xff\xff", OK),
    "a flag that nobody knows": grpc_message(b"\7\0\0\0\x04\xff\xff\xff\xff", OK),
    "a status that is no number": grpc_message(b"", {"grpc-status": "x"}),
    **{
        f"reset {code}": lambda stream, code=code: frame(RESET, 0, stream, struct.pack(">I", code))
        for code in (0, 1, 2, 3, 7, 8, 11)
    },
    **{
        f"goaway {code}": lambda _, code=code: frame(GOAWAY, 0, 0, struct.pack(">II", 0, code))
        for code in (0, 1, 2, 11)
    },
    "headers that are none": lambda stream: frame(HEADERS, END_HEADERS, stream, b"\xff" * 6),
    "a frame that is too large": lambda _: b"\xff\xff\xff\0\0\0\0\0\1",
    "HTTP/1.1": lambda _: b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "nothing": lambda _: b"",
}


class Proxy(CutNetwork):
    """Sends ``answer`` to the first call of the first ``times`` connections, and relays later ones."""

    def __init__(self, target, answer, times):
        self._answer, self._left = answer, times
        super().__init__(target)

    def _welcome(self, front):
        self._left -= 1
        if self._left < 0:
            super()._welcome(front)
        else:
            threading.Thread(target=self._spoil, args=(front,), daemon=True).start()

    def _spoil(self, front):
        with contextlib.suppress(OSError), front, front.makefile("rb") as read:
            read.read(24)  # the client's preface
            front.sendall(frame(SETTINGS, 0, 0))
            while len(head := read.read(9)) == 9:
                read.read(int.from_bytes(head[:3], "big"))
                if head[3] == SETTINGS and not head[4]:
                    front.sendall(frame(SETTINGS, 1, 0))
                if head[3] == DATA and head[4] & END_STREAM:
                    front.sendall(self._answer(int.from_bytes(head[5:], "big")))
                    break
            front.shutdown(socket.SHUT_WR)
            read.read()  # until the client has seen it


@pytest.fixture
def through(coordinator):
    made = []

    def make(answer, times):
        made.append(Proxy(coordinator.address, answer, times))
        return Client(made[-1].address)

    yield make
    for proxy in made:
        proxy.close()


def call(client, patience=PATIENCE):
    return client.call("GetJobStats", pb.GetJobStatsRequest(), patience)


@pytest.mark.parametrize("name", PASSING)
def test_transient_proxy_errors_are_retried(through, name):
    assert call(through(PASSING[name], 2)).cache.budget_bytes == 77


@pytest.mark.parametrize("name", ["HTTP 500", "HTTP 502", "no message", "reset 2", "nothing"])
def test_lasting_proxy_errors_are_limited_and_named(through, name):
    quick = Patience(attempts=3, total_s=20.0, deadline_s=5.0, backoff_s=0.01)
    client = through(PASSING[name], 1000)
    with pytest.raises(CoordinatorUnreachableError, match=f"at {client.address} in 3 attempts over"):
        call(client, quick)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, CoordinatorTrustError), (403, CoordinatorTrustError), (404, ProtocolMismatchError)],
)
def test_permanent_proxy_errors_are_raised_at_once(through, status, error):
    with pytest.raises(error, match=f"with status: {status}"):
        call(through(http(status), 1), PATIENCE)
