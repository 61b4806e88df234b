"""Which functions the embedded default runs: by variables, and refused at once where it cannot work."""

from __future__ import annotations

import pytest

from superdl.sampler.embedded.executor_choice import ExecutorChoice
from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.super_wire.errors import ConfigError

CACHE = "rediss://cache.example:6379"


def chosen(**variables):
    return ExecutorChoice.from_environment(variables)


@pytest.mark.parametrize(
    "variables", [{}, {"SUPER_EXECUTOR": ""}, {"SUPER_EXECUTOR": "local", "SUPER_CACHE": CACHE}]
)
def test_the_default_is_a_pool_and_a_cache_of_its_own(variables):
    assert chosen(**variables) == ExecutorChoice("local", "", "")


@pytest.mark.parametrize("cache", [CACHE, "redis://127.0.0.1:6379", "redis://localhost:7000/2"])
def test_functions_on_lambda_take_a_cache_that_they_reach(cache):
    choice = chosen(SUPER_EXECUTOR="lambda", SUPER_CACHE=cache)
    assert (choice.executor, choice.cache) == ("lambda", cache)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"SUPER_EXECUTOR": "lamda"},
            r"SUPER_EXECUTOR is one of local, ray, lambda, .*cheapest first; not 'lamda'",
        ),
        ({"SUPER_EXECUTOR": "local,local"}, r"one of local, ray, lambda"),
        ({"SUPER_EXECUTOR": "local,ray"}, r"functions on the nodes of a Ray cluster cannot reach"),
        ({}, r"cannot reach the embedded cache.*set SUPER_CACHE .* rediss://.* SUPER_COORDINATOR"),
        ({"SUPER_CACHE": "unix:///run/redis.sock"}, r"is a unix socket of this host"),
        ({"SUPER_CACHE": "redis://cache.example:6379"}, r"beyond loopback, where a cache needs TLS"),
        ({"SUPER_CACHE": "http://cache"}, r"a cache address is redis://"),
        (
            {"SUPER_CACHE": CACHE, "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            r"16 ranks, 8 of them on this host.*start one for all .*SUPER_COORDINATOR",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(variables, message):
    with pytest.raises(ConfigError, match=message):
        chosen(**{"SUPER_EXECUTOR": "lambda"} | variables)


def test_several_executors_are_taken_in_their_order():
    choice = chosen(SUPER_EXECUTOR="local, lambda", SUPER_CACHE=CACHE)
    assert (choice.executor, choice.cache) == ("local,lambda", CACHE)
    assert choice.variant != chosen(SUPER_EXECUTOR="lambda,local", SUPER_CACHE=CACHE).variant


def test_plain_text_beyond_this_machine_is_the_users_word_to_give():
    cache = "redis://cache.example:6379"
    assert chosen(SUPER_EXECUTOR="lambda", SUPER_CACHE=cache, SUPER_INSECURE="1").cache == cache


def test_ranks_of_one_host_are_served():
    assert (
        chosen(SUPER_EXECUTOR="lambda", SUPER_CACHE=CACHE, WORLD_SIZE="8", LOCAL_WORLD_SIZE="8").cache
        == CACHE
    )


def test_another_choice_is_another_supervisor():
    base = {"SUPER_EXECUTOR": "lambda", "SUPER_CACHE": CACHE}
    choices = [
        chosen(),
        chosen(**base),
        chosen(**base | {"SUPER_CACHE": "rediss://other:6379"}),
        chosen(**base, SUPER_LAMBDA_FUNCTION="mine:live"),
        chosen(**base, SUPER_LAMBDA_REGION="mine:live"),
        chosen(**base, SUPER_LAMBDA_INVOCATION="Event"),
    ]
    assert len({RunDirectory.of_run("run", choice.variant) for choice in choices}) == len(choices)
    assert RunDirectory.of_run("run", chosen(**base).variant) == RunDirectory.of_run(
        "run", chosen(**base).variant
    )
    assert RunDirectory.of_run("run", chosen().variant) == RunDirectory.of_run("run")
