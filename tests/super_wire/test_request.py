"""Requests and results survive JSON, and invalid ones raise ConfigError."""

import json
from dataclasses import fields, replace

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import (
    MAX_SAMPLES_PER_REQUEST,
    PrefetchRequest,
    PrefetchResult,
    RequestKind,
)

REQUEST = PrefetchRequest(
    "r", "s3://b", "{}", 0, "redis://h:1", 1.5, ("k", "l"), ("v", "w"), bytes(16) + b"\xff" * 16
)
RESULT = PrefetchResult(
    "r", "1", True, ("cached", "missing"), (9, 0), {"1": "gone"}, 1, 2, 3, 4, 5, duration_us=10
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


OF_FIELDS = replace(
    OF_MEMBERS,
    fields=("mask",),
    keys=("k", "l", "m", "m"),
    versions=("v", "w", "x", "x"),
    members=("a", "b", "", ""),  # whole objects
    member_offsets=(0, 64, 0, 0),
    member_lengths=(9, 9, 0, 0),
    encodings=("", "parquet:image", "", ""),
    alias="pets",
)
NAMED = replace(REQUEST, alias="pets", prefix="pets/", keys=("pets/\u732b", "pets/l"))
PACKED = replace(RESULT, pack="a.pack", offsets=(64, 2**40), lengths=(9, 0))


@pytest.mark.parametrize("form", [REQUEST, RESTORE, OF_MEMBERS, OF_FIELDS, NAMED, RESULT, PACKED])
def test_every_form_survives_json(form):
    assert type(form).from_mapping(json.loads(json.dumps(form.to_mapping()))) == form
    assert type(form).from_mapping(form.to_mapping()) == form  # without JSON


def test_golden_json():
    """The format of this request version."""
    assert REQUEST.to_json() == (
        '{"super_request":6,"request_id":"r","bucket":"s3://b","recipe":"{}","epoch":0,"cache":"redis://h:1",'
        '"expires_in_s":1.5,"keys":["k","l"],"versions":["v","w"],'
        '"ids":"00000000000000000000000000000000ffffffffffffffffffffffffffffffff","kind":"decode",'
        '"limits":{"object_bytes":268435456,"image_pixels":178956970},'
        '"golden":"","function_version":"","store":"","packs":[],"pack_of":[],"offsets":[],"lengths":[],'
        '"alias":"","prefix":""}'
    )
    assert json.dumps(RESULT.to_mapping()) == (
        '{"super_result": 6, "request_id": "r", "function_version": "1", "cold_start": true, '
        '"outcomes": ["cached", "missing"], "record_bytes": [9, 0], "messages": {"1": "gone"}, '
        '"fetch_us": 1, "decode_us": 2, "push_us": 3, "source_requests": 4, "source_bytes": 5, '
        '"duration_us": 10, "billed_us": 0, "memory_mb": 0, "pack": "", "offsets": [], "lengths": [], '
        '"store_trouble": "", "store_requests": 0, "store_bytes": 0}'
    )


OF_TYPE = {
    "str": [None, 1, b"s3://b", ["s3://b"]],
    "bytes": [None, 1, ["0" * 64], "f" * 63, "g" * 64, "F" * 64, "f" * 64 + "\n", " " + "f" * 64],
    "int": [-1, 1.0, True, "1", None, 2**63],
    "float": ["1", None, True, float("nan"), float("inf"), 10**400, -1, -0.5],
    "bool": [0, 1, "true", None],
    "tuple[str, ...]": [None, "kl", 1, {"k": 1, "l": 2}, ["k", 1], [["k"], ["l"]]],
    "tuple[int, ...]": [None, "", {"0": 9, "1": 9}, [1, -1], [1, 1.5], [1, "2"], [1, True], [1, 2**63]],
    "dict[str, str]": [None, [], {"1": 2}, {"1": None}],
    "RequestKind": [None, 1, "", "steal", ["decode"]],
    "Limits": [None, {}, [], {"object_bytes": 1}, {"object_bytes": -1, "image_pixels": 1}],
}
VERSIONS = {f"super_{form}": [None, 1, "4"] for form in ("request", "result")}
BAD = [
    (REQUEST, VERSIONS | {"keys": [["k"]], "versions": [["v"]], "prefix": ["k"]}),
    (REQUEST, {"alias": ["my/pets", "größe", "p" * 65], "kind": ["restore", "save", "decode_to_store"]}),
    (REQUEST, {"ids": ["0" * 32, "0" * 62, "0" * 66]}),
    (RESTORE, {"store": ["", "\ud800"], "kind": ["decode", "decode_to_store", "save"]}),
    (RESTORE, {"packs": [[], ["a.pack"], ["a.pack", "a.pack"], ["a.pack", "b.pack", "c.pack"]]}),
    (RESTORE, {"pack_of": [[], [1], [0, 2], [1, 1], [1, 0, 0]], "offsets": [[], [64]], "lengths": [[], [9]]}),
    (OF_MEMBERS, {"members": [[], ["a"], ["a", "\ud800"]], "member_offsets": [[], [64]]}),
    (OF_MEMBERS, {"member_lengths": [[9], [9, 0]], "encodings": [["deflate"], ["", "parquet:"]]}),
    (OF_FIELDS, {"fields": [["mask", "depth"], ["image"], ["a.b"], ["label"], []]}),
    (RESULT, VERSIONS | {"outcomes": [["cached"], ["cached", "eaten"], ["cached", "CACHED"]]}),
    (RESULT, {"fetch_us": [2**40 + 1], "record_bytes": [[], [1, 2, 3]], "pack": ["a.pack"]}),
    (
        RESULT,
        {"offsets": [[64, 0]], "lengths": [[64, 0]], "duration_us": [10**30]},
    ),
    (RESULT, {"messages": [{"first": "?"}, {"-1": "?"}, {"1" * 10: "?"}, dict.fromkeys("012", "?")]}),
    *(
        (form, {field.name: OF_TYPE[field.type]})
        for form in (RESTORE, OF_FIELDS, PACKED)
        for field in fields(form)
    ),
]


@pytest.mark.parametrize(
    ("good", "name", "value"),
    [
        (good, name, value)
        for good, bad in BAD
        for name, values in bad.items()
        for value in values
        if name in good.to_mapping()
    ],
    ids=lambda item: repr(item)[:20],
)
def test_bad_fields_are_refused(good, name, value):
    with pytest.raises(ConfigError):
        type(good).from_mapping(json.loads(json.dumps(good.to_mapping())) | {name: value})


@pytest.mark.parametrize("count", [0, MAX_SAMPLES_PER_REQUEST + 1])
def test_the_number_of_samples_is_bounded(count):
    columns = {"keys": ("k",) * count, "versions": ("v",) * count, "ids": bytes(16) * count}
    with pytest.raises(ConfigError):
        PrefetchRequest.from_mapping(replace(REQUEST, **columns).to_mapping())


@pytest.mark.parametrize("field", [field.name for field in fields(PrefetchRequest)])
def test_a_missing_field_is_refused_unless_optional(field):
    mapping = json.loads(OF_MEMBERS.to_json())
    mapping.pop(field, None)
    if field in {"encodings", "fields"}:  # optional
        assert PrefetchRequest.from_mapping(mapping) == replace(OF_MEMBERS, **{field: ()})
        return
    with pytest.raises(ConfigError):
        PrefetchRequest.from_mapping(mapping)


@pytest.mark.parametrize(("text", "read"), [("no \ud800 name", "no ? name"), ("Größe", "Größe"), ("", "")])
def test_lone_surrogates_in_results_are_replaced(text, read):
    result = json.loads(json.dumps(RESULT.to_mapping() | {"messages": {"1": text}, "store_trouble": text}))
    assert PrefetchResult.from_mapping(result).messages == {"1": read}
    assert PrefetchResult.from_mapping(result).store_trouble == read
