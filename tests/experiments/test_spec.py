"""Specs: defaults, overrides, quick variants, and errors that name the key."""

import subprocess
import sys

import pytest
import yaml

from superdl.experiments.spec import LOADER_KINDS, Spec, load_spec, parse_spec
from superdl.super_wire.errors import ConfigError


def test_the_built_in_spec_has_the_defaults_and_a_file_of_its_name_takes_precedence(tmp_path, monkeypatch):
    assert load_spec("digits") == load_spec() == Spec()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").write_text("seed: 7\nloader:\n")
    assert load_spec("digits").to_mapping() == {**Spec().to_mapping(), "seed": 7}, "a null section is empty"
    (tmp_path / "digits").write_text("")
    assert load_spec("digits") == Spec()


def test_a_spec_survives_yaml(tmp_path):
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
        (["loader.batch_size=0"], r"loader\.batch_size must be greater than or equal to 1, not 0"),
        (["optimizer.warmup_epochs=1"], r"warmup_epochs: a one_cycle schedule has its own warm-up"),
        (["loader.kind=supr"], r"loader\.kind must be one of super, .*, not 'supr' \(did you mean super\?\)"),
        (["name=a/b"], r"name must not be 'a/b'"),
        (["recipe.crop=65"], r"recipe\.crop \(65\) must not exceed recipe\.resize \(64\)"),
        (["data.val=x"], r"data\.val is set without data\.train"),
        (["data.kind=mnist", "data.train=x"], r"data\.kind mnist has its own images"),
        (["data.samples=5"], r"data\.samples applies only to drawn sets, not to data\.kind auto"),
        (["trials.a/b={}"], r"trials\.a/b .*, not 'a/b'"),
        (["loader.batch_size"], r"'loader\.batch_size'\. Use key\.key=value"),
        (["name={a: b"], "cannot read the value of name as YAML"),
    ],
)
def test_invalid_values_are_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_spec("digits", overrides)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no spec at .*study\.yaml\. .* built-in spec: digits"),
        ("a: [", r"the spec .*study\.yaml"),
        ("[1, 2]", r"study\.yaml: a spec must be a mapping"),
        ("quick: {loader.batchsize: 2}", r"study\.yaml: unknown key loader\.batchsize"),
        ("quick: 5", r"study\.yaml: quick must be a mapping of dotted keys to values, not 5"),
    ],
)
def test_an_invalid_file_is_named(tmp_path, content, message):
    path = tmp_path / "study.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_spec(path)


def test_a_quick_variant_applies_before_overrides(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("epochs: 25\nquick:\n  epochs: 2\n  loader.batch_size: 8\n")
    assert load_spec(path).epochs == 25
    small = load_spec(path, ["loader.batch_size=4", "optimizer.lr=1e-3"], quick=True)
    assert (small.epochs, small.loader.batch_size, small.optimizer.lr) == (2, 4, 0.001)
    assert small.training.steps_per_epoch is None, "the section replaces the default"


def test_a_spec_knows_all_loaders():
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
