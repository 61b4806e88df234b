"""Commands and replies of the Redis protocol, whole and in parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.cache.resp import (
    MAX_DEPTH,
    MAX_LINE_BYTES,
    ErrorReply,
    MalformedReplyError,
    Reply,
    encode_command,
    parse_reply,
)

WHOLE = {
    b"+OK\r\n": b"OK",
    b"-ERR no such thing\r\n": ErrorReply("ERR no such thing"),
    b":-12\r\n": -12,
    b":+7\r\n": 7,
    b"$5\r\na\r\nbc\r\n": b"a\r\nbc",
    b"$0\r\n\r\n": b"",
    b"$-1\r\n": None,
    b"*-1\r\n": None,
    b"*0\r\n": [],
    b"*2\r\n:1\r\n*1\r\n$-1\r\n": [1, [None]],
}

MALFORMED = [
    b"?\r\n", b"hello", b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x03\x00\x02", b":1_0\r\n", b":\r\n",
    b":--1\r\n", b":" + b"1" * 5000 + b"\r\n", b"$-2\r\n", b"$5 \r\n", b"$?\r\n", b"$536870913\r\n",
    b"$1\r\nabc", b"*1048577\r\n", b"*?\r\n", b"*1\r\n" * (MAX_DEPTH + 1) + b":1\r\n",
    b"+" + b"x" * MAX_LINE_BYTES + b"x", b"_\r\n", b"%0\r\n", b">1\r\n+a\r\n",
]  # fmt: skip


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("data", WHOLE, ids=repr)
def test_each_type_is_read_whole_and_no_part_of_it_is_taken_for_the_whole(data: bytes, kind: type) -> None:
    assert parse_reply(kind(b"+x\r\n" + data + b":9\r\n"), 4) == (WHOLE[data], 4 + len(data))
    for end in range(len(data)):
        assert parse_reply(kind(data[:end])) is None


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:30]))
def test_what_is_no_reply_is_refused(data: bytes, kind: type) -> None:
    with pytest.raises(MalformedReplyError, match="reply"):
        parse_reply(kind(data))


def test_the_deepest_allowed_is_read() -> None:
    value, end = parse_reply(b"*1\r\n" * MAX_DEPTH + b":1\r\n")
    for _ in range(MAX_DEPTH):
        (value,) = value
    assert (value, end) == (1, 4 * MAX_DEPTH + 4)


def encoded(value: Reply) -> bytes:
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case ErrorReply(text):
            return b"-%b\r\n" % text.encode()
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))


errors = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20).map(ErrorReply)
leaves = st.none() | st.integers(-(2**63), 2**63) | st.binary(max_size=20) | errors
replies = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@given(value=replies, cut=st.integers(min_value=0))
def test_any_reply_survives_and_is_awaited_where_it_is_cut(value: Reply, cut: int) -> None:
    data = encoded(value)
    assert parse_reply(data + b"+next\r\n") == (value, len(data))
    assert parse_reply(data[: cut % len(data)]) is None


def test_a_command_is_an_array_of_bulk_strings() -> None:
    assert encode_command(b"GET", b"a\r\nb") == b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"
    assert parse_reply(encode_command(b"GET", b"")) == ([b"GET", b""], 19)
