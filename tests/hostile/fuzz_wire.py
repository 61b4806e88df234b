"""Fuzzers of all parsers of bytes from a network: each input parses, or raises SUPER's own error.

Also building blocks of other fuzzers' inputs: unusual texts, numbers and values, and mutated bytes.
"""

import contextlib
import json
import math
import struct

import numpy as np
import xxhash

from superdl.coordinator.server.history import read_history
from superdl.coordinator.store.index import IndexedPack, pack_segment, unpack_segment
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.cache.nodes import Node, parse_redirection, parse_slots
from superdl.super_wire.cache.resp import MalformedReplyError, parse_reply
from superdl.super_wire.credentials import parse_tokens
from superdl.super_wire.errors import ConfigError, RecordError, StoreFormatError
from superdl.super_wire.ids import digest128
from superdl.super_wire.labels import label_dtype_of
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import (
    HEADER_BYTES,
    RecordKind,
    pack,
    pack_header,
    parse_header,
)
from superdl.super_wire.record_kinds import Pointer, pack_arrays, pack_pointer, read_arrays, read_pointer
from superdl.super_wire.request import PrefetchRequest, PrefetchResult, RequestKind
from superdl.super_wire.store.layout import new_mark, read_mark
from superdl.super_wire.store.pack import new_pack_name
from tests.super_wire.store.packing import index_of, pack_bytes, records

INTERESTING = (
    b"", b"\0", b"\xff", b"-1", b"\r\n", b"\x80" * 10, b"9" * 5000, b"[" * 2000, b"\xff\xff\xff\xff",
    b"\x1b[2J", b"NaN", b"1e999", b"\xed\xa0\x80", b'"', b"{}", b"null", b"*1\r\n" * 20, b"%bell",
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "a\udfffb", "a.jpg", "cat/1.jpg", "../x.png", "/", "a//b", "/etc/passwd",
    "猫", "é" * 3000, "x" * 100_000, "%s%n", "%bell", "{x}", "*", "\x1b[2J\x1b]0;x\x07", "\u202e", "१२",
    "file:///", "file://relative", "gs://bucket", "s3://", "http://127.0.0.1:1/", "unix://",
    "redis://user:secret@127.0.0.1:1", "redis://127.0.0.1:99999", "0" * 32, "9" * 5000, "[" * 5000,
    "NaN", "-inf", "1e400", "0x1f", "+7", "label.x", "key", "version", '"', "\r", "\n",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400,
    0.5, -0.0, 1e308, math.inf, -math.inf, math.nan,
)  # fmt: skip

_ID = bytes(16)
_HISTORY = pb.JobStatsList(history=[pb.JobStats(job="j", source="file:///s", opened_s=1.0, closed_s=2.0)])
_HEADER, _ = pack(np.arange(24, dtype=np.uint8).reshape(2, 4, 3), _ID)
_POINTER_PAYLOAD = pack_pointer(Pointer("pack", 0, 64), _ID)[HEADER_BYTES:]
_ARRAYS = pack_arrays({"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.zeros(0)}, _ID)
_REPORT = ReadReport(0, 1, 2, 4, 3, 5, 6, 7, 8, 1, 0, missed=(1, 3), corrupt=(3,))
_REQUEST = PrefetchRequest(
    request_id="r",
    bucket="s3://b",
    recipe=Recipe.image().json,
    epoch=0,
    cache="redis://h",
    expires_in_s=1e10,
    keys=("k", "l"),
    versions=("v", "w"),
    ids=bytes(16),
    kind=RequestKind.RESTORE,
    store="/s",
    packs=("p",),
    pack_of=(0,),
    offsets=(64,),
    lengths=(128,),
    members=("m", ""),  # this field is a whole object
    member_offsets=(512, 0),
    member_lengths=(9, 0),
    encodings=("deflate", ""),
    fields=("mask",),
)
_RESULT = PrefetchResult(
    request_id="r",
    function_version="1",
    cold_start=True,
    outcomes=("cached",),
    record_bytes=(5,),
    messages={"0": "x"},
    fetch_us=1,
    source_bytes=4,
    pack="p",
    offsets=(64,),
    lengths=(70,),
)
_PACK = pack_bytes(records([1, 70, 3]))
_INDEX_AT = int.from_bytes(_PACK[-48:-40], "little")
_SEGMENT = pack_segment([IndexedPack(new_pack_name("0" * 16), len(_PACK), index_of(_PACK))])
_SLOTS = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:6379\r\n$1\r\nx\r\n"
_REPLIES = b"*4\r\n+a\r\n*3\r\n$3\r\nabc\r\n:-1\r\n$-1\r\n-ERR no\r\n*0\r\n+OK\r\n"


def _rehashed(kind, read):
    """Parse a payload below a header with its hash, which would otherwise be refused first."""
    return lambda payload: read(pack_header(kind, bytes(payload), _ID) + bytes(payload))


def _resealed_pack(index):
    """Parse a pack whose hash matches its index."""
    meta = len(index) - min(len(index) // 32, 3) * 32
    footer = b"SPAK" + struct.pack("<IQQQ", 1, (len(index) - meta) // 32, _INDEX_AT, meta)
    sealed = footer + struct.pack("<Q24x", xxhash.xxh3_64_intdigest(index + footer))
    return index_of(_PACK[:_INDEX_AT] + index + sealed)


def _resealed_segment(table):
    """Parse a segment with its hash."""
    return unpack_segment(bytes(table) + digest128(bytes(table)))


def _as_json(parse):
    def read(data):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):  # raised by json, not by us
            return None
        return parse(value)

    return read


def _fields_of(data):
    """Split bytes into the fields of a stream entry; a length byte precedes each field."""
    names, entry = iter((b"r", b"m", b"c", b"z")), {}
    while data and (name := next(names, None)) is not None:
        entry[name], data = data[1 : 1 + data[0]], data[1 + data[0] :]
    return entry


def _slots(data):
    reply = parse_reply(data)
    return None if reply is None else parse_slots(reply[0], Node("h", 1))


def _text(parse):
    return lambda data: parse(data.decode(errors="replace"))


PARSERS = {
    "header": (_HEADER, parse_header, RecordError),
    "pointer's payload": (_POINTER_PAYLOAD, _rehashed(RecordKind.POINTER, read_pointer), RecordError),
    "named arrays' payload": (_ARRAYS[HEADER_BYTES:], _rehashed(RecordKind.ARRAYS, read_arrays), RecordError),
    "pack's index": (_PACK[_INDEX_AT:-64], _resealed_pack, StoreFormatError),
    "segment's table": (_SEGMENT[:-16], _resealed_segment, StoreFormatError),
    "store.json": (new_mark("0" * 32), lambda data: read_mark(data, "x"), StoreFormatError),
    "replies": (_REPLIES, parse_reply, MalformedReplyError),
    "slots": (_SLOTS, _slots, ValueError),
    "redirection": (
        b"MOVED 3999 127.0.0.1:6381",
        _text(lambda text: parse_redirection(text, Node("h", 1))),
        ValueError,
    ),
    "report": (
        b"".join(bytes([len(value)]) + value for value in _REPORT.to_fields().values()),
        lambda data: ReadReport.from_fields(_fields_of(data)),
        ValueError,
    ),
    "request": (_REQUEST.to_json().encode(), _as_json(PrefetchRequest.from_mapping), ConfigError),
    "result": (json.dumps(_RESULT.to_mapping()).encode(), _as_json(PrefetchResult.from_mapping), ConfigError),
    "history": (_HISTORY.SerializeToString(), read_history, ValueError),
    "recipe": (Recipe.image(resize=8, crop=8).json.encode(), Recipe.from_json, ConfigError),
    "label dtype": (b'{"age":"int64","box":"float64[*,4]"}', _text(label_dtype_of), ValueError),
    "tokens": (
        b"0123456789abcdef,fedcba9876543210\n",
        _text(lambda text: parse_tokens(text, "x")),
        ConfigError,
    ),
}
"""Valid input, its parser, and the error that refuses it. ``tests/super_wire/test_sealed_forms.py`` has whole
records, packs and segments, whose hash any change breaks.
"""


def any_value(chance, depth=0):
    """Return a JSON value, including numbers that only Python's parser accepts."""
    kind = chance.randrange(8 if depth < 3 else 5)  # no containers at depth 3
    if kind == 0:
        return chance.choice(TEXTS)
    if kind == 1:
        return chance.choice(NUMBERS)
    if kind == 2:
        return chance.choice((None, True, False))
    if kind == 3:
        return "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randrange(6)))
    if kind == 4:
        return chance.randrange(-(2**70), 2**70) >> chance.randrange(70)
    inner = [any_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind % 2 else dict(zip(chance.sample(TEXTS, len(inner)), inner, strict=True))


def mutate(chance, good):
    """Apply one to four changes to ``good``: bytes replaced, inserted, removed, repeated, or cut off."""
    data = good
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(data))
        end = min(len(data), at + chance.randint(0, 8))
        new = chance.randbytes(chance.randint(0, 8)) if chance.random() < 0.5 else chance.choice(INTERESTING)
        data = chance.choice(
            (
                data[:at] + new + data[end:],
                data[:at] + new + data[at:],
                data[:at] + data[end:],
                data[:end] + data[at:],
                data[:at],
            )
        )
    return data


def _fuzzer(name):
    good, parse, refusal = PARSERS[name]

    def fuzz(chance):
        data = mutate(chance, good) if chance.random() < 0.9 else chance.randbytes(chance.randint(0, 200))
        with contextlib.suppress(refusal):
            parse(data)

    return fuzz


FUZZERS = {name: _fuzzer(name) for name in PARSERS}
