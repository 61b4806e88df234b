"""Specs of simulations: what is refused, and how a sweep becomes rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from superdl.experiments.simulator.spec import load_points
from superdl.super_wire.errors import ConfigError

SPECS = sorted(Path("experiments/simulator/specs").glob("*.yaml"))


def load(tmp_path, text, *overrides):
    file = tmp_path / "spec.yaml"
    file.write_text(text, encoding="utf-8")
    return load_points(file, overrides)


@pytest.mark.parametrize("name", ["digits", "imagenet", "many_jobs", "thousand_jobs"])
def test_specs_that_come_along_are_good(name):
    assert load_points(name)[0][1].name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: []", "jobs must have at least 1 entry, not []"),
        ("jobs: [{batch_size: 0}]", "jobs[0].batch_size must be at least 1, not 0"),
        ("jobs: [{batchsize: 2}]", "did you mean jobs[0].batch_size?"),
        ("jobs: [{dataset: other}]", "jobs[0].dataset names no dataset: other; there are data"),
        ("jobs: [{name: a}, {name: a}]", "jobs named a occur twice"),
        ("datasets: [{name: data, random: 1}]", "datasets[0].random must be true or false, not 1"),
        ("datasets: [{samples: 9}]\njobs: [{drop_last: true}]", "drop_last leaves no batch"),
        ("functions: {kind: ray, decode_s: 1}", "functions.kind must be one of pool, lambda"),
        ("functions: {kind: pool}", "functions take no time"),
        ("functions: {decode_s: 1, stragglers: 2}", "functions.stragglers must be at most 1, not 2"),
        ("cache: {budget_gb: 0}", "cache.budget_gb must be above 0, not 0"),
        ("minutes: -1", "minutes must be above 0, not -1"),
        ("sweep: [1]", "sweep must be a mapping"),
        ("sweep: {cache_gb: 4}", "sweep.cache_gb must be a list of numbers"),
        ("sweep: {cache: [4]}", "cache must be a mapping of keys to values"),
        ("sweep: {functions.speed: [4]}", "unknown key functions.speed"),
        ("[", "cannot be read as YAML: line 1"),
    ],
)
def test_a_bad_spec_is_refused_by_name(tmp_path, text, message):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert message in str(error.value)
    assert "spec.yaml" in str(error.value)


def test_a_spec_that_is_not_there_lists_those_that_are():
    with pytest.raises(ConfigError, match="built-in spec: digits, imagenet, many_jobs, thousand_jobs"):
        load_points("nowhere")


def test_a_sweep_is_every_combination(tmp_path):
    text = "functions: {decode_s: 0.1}\nsweep: {cache_gb: [1, 2], functions.memory_gb: [3, 4, 5]}"
    points = load(tmp_path, text, "name=swept")
    assert [tuple(swept.values()) for swept, _ in points] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert points[-1][1].cache.budget_gb == 2
    assert points[-1][1].functions.memory_gb == 5
    assert {spec.name for _, spec in points} == {"swept"}
