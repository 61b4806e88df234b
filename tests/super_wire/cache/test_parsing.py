"""Parsing of replies, slot maps and redirections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.cache.nodes import (
    SLOTS,
    Node,
    Redirection,
    key_slot,
    parse_redirection,
    parse_slots,
)
from superdl.super_wire.cache.resp import (
    MAX_DEPTH,
    MAX_LINE_BYTES,
    ErrorReply,
    MalformedReplyError,
    encode_command,
    parse_reply,
)
from superdl.super_wire.keys import cache_key

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
def test_every_type_of_reply_is_parsed_once_complete(data, kind):
    assert parse_reply(kind(b"+x\r\n" + data + b":9\r\n"), 4) == (WHOLE[data], 4 + len(data))
    for end in range(len(data)):
        assert parse_reply(kind(data[:end])) is None


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:30]))
def test_malformed_replies_are_refused(data, kind):
    with pytest.raises(MalformedReplyError, match="reply"):
        parse_reply(kind(data))


def encoded(value):
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
def test_any_reply_is_parsed_once_complete(value, cut):
    data = encoded(value)
    assert parse_reply(data + b"+next\r\n") == (value, len(data))
    assert parse_reply(data[: cut % len(data)]) is None


def test_a_command_is_an_array_of_bulk_strings():
    assert encode_command(b"GET", b"a\r\nb") == b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n"
    assert parse_reply(encode_command(b"GET", b"")) == ([b"GET", b""], 19)


ASKED = Node("asked.example", 7000)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"123456789", 0x31C3),  # the specification's check value
        (b"foo", 12182),
        (b"hello", 866),
        (b"somekey", 11058),
        (b"foo{hash_tag}", 2515),
        (b"", 0),
    ],
)
def test_slots_match_the_specification(key, slot):
    assert key_slot(key) == slot


def test_only_the_first_non_empty_hash_tag_counts():
    assert key_slot(b"{user1000}.following") == key_slot(b"user1000") == key_slot(b"a{user1000}b{c}")
    assert key_slot(b"foo{{bar}}zap") == key_slot(b"{bar")
    assert key_slot(b"foo{}{bar}") != key_slot(b"bar")
    assert key_slot(b"}foo{bar") not in (key_slot(b"foo"), key_slot(b"bar"))


@given(st.binary(min_size=16, max_size=16))
def test_cache_keys_have_no_hash_tag(sample_id):
    key = cache_key(sample_id)
    assert 0 <= key_slot(key) < SLOTS
    assert key_slot(key) == key_slot(b"{" + key + b"}")


def owners(slots):
    return [slots.node_of(slot) for slot in range(SLOTS)]


def test_a_slot_map_lists_masters_without_replicas():
    reply = [
        [0, 99, [b"10.0.0.1", 7000, b"id", []], [b"10.0.0.2", 7001, b"id", []]],
        [200, 16383, [b"::1", 7002, b"id"]],
        [150, 150, [b"10.0.0.1", 7000]],
    ]
    slots = parse_slots(reply, ASKED)
    first, second = Node("10.0.0.1", 7000), Node("::1", 7002)
    assert slots.nodes == (first, second)
    expected = [first] * 100 + [None] * 50 + [first] + [None] * 49 + [second] * (SLOTS - 200)
    assert owners(slots) == expected


@pytest.mark.parametrize("host", [None, b""])
def test_a_node_without_a_host_has_the_senders_host(host):
    assert parse_slots([[0, 9, [host, 7009, b"id"]]], ASKED).nodes == (Node("asked.example", 7009),)


def test_nodes_without_an_address_own_no_slots():
    slots = parse_slots([[0, 9, [b"?", 7009, b"id", []]], [10, 19, [b"10.0.0.1", 0, b"id"]]], ASKED)
    assert slots.nodes == ()
    assert set(owners(slots)) == {None}


@pytest.mark.parametrize(
    "reply",
    [
        None, b"OK", [1], [[0, 1]], [[0, SLOTS, [b"h", 1]]], [[2, 1, [b"h", 1]]], [[-1, 1, [b"h", 1]]],
        [[0, 1, [b"h", 65536]]], [[0, 1, [b"h", b"1"]]], [[0, 1, [5, 1]]], [[0, 1, [b"h"]]], [[0, 1, b"h"]],
        [[b"0", 1, [b"h", 1]]], [[0, 1, [b"a b", 1]]], [[0, 1, [b"\x1b[2J", 1]]], [[0, 1, [b"a" * 64, 1]]],
        [[0, 1, [b"a..b", 1]]], [[slot % SLOTS, slot % SLOTS, [b"h%d" % slot, 1]] for slot in range(40_000)],
    ],
    ids=lambda reply: repr(reply)[:40],
)  # fmt: skip
def test_invalid_slot_maps_are_refused(reply):
    with pytest.raises(ValueError, match="slot map"):
        parse_slots(reply, ASKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirection("MOVED", Node("127.0.0.1", 6381))),
        ("ASK 3999 127.0.0.1:6381", Redirection("ASK", Node("127.0.0.1", 6381))),
        ("MOVED 3999 ::1:6381", Redirection("MOVED", Node("::1", 6381))),
        ("MOVED 3999 [fe80::1]:6381", Redirection("MOVED", Node("fe80::1", 6381))),
        ("MOVED 3999 :6381", Redirection("MOVED", Node("asked.example", 6381))),
        ("MOVED 3999 cache-1.example:6381", Redirection("MOVED", Node("cache-1.example", 6381))),
        *((text, None) for text in (
            "MOVED 3999 ?:6381", "MOVED 16384 127.0.0.1:6381", "MOVED x 127.0.0.1:6381", "MOVED 3999 h:",
            "MOVED 3999 127.0.0.1", "MOVED 3999 127.0.0.1:65536", f"MOVED 3999 {'a' * 300}:1", "MOVED 3999",
            "MOVED 3999 a\0b:1", "MOVED 3999 \ud800:1", "MOVED", "CLUSTERDOWN Hash slot not served", "",
        )),
    ],
)  # fmt: skip
def test_redirections_are_parsed_and_other_errors_are_not(text, expected):
    assert parse_redirection(text, ASKED) == expected
