"""Requests and results survive JSON; anything else that arrives is refused by a ConfigError."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import (
    MAX_SAMPLES_PER_REQUEST,
    MEMBER_ENCODINGS,
    Limits,
    Outcome,
    PrefetchRequest,
    PrefetchResult,
    RequestKind,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COUNT = st.integers(0, 2**63 - 1)
HEX_ID = st.binary(min_size=16, max_size=16).map(bytes.hex)


def columns(*kinds):
    """As many tuples, of one length from 1."""
    return st.lists(st.tuples(*kinds), min_size=1, max_size=4).map(
        lambda rows: tuple(zip(*rows, strict=True))
    )


@st.composite
def requests(draw):
    keys, versions, ids = draw(columns(TEXT, TEXT, HEX_ID))
    name, bucket, recipe, cache, golden, version = (draw(TEXT) for _ in range(6))
    expires_at = draw(st.floats(0, allow_nan=False, allow_infinity=False))
    limits = draw(st.builds(Limits, COUNT, COUNT))
    kind, *placed = draw(places(len(keys)))
    rest = (kind, limits, golden, version, *placed)
    prefix = draw(TEXT)
    named = draw(st.sampled_from([("", ""), ("pets", ""), ("pets", prefix)]))
    samples = (tuple(f"{named[1]}{key}" for key in keys), versions, ids)
    whole = PrefetchRequest(name, bucket, recipe, draw(COUNT), cache, expires_at, *samples, *rest, *named)
    return replace(whole, **draw(members(len(keys)))) if draw(st.booleans()) else whole


@st.composite
def members(draw, count):
    """The columns of a request whose samples are members of objects."""
    lengths = st.integers(1, 2**63 - 1)
    name = TEXT.filter(bool)
    kinds = {"members": name, "member_offsets": COUNT, "member_lengths": lengths}
    columns = {name: draw(st.tuples(*[kind] * count)) for name, kind in kinds.items()}
    encodings = st.just(()) | st.tuples(*[st.sampled_from(MEMBER_ENCODINGS)] * count)
    return columns | {"encodings": draw(encodings)}


@st.composite
def places(draw, count):
    """A kind, and its store's address, packs, and each sample's pack, offset and length."""
    kind = draw(st.sampled_from([RequestKind.DECODE, RequestKind.DECODE_TO_POINTERS, RequestKind.RESTORE]))
    store = "" if kind is RequestKind.DECODE else draw(TEXT.filter(bool))
    if kind is not RequestKind.RESTORE:
        return kind, store, (), (), (), ()
    packs = draw(st.lists(TEXT, unique=True, min_size=1, max_size=count))
    more = st.integers(0, len(packs) - 1)
    spare = [draw(more) for _ in range(count - len(packs))]
    pack_of = draw(st.permutations([*range(len(packs)), *spare]))
    counts = st.tuples(*[COUNT] * count)
    return kind, store, tuple(packs), tuple(pack_of), draw(counts), draw(counts)


@st.composite
def results(draw):
    outcome = st.sampled_from([str(outcome) for outcome in Outcome])
    outcomes, *numbers = draw(columns(outcome, *[COUNT] * 5))
    messages = draw(st.dictionaries(TEXT, TEXT, max_size=3))
    counts = [draw(COUNT) for _ in range(4)]
    pack = draw(TEXT)
    offsets, lengths = (draw(st.tuples(*[COUNT] * len(outcomes))) if pack else () for _ in range(2))
    stored = (pack, offsets, lengths, draw(TEXT), draw(COUNT), draw(COUNT))
    names = (draw(TEXT), draw(TEXT), draw(st.booleans()))
    return PrefetchResult(*names, outcomes, *numbers, messages, *counts, *stored, draw(COUNT))


REQUEST = PrefetchRequest(
    "r", "s3://b", "{}", 0, "redis://h:1", 1.5, ("k", "l"), ("v", "w"), ("0" * 32, "f" * 32)
)
RESULT = PrefetchResult(
    "r", "1", True, ("cached", "missing"), (1, 2), (3, 4), (5, 6), (7, 8), (9, 0), {"1": "gone"}, 10
)


RESTORE = replace(
    REQUEST,
    kind=RequestKind.RESTORE,
    store="/store",
    packs=("a.pack", "b.pack"),
    pack_of=(1, 0),
    offsets=(64, 128),
    lengths=(9, 9),
)
OF_MEMBERS = replace(
    REQUEST,
    members=("a", "b"),
    member_offsets=(0, 64),
    member_lengths=(9, 9),
    encodings=("", "deflate"),
)


@given(requests())
def test_requests_round_trip(request_):
    assert PrefetchRequest.from_mapping(json.loads(request_.to_json())) == request_
    columns = ("keys", "versions", "members", "member_offsets", "member_lengths", "encodings")
    again = {name: getattr(request_, name) * 3 for name in columns}
    parts = replace(request_, fields=("mask", "depth"), **again)
    assert PrefetchRequest.from_mapping(json.loads(parts.to_json())) == parts
    with pytest.raises(ConfigError):
        PrefetchRequest.from_mapping(replace(parts, fields=("mask",)).to_mapping())
    for fields_ in (("mask", "mask"), ("image", "mask"), ("mask", "a.b")):
        with pytest.raises(ConfigError):
            PrefetchRequest.from_mapping(replace(parts, fields=fields_).to_mapping())


@given(results())
def test_results_round_trip(result):
    assert PrefetchResult.from_mapping(json.loads(json.dumps(result.to_mapping()))) == result
    assert PrefetchResult.from_mapping(result.to_mapping()) == result  # as an executor without JSON gives it


def test_golden_json():
    """Functions and coordinators of one request version understand each other."""
    assert REQUEST.to_json() == (
        '{"super_request":5,"request_id":"r","bucket":"s3://b","recipe":"{}","epoch":0,"cache":"redis://h:1",'
        '"expires_at":1.5,"keys":["k","l"],"versions":["v","w"],'
        '"ids":["00000000000000000000000000000000","ffffffffffffffffffffffffffffffff"],"kind":"decode",'
        '"limits":{"object_bytes":268435456,"image_pixels":178956970},'
        '"golden":"","function_version":"","store":"","packs":[],"pack_of":[],"offsets":[],"lengths":[],'
        '"alias":"","prefix":""}'
    )
    assert json.dumps(RESULT.to_mapping()) == (
        '{"super_result": 5, "request_id": "r", "function_version": "1", "cold_start": true, '
        '"outcomes": ["cached", "missing"], "fetch_us": [1, 2], "decode_us": [3, 4], "push_us": [5, 6], '
        '"source_bytes": [7, 8], "record_bytes": [9, 0], "messages": {"1": "gone"}, "duration_us": 10, '
        '"billed_us": 0, "memory_mb": 0, "clock_s": 0.0, "pack": "", "offsets": [], "lengths": [], '
        '"store_trouble": "", "store_requests": 0, "store_bytes": 0}'
    )


BAD = {
    "request": (
        REQUEST,
        {
            "epoch": [-1, 1.0, True, "1", None, 2**63],
            "expires_at": ["1", None, True, float("nan"), float("inf"), 10**400, -1, -0.5],
            "bucket": [None, 1, b"s3://b", ["s3://b"]],
            "keys": [None, "kl", ["k"], ["k", 1], {"k": 1, "l": 2}, [["k"], ["l"]]],
            "versions": [None, ["v"], ["v", None]],
            "ids": [
                ["0" * 32],
                *(["0" * 32, other] for other in ("f" * 31, "g" * 32, "F" * 32, "f" * 32 + "\n")),
            ],
            "limits": [
                *(None, {}, [], {"object_bytes": 1}, {"object_bytes": 1, "image_pixels": "1"}),
                {"object_bytes": -1, "image_pixels": 1},
            ],
            "super_request": [None, 1, "2"],
            "alias": [None, 5, "my/pets", "größe", "p" * 65],
            "prefix": [None, "k"],
            "kind": [None, 1, "", "steal", ["decode"], "restore", "save", "decode_to_store"],
        },
    ),
    "restore": (
        RESTORE,
        {
            "store": ["", None, 1, "\ud800"],
            "packs": [
                [],
                ["a.pack"],
                ["a.pack", "a.pack"],
                ["a.pack", None],
                None,
                ["a.pack", "b.pack", "c.pack"],
            ],
            "pack_of": [[], [1], [0, 2], [1, 1], [-1, 0], [True, False], [1, 0, 0], None],
            "offsets": [[], [64], [64, -1], [64, 2**63], [64, 1.0], ["64", "128"]],
            "lengths": [[], [9], [9, 9, 9], [9, -9], {"0": 9, "1": 9}],
            "kind": ["decode", "decode_to_store", "save", None],
        },
    ),
    "members": (
        OF_MEMBERS,
        {
            "members": [[], ["a"], ["a", None], None, ["a", "\ud800"]],
            "member_offsets": [[], [64], [64, -1], [64, 2**63], ["64", "128"], None],
            "member_lengths": [[9], [9, 0], [9, -9], [9, True]],
            "encodings": [["deflate"], ["", "parquet:"], ["", None], None],
        },
    ),
    "result": (
        RESULT,
        {
            "outcomes": [
                None,
                ["cached"],
                ["cached", "eaten"],
                ["cached", ["missing"]],
                ["cached", "CACHED"],
            ],
            "fetch_us": [[1], [1, -1], [1, 1.5], [1, "2"], [1, True], [1, 2**63]],
            "record_bytes": [[], [1, 2, 3], None],
            "messages": [None, [], {"1": 2}, {"1": None}],
            "cold_start": [0, 1, "true", None],
            "duration_us": [-1, 1.0, None],
            "pack": ["a.pack", None, 1],
            "offsets": [[64, 0], None, "", [-1, 0]],
            "lengths": [[64, 0], None, "", [-1, 0]],
            "store_bytes": [-1, 1.0, None],
            "source_requests": [-1, True, None],
            "super_result": [None, 0, 1],
        },
    ),
}


@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        (form, name, value)
        for form, (_, bad) in BAD.items()
        for name, values in bad.items()
        for value in values
    ],
)
def test_bad_fields_are_refused(form, name, value):
    good, _ = BAD[form]
    mapping = json.loads(json.dumps(good.to_mapping()))
    assert type(good).from_mapping(mapping) == good
    with pytest.raises(ConfigError):
        type(good).from_mapping(mapping | {name: value})


@pytest.mark.parametrize("count", [0, MAX_SAMPLES_PER_REQUEST + 1])
def test_the_number_of_samples_is_bounded(count):
    columns = {"keys": ("k",) * count, "versions": ("v",) * count, "ids": ("0" * 32,) * count}
    with pytest.raises(ConfigError):
        PrefetchRequest.from_mapping(replace(REQUEST, **columns).to_mapping())


@pytest.mark.parametrize("field", [field.name for field in fields(PrefetchRequest)])
def test_requests_lack_nothing(field):
    mapping = json.loads(OF_MEMBERS.to_json())
    mapping.pop(field, None)
    if field in {"encodings", "fields"}:  # none at all stand for bytes as they are
        assert PrefetchRequest.from_mapping(mapping) == replace(OF_MEMBERS, **{field: ()})
        return
    with pytest.raises(ConfigError):
        PrefetchRequest.from_mapping(mapping)


@pytest.mark.parametrize(("text", "read"), [("no \ud800 name", "no ? name"), ("Größe", "Größe"), ("", "")])
def test_foreign_texts_can_be_encoded(text, read):
    result = json.loads(json.dumps(RESULT.to_mapping() | {"messages": {"1": text}, "store_trouble": text}))
    assert PrefetchResult.from_mapping(result).messages == {"1": read}
    assert PrefetchResult.from_mapping(result).store_trouble == read
