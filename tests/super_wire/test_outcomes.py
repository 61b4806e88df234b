"""Entries of the streams of outcomes: what is packed is read again, and anything else refused by name."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import (
    MAX_OUTCOME_BYTES,
    PrefetchFailure,
    PrefetchResult,
    pack_outcome,
    read_outcome,
)

RESULT = PrefetchResult(
    "r1",
    "v1",
    True,
    ("cached", "missing"),
    (1, 2),
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    {"1": "it is gone"},
    7,
    0,
    512,
)
FAILURE = PrefetchFailure("r1", "v1", "ConfigError", "the steps are unknown", 12, 1769)


@pytest.mark.parametrize("answer", [RESULT, FAILURE], ids=["result", "failure"])
def test_what_is_packed_is_read(answer):
    assert read_outcome({b"r": pack_outcome(answer)}) == answer


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "lacks the field 'r'"),
        ({b"x": b"{}"}, "lacks the field 'r'"),
        ({b"r": b""}, "an outcome is JSON"),
        ({b"r": b"\xff\xfe"}, "an outcome is JSON"),
        ({b"r": b"[" * 100_000}, "an outcome is JSON"),
        ({b"r": b"[]"}, "reads results of version 2"),
        ({b"r": b"{}"}, "reads results of version 2"),
        ({b"r": b'{"super_failure":3}'}, "reads failures of version 2"),
        ({b"r": b'{"super_failure":2}'}, "lacks 'request_id'"),
        ({b"r": b" " * (MAX_OUTCOME_BYTES + 1)}, "16,777,217 bytes is over"),
    ],
)
def test_what_is_no_outcome_is_refused(entry, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_outcome(entry)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(packed):
    with pytest.raises(ConfigError):
        read_outcome({b"r": packed})


@given(
    st.sampled_from([field.name for field in dataclasses.fields(PrefetchFailure)]),
    st.sampled_from([None, -1, 1.5, [], {}, True, "1"]),
)
def test_a_failure_with_a_wrong_field_is_refused(name, value):
    mapping = json.loads(pack_outcome(FAILURE))
    if type(value) is type(mapping[name]):
        value = None
    with pytest.raises(ConfigError, match=name):
        read_outcome({b"r": json.dumps(mapping | {name: value}).encode()})
