"""The handler as a deployed function refuses to make other pixels, and tells the memory that is billed."""

from __future__ import annotations

import json

import pytest

from lambda_prefetch.handler import handler
from super_wire.errors import ConfigError
from tests.lambda_prefetch.prefetching import Context, encode, file_request, pixels

KEYS = [f"{number}.png" for number in range(5)]


def event_of(directory, valkey, **changes):
    for key in KEYS:
        (directory / key).write_bytes(encode(pixels()))
    return {**json.loads(file_request(directory, KEYS, valkey.unix_url).to_json()), **changes}


def test_a_function_that_decodes_otherwise_than_is_wanted_writes_nothing(tmp_path, valkey):
    golden = handler({"super_warm": 1, "cache": ""}, Context())["golden"]
    with pytest.raises(
        ConfigError, match=f"decodes the golden images to {golden}, the request wants 0{{32}}"
    ):
        handler(event_of(tmp_path, valkey, golden="0" * 32), Context())
    with valkey.client() as client:
        assert client.dbsize() == 0
    assert handler(event_of(tmp_path, valkey, golden=golden), Context())["outcomes"] == ("cached",) * 5


@pytest.mark.parametrize(("told", "memory_mb"), [("1769", 1769), (512, 512), (None, 0), ("plenty", 0)])
def test_a_result_tells_the_memory_that_is_billed(tmp_path, valkey, told, memory_mb):
    context = Context()
    context.memory_limit_in_mb = told
    assert handler(event_of(tmp_path, valkey), context)["memory_mb"] == memory_mb
    assert handler(event_of(tmp_path, valkey), Context())["memory_mb"] == 0
