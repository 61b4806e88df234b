"""How a spec's word for its functions reaches the embedded default, and who else may have decided it."""

from __future__ import annotations

import contextlib
import os

import pytest

from superdl.experiments.run.opening import embedded_executor, executor_of
from superdl.experiments.spec import load_spec
from superdl.super_wire.errors import ConfigError

ON_LAMBDA = load_spec("digits", ["executor=lambda", "data.train=s3://bucket/train"])


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in ("SUPER_EXECUTOR", "SUPER_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("overrides", "variables", "executor"),
    [
        ([], {}, "local"),
        ([], {"SUPER_EXECUTOR": "lambda"}, "lambda"),
        (["executor=local"], {"SUPER_EXECUTOR": "lambda"}, "local"),
        (["executor=lambda", "data.train=s3://bucket/train"], {}, "lambda"),
        (["executor=local, lambda"], {}, "local,lambda"),
        (["executor=ray,lambda"], {}, "ray,lambda"),
        (["loader.kind=torch"], {"SUPER_EXECUTOR": "lambda"}, None),
        (["loader.coordinator=h:1"], {"SUPER_EXECUTOR": "lambda"}, "as the coordinator at h:1 decides"),
        ([], {"SUPER_COORDINATOR": "h:2"}, "as the coordinator at h:2 decides"),
    ],
)
def test_who_runs_functions(monkeypatch, overrides, variables, executor):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert executor_of(load_spec("digits", overrides)) == executor


def test_a_coordinator_of_the_environment_decides_alone(monkeypatch):
    monkeypatch.setenv("SUPER_COORDINATOR", "h:2")
    with pytest.raises(ConfigError, match="SUPER_COORDINATOR names a coordinator.*leave one of the two out"):
        executor_of(ON_LAMBDA)


@pytest.mark.parametrize("before", [None, "local"])
def test_the_environment_is_as_before_afterwards(monkeypatch, before):
    if before is not None:
        monkeypatch.setenv("SUPER_EXECUTOR", before)
    with contextlib.suppress(KeyError), embedded_executor(ON_LAMBDA):
        assert os.environ["SUPER_EXECUTOR"] == "lambda"
        raise KeyError
    assert os.environ.get("SUPER_EXECUTOR") == before


def test_auto_leaves_it_to_the_environment(monkeypatch):
    monkeypatch.setenv("SUPER_EXECUTOR", "lambda")
    with embedded_executor(load_spec("digits")):
        assert os.environ["SUPER_EXECUTOR"] == "lambda"
