"""Where a request says so, its outcome is appended to a stream in a real cache, also a failure."""

from __future__ import annotations

import dataclasses
import json

import pytest

from superdl.lambda_prefetch.handler import _ReplyTo, handler
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.keys import outcome_stream
from superdl.super_wire.request import Outcome, PrefetchFailure, PrefetchResult
from superdl.super_wire.stream_entries import read_outcome
from tests.fixtures.valkey_cluster import valkey_cluster
from tests.lambda_prefetch.prefetching import Context, encode, file_request, pixels

__all__ = ["valkey_cluster"]

STREAM = outcome_stream("5e" * 16)
SETTINGS = FunctionSettings()
FAILURE = PrefetchFailure("r1", "v1", "ConfigError", "why")


class LambdaContext(Context):
    memory_limit_in_mb = "1769"  # a text, as awslambdaric has it


@pytest.fixture
def root(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(pixels()))
    return tmp_path


def event_of(root, cache, keys=("a.png",), **changes):
    request = file_request(root, list(keys), cache)
    return json.loads(dataclasses.replace(request, answer_to=STREAM).to_json()) | changes


def make_stream(valkey):
    """As the coordinator does, with an entry that is no outcome."""
    with valkey.client() as client:
        client.xadd(STREAM, {"x": ""})


def outcomes(valkey):
    with valkey.client() as client:
        return [read_outcome(entry) for _, entry in client.xrange(STREAM) if b"x" not in entry]


def test_the_outcome_lies_in_the_stream_and_is_returned_too(valkey, root):
    make_stream(valkey)
    returned = handler(event_of(root, valkey.unix_url, ["a.png", "none.png"]), LambdaContext())
    (told,) = outcomes(valkey)
    assert isinstance(told, PrefetchResult)
    assert told == PrefetchResult.from_mapping(returned)
    assert told.outcomes == (Outcome.CACHED, Outcome.MISSING)
    assert told.memory_mb == 1769
    assert told.duration_us > 0


def test_a_request_that_cannot_be_meant_is_answered_and_raised(valkey, root):
    make_stream(valkey)
    event = event_of(root, valkey.unix_url, recipe="{}")
    with pytest.raises(ConfigError) as caught:
        handler(event, LambdaContext())
    (told,) = outcomes(valkey)
    assert isinstance(told, PrefetchFailure)
    assert (told.request_id, told.memory_mb) == (event["request_id"], 1769)
    assert told.error == type(caught.value).__name__
    assert told.message == str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"answer_to": "super:lock"}, {"answer_to": 5}, {"answer_to": None}, {"cache": 5}, {"request_id": None}],
)
def test_an_answer_goes_to_no_other_place(valkey, root, changes):
    with pytest.raises(ConfigError, match="answer_to"):
        handler(event_of(root, valkey.unix_url) | changes, Context())
    with valkey.client() as client:
        assert client.keys() == []


def test_an_outcome_that_cannot_be_appended_is_an_error(valkey, root):
    with valkey.client() as client:
        client.set(STREAM, "no stream")
    with pytest.raises(CacheError, match=r"refuses the outcome of request test: WRONGTYPE"):
        handler(event_of(root, valkey.unix_url), Context())


def test_a_stream_that_is_gone_is_not_made_anew(valkey):
    with pytest.raises(CacheError, match="no stream for the outcome of request r1: it was emptied"):
        _ReplyTo("r1", valkey.unix_url, STREAM.encode()).send(FAILURE, SETTINGS)
    with valkey.client() as client:
        assert client.keys() == []  # nobody would ever delete it


def test_a_failure_that_cannot_be_told_does_not_hide_the_error(tmp_path, root):
    with pytest.raises(ConfigError, match="recipe") as caught:
        handler(event_of(root, f"unix://{tmp_path}/none.sock", recipe="{}"), Context())
    assert "could not be told: the cache at unix://" in caught.value.__notes__[0]
