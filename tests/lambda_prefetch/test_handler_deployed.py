"""The handler as a deployed function refuses to make other pixels, and tells the memory that is billed."""

from __future__ import annotations

import json

import pytest

from superdl.lambda_prefetch.handler import handler
from superdl.super_wire.errors import ConfigError
from tests.lambda_prefetch.prefetching import Context, encode, file_request, pixels

KEYS = [f"{number}.png" for number in range(5)]


def event_of(directory, valkey, **changes):
    for key in KEYS:
        (directory / key).write_bytes(encode(pixels()))
    return {**json.loads(file_request(directory, KEYS, valkey.unix_url).to_json()), **changes}


def test_a_function_that_is_not_the_one_that_is_wanted_writes_nothing(tmp_path, valkey):
    warmed = handler({"super_warm": 1, "cache": ""}, Context())
    golden, version = warmed["golden"], warmed["function_version"]
    for wanted, words in (
        ({"golden": "0" * 32}, f"decodes the reference images to {golden}, the request wants 0{{32}}"),
        ({"function_version": "9.9.9"}, f"is SUPER {version}, the coordinator is SUPER 9.9.9: deploy the"),
    ):
        with pytest.raises(ConfigError, match=words):
            handler(event_of(tmp_path, valkey, **wanted), Context())
    with valkey.client() as client:
        assert client.dbsize() == 0
    event = event_of(tmp_path, valkey, golden=golden, function_version=version)
    assert handler(event, Context())["outcomes"] == ("cached",) * 5


@pytest.mark.parametrize(("told", "memory_mb"), [("1769", 1769), (512, 512), (None, 0), ("plenty", 0)])
def test_a_result_tells_the_memory_that_is_billed(tmp_path, valkey, told, memory_mb):
    context = Context()
    context.memory_limit_in_mb = told
    assert handler(event_of(tmp_path, valkey), context)["memory_mb"] == memory_mb
    assert handler(event_of(tmp_path, valkey), Context())["memory_mb"] == 0
