"""Whatever comes over a network is read or refused by the reader's own error, and by no other."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from super_dataset.resp import ProtocolDoubtError, parse_line
from super_wire.cluster import Node, parse_redirection, parse_slots
from super_wire.coordinator_credentials import parse_tokens
from super_wire.errors import ConfigError, RecordError
from super_wire.label_dtype import label_dtype_of
from super_wire.outcomes import OUTCOME_FIELD, pack_outcome, read_outcome
from super_wire.recipe import Recipe
from super_wire.record import (
    HEADER_BYTES,
    MAGIC,
    Tombstone,
    pack,
    pack_tombstone,
    parse_header,
    read_tombstone,
    unpack,
)
from super_wire.report import ReadReport
from super_wire.request import PrefetchRequest, PrefetchResult
from super_wire.resp import MalformedReplyError, parse_reply
from tests.super_wire.mutating import mutated

_HEADER, _PAYLOAD = pack(np.arange(24, dtype=np.uint8).reshape(2, 4, 3), bytes(16))
RECORD = _HEADER + bytes(_PAYLOAD)
TOMBSTONE = pack_tombstone(Tombstone("k", "r", "m", permanent=True), bytes(16))
REPORT = ReadReport(0, 1, 2, 4, 3, 5, 6, 7, 8, 1, 0, missed=(1, 3), corrupt=(3,))
REQUEST = PrefetchRequest(
    "r", "s3://b", Recipe.image().json, 0, "redis://h", 1e10, ("k",), ("v",), ("0" * 32,)
)
RESULT = PrefetchResult("r", "1", True, ("cached",), (1,), (2,), (3,), (4,), (5,), {"0": "x"})
SLOTS = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:6379\r\n$1\r\nx\r\n"
REPLIES = (
    b"%1\r\n+a\r\n*3\r\n$3\r\nabc\r\n,1.5\r\n(123\r\n"
    b"|1\r\n+a\r\n+b\r\n#t\r\n=7\r\ntxt:abc\r\n>1\r\n+p\r\n!3\r\nERR\r\n_\r\n"
)


def _as_json(parse):
    def read(data):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # not ours to refuse
            return None
        return parse(value)

    return read


def _fields_of(data):
    """A stream's entry, from fields that are each as long as the byte before them says."""
    names, entry = iter((b"r", b"m", b"c", b"z")), {}
    while data and (name := next(names, None)) is not None:
        entry[name], data = data[1 : 1 + data[0]], data[1 + data[0] :]
    return entry


def _report(data):
    return ReadReport.from_fields(_fields_of(data))


def _slots(data):
    reply = parse_reply(data)
    return None if reply is None else parse_slots(reply[0], Node("h", 1))


def _text(parse):
    return lambda data: parse(data.decode(errors="replace"))


PARSERS = {
    "record": (RECORD, unpack, RecordError),
    "record, trusted": (RECORD, lambda data: unpack(data, verify=False), RecordError),
    "header": (RECORD[:HEADER_BYTES], parse_header, RecordError),
    "tombstone": (
        pack_tombstone(Tombstone("k", "r", "m", permanent=True), bytes(16)),
        read_tombstone,
        RecordError,
    ),
    "replies": (REPLIES, parse_reply, MalformedReplyError),
    "a GET's reply": (b"$123456", parse_line, ProtocolDoubtError),
    "slots": (SLOTS, _slots, ValueError),
    "redirection": (
        b"MOVED 3999 127.0.0.1:6381",
        _text(lambda text: parse_redirection(text, Node("h", 1))),
        ValueError,
    ),
    "report": (b"".join(bytes([len(v)]) + v for v in REPORT.to_fields().values()), _report, ValueError),
    "request": (REQUEST.to_json().encode(), _as_json(PrefetchRequest.from_mapping), ConfigError),
    "result": (json.dumps(RESULT.to_mapping()).encode(), _as_json(PrefetchResult.from_mapping), ConfigError),
    "outcome": (pack_outcome(RESULT), lambda data: read_outcome({OUTCOME_FIELD: data}), ValueError),
    "recipe": (Recipe.image(resize=8, crop=8).json.encode(), Recipe.from_json, ConfigError),
    "label dtype": (b'{"age":"int64","box":"float64[4]"}', _text(label_dtype_of), ValueError),
    "tokens": (
        b"0123456789abcdef,fedcba9876543210\n",
        _text(lambda text: parse_tokens(text, "x")),
        ConfigError,
    ),
}


@pytest.mark.parametrize("name", PARSERS)
def test_the_good_one_is_read(name):
    good, parse, _ = PARSERS[name]
    assert parse(good) is not None


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_what_is_nearly_good_is_read_or_refused(name, data):
    good, parse, refusal = PARSERS[name]
    with contextlib.suppress(refusal):
        parse(data.draw(mutated(good) | st.binary(max_size=200)))


@given(
    head=st.tuples(st.just(2), st.integers(0, 2), st.integers(0, 12), st.integers(0, 7)),
    sizes=st.tuples(*[st.integers(0, 2**64 - 1) | st.integers(0, 100)] * 2),
    rest=st.tuples(*[st.integers(0, 2**32 - 1) | st.integers(0, 9)] * 8),
    payload=st.binary(max_size=100),
)
def test_no_header_makes_an_array_that_its_bytes_do_not_hold(head, sizes, rest, payload):
    record = struct.pack("<4sBBBBQQ8IQ", MAGIC, *head, *sizes, *rest, 0) + payload
    try:
        header, array = unpack(record, verify=False)
    except RecordError:
        return
    assert array.nbytes == len(payload) == header.payload_bytes
