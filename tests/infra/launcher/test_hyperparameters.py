"""Hyper-parameters become words of the script's command line, as SageMaker's toolkit makes them."""

from __future__ import annotations

import json

import pytest

from infra.launcher.hyperparameters import words_of_hyperparameters
from superdl.super_wire.errors import ConfigError


def test_the_toolkits_words_are_taken_as_they_are(tmp_path):
    environment = {"SM_USER_ARGS": '["--epochs","3","-b",16]', "SM_HPS": '{"other":1}'}
    assert words_of_hyperparameters(environment, tmp_path) == ["--epochs", "3", "-b", "16"]


def test_a_mapping_is_sorted_by_name(tmp_path):
    environment = {"SM_HPS": json.dumps({"lr": 0.1, "epochs": 3, "b": "16", "flag": True, "none": None})}
    words = words_of_hyperparameters(environment, tmp_path)
    assert words == ["-b", "16", "--epochs", "3", "--flag", "True", "--lr", "0.1", "--none", ""]


def test_the_file_of_a_job(tmp_path):
    told = {
        "epochs": "3",
        "version": "1.10",
        "name": '"quoted by the SDK"',
        "broken": '"half',
        "flag": "true",
        "layers": '{"a": 1}',
        "sagemaker_program": "train.py",
        "_tuning_objective_metric": "loss",
    }
    (tmp_path / "hyperparameters.json").write_text(json.dumps(told))
    words = words_of_hyperparameters({}, tmp_path)
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--broken": '"half',
        "--epochs": "3",
        "--flag": "True",
        "--layers": '{"a": 1}',
        "--name": "quoted by the SDK",
        "--version": "1.10",
    }


def test_nothing_told_is_no_words(tmp_path):
    assert words_of_hyperparameters({}, tmp_path) == []


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"SM_USER_ARGS": "--epochs 3"}, "SM_USER_ARGS is no JSON"),
        ({"SM_USER_ARGS": "{}"}, "SM_USER_ARGS is of the form"),
        ({"SM_HPS": "[]"}, "SM_HPS is of the form"),
    ],
)
def test_what_is_of_another_form_is_refused(tmp_path, environment, told):
    with pytest.raises(ConfigError, match=told):
        words_of_hyperparameters(environment, tmp_path)


def test_a_file_of_another_form_is_refused_by_name(tmp_path):
    (tmp_path / "hyperparameters.json").write_text("[]")
    with pytest.raises(ConfigError, match="hyperparameters.json is of the form"):
        words_of_hyperparameters({}, tmp_path)
