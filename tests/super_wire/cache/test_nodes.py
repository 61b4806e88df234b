"""Slots of keys, slot maps and redirections, against the Redis Cluster specification's own examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.cache.nodes import (
    SLOTS,
    Node,
    Redirection,
    SlotMap,
    key_slot,
    parse_redirection,
    parse_slots,
)
from superdl.super_wire.keys import cache_key

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
def test_slots_are_those_that_servers_compute(key: bytes, slot: int) -> None:
    assert key_slot(key) == slot


def test_only_the_first_tag_that_is_not_empty_counts() -> None:
    assert key_slot(b"{user1000}.following") == key_slot(b"user1000") == key_slot(b"a{user1000}b{c}")
    assert key_slot(b"foo{{bar}}zap") == key_slot(b"{bar")
    assert key_slot(b"foo{}{bar}") != key_slot(b"bar")
    assert key_slot(b"}foo{bar") not in (key_slot(b"foo"), key_slot(b"bar"))


@given(st.binary(min_size=16, max_size=16))
def test_our_keys_have_no_tag(sample_id: bytes) -> None:
    key = cache_key(sample_id)
    assert 0 <= key_slot(key) < SLOTS
    assert key_slot(key) == key_slot(b"{" + key + b"}")


def owners(slots: SlotMap) -> list[Node | None]:
    return [slots.node_of(slot) for slot in range(SLOTS)]


def test_masters_own_ranges_and_replicas_are_passed_over() -> None:
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
def test_a_node_without_a_host_is_where_we_asked(host: bytes | None) -> None:
    assert parse_slots([[0, 9, [host, 7009, b"id"]]], ASKED).nodes == (Node("asked.example", 7009),)


def test_a_node_of_unknown_place_owns_nothing() -> None:
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
def test_what_is_no_slot_map_is_refused(reply: object) -> None:
    with pytest.raises(ValueError, match="slot map"):
        parse_slots(reply, ASKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirection("MOVED", 3999, Node("127.0.0.1", 6381))),
        ("ASK 3999 127.0.0.1:6381", Redirection("ASK", 3999, Node("127.0.0.1", 6381))),
        ("MOVED 3999 ::1:6381", Redirection("MOVED", 3999, Node("::1", 6381))),
        ("MOVED 3999 [fe80::1]:6381", Redirection("MOVED", 3999, Node("fe80::1", 6381))),
        ("MOVED 3999 :6381", Redirection("MOVED", 3999, Node("asked.example", 6381))),
        ("MOVED 3999 cache-1.example:6381", Redirection("MOVED", 3999, Node("cache-1.example", 6381))),
        *((text, None) for text in (
            "MOVED 3999 ?:6381", "MOVED 16384 127.0.0.1:6381", "MOVED x 127.0.0.1:6381", "MOVED 3999 h:",
            "MOVED 3999 127.0.0.1", "MOVED 3999 127.0.0.1:65536", f"MOVED 3999 {'a' * 300}:1", "MOVED 3999",
            "MOVED 3999 a\0b:1", "MOVED 3999 \ud800:1", "MOVED", "CLUSTERDOWN Hash slot not served", "",
        )),
    ],
)  # fmt: skip
def test_redirections_are_understood_or_left_alone(text: str, expected: Redirection | None) -> None:
    assert parse_redirection(text, ASKED) == expected


nodes = st.sampled_from([Node("10.0.0.1", 1), Node("10.0.0.2", 2), Node("10.0.0.3", 3)])


@given(cuts=st.lists(st.integers(1, SLOTS - 1), unique=True, max_size=8).map(sorted), data=st.data())
def test_every_slot_belongs_to_the_range_that_holds_it(cuts: list[int], data: st.DataObject) -> None:
    ranges = list(zip([0, *cuts], [*(cut - 1 for cut in cuts), SLOTS - 1], strict=True))
    masters = [data.draw(nodes) for _ in ranges]
    reply = [[a, b, [n.host.encode(), n.port, b"id", []]] for (a, b), n in zip(ranges, masters, strict=True)]
    found = parse_slots(reply, ASKED)
    for (first, last), master in zip(ranges, masters, strict=True):
        assert {found.node_of(slot) for slot in range(first, last + 1)} == {master}
