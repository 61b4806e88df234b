"""The gather against a real cache: the same bytes whatever is in flight, and never out of step."""

from __future__ import annotations

import time

import numpy as np
import pytest

from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.gather import Share, Wanted, encode_gets, gather, gather_all
from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials, encode_command
from tests.fixtures.valkey import Valkey
from tests.super_dataset.stored_batches import images, stored


class Watched(CacheConnection):
    """Counts the requests under way."""

    sent = 0
    most_at_once = 0

    def send(self, data: bytes) -> None:
        requests = data.count(b"\r\nGET\r\n")
        self.sent += requests
        self.most_at_once = max(self.most_at_once, requests)
        super().send(data)


@pytest.fixture
def connection(valkey):
    opened = Watched(CacheAddress.parse(valkey.unix_url), Credentials())
    yield opened
    opened.close()


def read(connection, ref, *, offsets=None, in_flight_bytes=2**24, record_bytes=None, deadline_s=None):
    buffer = BatchBuffer(len(ref))
    wanted = Wanted(
        requests=encode_gets(ref.sample_ids),
        sample_ids=ref.sample_ids,
        buffer=buffer,
        in_flight_bytes=in_flight_bytes,
        record_bytes=record_bytes,
        deadline_s=time.monotonic() + 60 if deadline_s is None else deadline_s,
        clock=time.monotonic,
    )
    gather(Share(connection, wanted, list(range(len(ref))) if offsets is None else offsets), wanted)
    return buffer


@pytest.mark.parametrize("in_flight_bytes", [1, 1000, 2**24])
@pytest.mark.parametrize("record_bytes", [None, 256, 10**9])
def test_the_same_bytes_whatever_is_in_flight(valkey, connection, in_flight_bytes, record_bytes):
    arrays = images(40)
    ref = stored(valkey, arrays)
    buffer = read(connection, ref, in_flight_bytes=in_flight_bytes, record_bytes=record_bytes)
    assert np.array_equal(buffer.block.numpy().reshape(40, 8, 8, 3), np.stack(arrays))
    assert connection.sent == 40


def test_no_more_is_asked_for_than_allowed(valkey, connection):
    ref = stored(valkey, images(64))
    read(connection, ref, in_flight_bytes=10 * 256, record_bytes=256)
    assert connection.most_at_once <= 13  # 10 as predicted; 13 once the payload's own 192 bytes are known


def test_owed_replies_pass_first(valkey, connection):
    arrays = images(4)
    ref = stored(valkey, arrays)
    for words in ((b"XADD", b"super:n1:j", b"*", b"k", b"v"), (b"INCR", b"n"), (b"NONSENSE",)):
        connection.send(encode_command(*words))
        connection.owed += 1
    buffer = read(connection, ref)
    assert connection.owed == 0
    assert [text[:11] for text in connection.late_errors] == ["ERR unknown"]
    assert buffer.replies.tolist() == [ReplyKind.RECORD] * 4


@pytest.fixture
def two_nodes(valkey):
    """Connections to two servers that know nothing of each other; each has every sample."""
    other = Valkey()
    other.start()
    opened = [Watched(CacheAddress.parse(server.unix_url), Credentials()) for server in (valkey, other)]
    yield other, opened
    for connection in opened:
        connection.close()
    other.close()


def wanted_of(ref, buffer, *, in_flight_bytes=2**24, wait_s=60.0):
    return Wanted(
        requests=encode_gets(ref.sample_ids),
        sample_ids=ref.sample_ids,
        buffer=buffer,
        in_flight_bytes=in_flight_bytes,
        record_bytes=192,  # what a payload takes; headers lie elsewhere
        deadline_s=time.monotonic() + wait_s,
        clock=time.monotonic,
    )


def test_a_node_that_says_nothing_is_left_when_time_is_up(valkey, two_nodes):
    other, connections = two_nodes
    arrays = images(8)
    ref = stored(valkey, arrays)
    with other.client() as client:
        client.client_pause(30_000, all=True)
        buffer = BatchBuffer(8)
        wanted = wanted_of(ref, buffer, wait_s=0.3)
        shares = [
            Share(connections[0], wanted, [0, 1, 2, 3], part=0.5),
            Share(connections[1], wanted, [4, 5, 6, 7], part=0.5),
        ]
        ((share, error),) = gather_all(shares, wanted)
    assert share is shares[1]
    assert other.unix_url in str(error)
    assert buffer.replies.tolist() == [ReplyKind.RECORD] * 4 + [ReplyKind.NONE] * 4
