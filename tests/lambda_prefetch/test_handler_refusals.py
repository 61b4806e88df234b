"""Events that the function refuses as a whole: a typed error of few words, and nothing in the cache."""

from __future__ import annotations

import json

import pytest

from superdl.lambda_prefetch.handler import handler
from superdl.super_wire.errors import CacheUnreachableError, ConfigError, RecipeError
from superdl.super_wire.recipe import Recipe
from tests.lambda_prefetch.prefetching import Context, file_request

GOOD = [f"{n}.png" for n in range(5)]


def event_of(root, valkey, **changes):
    return {**json.loads(file_request(root, GOOD, valkey.unix_url).to_json()), **changes}


def test_a_request_whose_ids_the_function_does_not_derive_is_refused_whole(root, valkey):
    event = event_of(root, valkey)
    event["ids"][3] = "0" * 32
    with pytest.raises(ConfigError, match=r"3\.png 0{32}, this function calls it"):
        handler(event, Context())
    with valkey.client() as client:
        assert client.dbsize() == 0


def test_the_epoch_counts_for_the_ids_of_random_recipes_only(root, valkey):
    assert handler(event_of(root, valkey, epoch=4), Context())["outcomes"] == ("cached",) * 5
    recipe = Recipe([{"op": "horizontal_flip"}])
    event = json.loads(file_request(root, GOOD, valkey.unix_url, recipe, epoch=4).to_json())
    with pytest.raises(ConfigError, match="this function calls it"):
        handler({**event, "epoch": 5}, Context())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"super_request": 1}, ConfigError),
        ({"recipe": "{}"}, RecipeError),
        ({"bucket": "ftp://x"}, ConfigError),
        ({"keys": []}, ConfigError),
        ({"packs": ["0.pack"], "store": "/store"}, ConfigError),
        ({"alias": "pets"}, ConfigError),
        ({"alias": "pets", "prefix": "1"}, ConfigError),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(root, valkey, changes, error):
    with pytest.raises(error):
        handler(event_of(root, valkey, **changes), Context())


def test_a_warm_event_of_another_version_or_without_a_cache_to_reach(tmp_path):
    with pytest.raises(ConfigError, match="deploy one version"):
        handler({"super_warm": 2, "cache": ""}, Context())
    with pytest.raises(CacheUnreachableError):
        handler({"super_warm": 1, "cache": f"unix://{tmp_path}/none.sock"}, Context())


def test_a_function_that_is_not_the_one_that_is_wanted_writes_nothing(root, valkey):
    warmed = handler({"super_warm": 1, "cache": ""}, Context())
    golden, version = warmed["golden"], warmed["function_version"]
    for wanted, words in (
        ({"golden": "0" * 32}, f"decodes the reference images to {golden}, the request wants 0{{32}}"),
        ({"function_version": "9.9.9"}, f"is SUPER {version}, the coordinator is SUPER 9.9.9: deploy the"),
    ):
        with pytest.raises(ConfigError, match=words):
            handler(event_of(root, valkey, **wanted), Context())
    with valkey.client() as client:
        assert client.dbsize() == 0
    event = event_of(root, valkey, golden=golden, function_version=version)
    assert handler(event, Context())["outcomes"] == ("cached",) * 5


@pytest.mark.parametrize(("told", "memory_mb"), [("1769", 1769), (512, 512), (None, 0), ("plenty", 0)])
def test_a_result_tells_the_memory_that_is_billed(root, valkey, told, memory_mb):
    context = Context()
    context.memory_limit_in_mb = told
    assert handler(event_of(root, valkey), context)["memory_mb"] == memory_mb
    assert handler(event_of(root, valkey), Context())["memory_mb"] == 0
