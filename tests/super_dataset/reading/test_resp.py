"""What a reader says to the cache, byte by byte, and what reply lines mean."""

from __future__ import annotations

import pytest

from superdl.super_dataset.reading.resp import ProtocolDoubtError, encode_gets, encode_report, parse_line
from superdl.super_wire import ReadReport
from superdl.super_wire.keys import cache_key
from superdl.super_wire.resp import encode_command
from tests.super_dataset.stored_batches import JOB, reports


def test_commands():
    ids = bytes(range(32))
    assert encode_gets(ids) == [encode_command(b"GET", cache_key(i)) for i in (ids[:16], ids[16:])]
    assert encode_gets(b"") == []


def test_a_report_arrives_as_it_was(valkey):
    report = ReadReport(1, 2, 3, 256, 250, 10, 20, 5, 30, 4, 0, missed=(1, 300), corrupt=(300,))
    with valkey.client() as client:
        client.connection_pool.get_connection().send_packed_command([encode_report(JOB, report)])
    assert reports(valkey) == [report]


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (b"$0", ("bulk", 0, "")),
        (b"$536870912", ("bulk", 2**29, "")),
        (b"$-1", ("nil", 0, "")),
        (b"_", ("nil", 0, "")),
        (b"+OK", ("simple", 0, "OK")),
        (b":12", ("simple", 0, "12")),
        (b"-ERR no", ("error", 0, "ERR no")),
    ],
)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_reply_lines(line, meaning, kind):
    assert parse_line(kind(line)) == meaning


@pytest.mark.parametrize(
    "line", [b"", b"$", b"$536870913", b"$ 1", b"$+1", "$٣".encode(), b"*2", b"hello", b"$" + b"9" * 5000]
)
def test_other_lines_are_doubted(line):
    with pytest.raises(ProtocolDoubtError):
        parse_line(line)
