"""The gather against a real cache: the same bytes whatever is in flight, and never out of step."""

from __future__ import annotations

import time

import pytest

from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.gather import Share, Wanted, encode_gets, gather
from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials, encode_command
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
