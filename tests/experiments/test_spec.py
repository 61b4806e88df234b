"""Specs: defaults, overrides, quick variants, and an error by name for all that is wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from superdl.experiments.spec import LOADER_KINDS, Spec, load_spec, parse_spec
from superdl.super_wire.errors import ConfigError


def test_the_built_in_spec_is_the_default_and_a_file_of_its_name_comes_first(tmp_path, monkeypatch):
    assert load_spec("digits") == load_spec() == Spec()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").write_text("seed: 7\nloader:\n")
    assert load_spec("digits").to_mapping() == {**Spec().to_mapping(), "seed": 7}, "a null section is empty"
    (tmp_path / "digits").write_text("")
    assert load_spec("digits") == Spec()


def test_a_spec_survives_yaml_with_its_arms_as_they_are(tmp_path):
    path = tmp_path / "again.yaml"
    arms = {"compare": {"arms": {"plain": {"loader.kind": "torch"}, "super": None}}}
    spec = parse_spec({"name": "mine", "recipe": {"steps": [{"op": "resize", "size": 8}]}, **arms})
    assert spec.compare.arms == {"plain": {"loader.kind": "torch"}, "super": {}}
    path.write_text(yaml.safe_dump(spec.to_mapping()))
    assert load_spec(path) == spec


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loader.batchsize=2"], r"unknown key loader\.batchsize \(did you mean loader\.batch_size\?\)"),
        (["lodaer.batch_size=2"], r"unknown key lodaer \(did you mean loader\?\); allowed here: name, seed"),
        (["loader.batch_size=0"], r"loader\.batch_size must be at least 1, not 0"),
        (["loader.batch_size=2.0"], r"loader\.batch_size must be a valid integer, not 2\.0"),
        (["loader.batch_size=true"], r"loader\.batch_size must be a valid integer, not True"),
        (["optimizer.lr=.nan"], r"optimizer\.lr must be a finite number, not nan"),
        (["optimizer.lr=fast"], r"optimizer\.lr must be a valid number, .*, not 'fast'"),
        (["model.name=timm:hf_hub:org/model"], r"model\.name must be one of small_cnn, .*, not 'timm:hf_hub"),
        (["optimizer.momentum=1.0"], r"optimizer\.momentum must be below 1, not 1"),
        (["optimizer.warmup_epochs=1"], r"warmup_epochs: a one_cycle schedule has a warm-up of its own"),
        (["optimizer.nesterov=true"], r"optimizer\.nesterov is for optimizer\.name sgd"),
        (["loader.kind=supr"], r"loader\.kind must be one of super, .*, not 'supr' \(did you mean super\?\)"),
        (["data.train=5"], r"data\.train must be a valid string, not 5"),
        (["data.train=' '"], r"data\.train .*, not ' '"),
        (["name=a/b"], r"name becomes part of a folder's name"),
        (["name=[a, b]"], r"name must be a valid string, not \['a', 'b'\]"),
        (["recipe.crop=65"], r"recipe\.crop \(65\) must not exceed recipe\.resize \(64\)"),
        (["recipe.steps=[5]"], r"recipe\.steps\[0\] must be a mapping of keys to values, not 5"),
        (["data.val=x"], r"data\.val is given without data\.train"),
        (["data.kind=mnist", "data.train=x"], r"data\.kind mnist has its own images"),
        (["data.samples=5"], r"data\.samples is for the sets that are drawn, not for data\.kind auto"),
        (["data.kind=url"], r"data\.kind url needs data\.train"),
        (["data.train=x", "data.val_key_list=x"], r"data\.val_key_list is given without data\.val"),
        (["data.train=x", "data.val_alias=pets"], r"data\.val_alias is given without data\.val"),
        (["data.versions=times"], r"data\.versions is given without data\.train"),
        (["data.train=x", "data.versions=dates"], r"data\.versions must be .*, not 'dates'"),
        (["data.train=x", "data.train_alias=my/pets"], r"data\.train_alias: an alias has 1 to 64"),
        (["executor=lamda"], r"executor must be of auto, local, workers, lambda, not 'lamda'"),
        (["executor=local,lambda,local"], r"executor names each of local, workers, lambda at most once"),
        (["executor=local,auto"], r"or auto alone"),
        (["executor=lambda"], r"see no files of this machine: .* data\.train=s3://bucket/prefix"),
        (
            ["executor=lambda", "data.train=s3://b/x", "loader.coordinator=h:1"],
            r"how functions run is its own setting .*: leave one of the two out",
        ),
        (["executor=local", "loader.kind=torch"], r"loader\.kind torch runs no functions"),
        (["loader=5"], r"loader must be a mapping of keys to values, not 5"),
        (["5=1"], "unknown key 5"),
        (["trials.a/b={}"], r"trials\.a/b .*, not 'a/b'"),
        (["compare.arms.a=5"], r"compare\.arms\.a must be a mapping of keys to values, not 5"),
        (["loader.batch_size"], r"'loader\.batch_size': write key\.key=value"),
        (["loader..x=5"], r"'loader\.\.x': write dotted keys"),
        (["seed.x=5"], r"'seed\.x': seed holds 0, not a mapping"),
        (["name={a: b"], "cannot be read as YAML"),
    ],
)
def test_bad_values_are_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_spec("digits", overrides)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no spec at .*study\.yaml; .* built-in spec: digits"),
        ("a: [", r"the spec .*study\.yaml"),
        ("[1, 2]", r"study\.yaml: a spec must be a mapping"),
        ("quick: {loader.batchsize: 2}", r"study\.yaml: unknown key loader\.batchsize"),
        ("quick: 5", r"study\.yaml: quick must be a mapping of dotted keys to values, not 5"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, content, message):
    path = tmp_path / "study.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_spec(path)


def test_a_quick_variant_is_applied_when_asked_for_and_before_overrides(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("epochs: 25\nquick:\n  epochs: 2\n  loader.batch_size: 8\n")
    assert load_spec(path).epochs == 25
    small = load_spec(path, ["loader.batch_size=4", "optimizer.lr=1e-3"], quick=True)
    assert (small.epochs, small.loader.batch_size, small.optimizer.lr) == (2, 4, 0.001)
    assert small.training.steps_per_epoch is None, "its own section alone"


def test_the_loaders_of_the_spec_are_those_that_exist():
    from superdl.experiments.loaders import LOADERS

    assert tuple(LOADERS) == LOADER_KINDS


def test_reading_a_spec_loads_nothing_heavy():
    code = (
        "import sys; from superdl import experiments; experiments.load_spec();"
        "print([name for name in ('torch', 'sklearn', 'grpc', 'PIL', 'rich') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
