"""Predictions of runs, and their most useful change."""

import json
from dataclasses import replace

import pytest

from superdl.experiments.simulator import advice
from superdl.experiments.simulator.advice import advice_of, forecast_of
from superdl.experiments.simulator.spec import (
    CacheSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
)
from superdl.main import main

PHOTOS = SimulationSpec(
    datasets=(DatasetSpec(samples=20_000),),
    jobs=(JobSpec(batch_size=100, epochs=5, step_s=0.1, read_gb_per_s=3.0),),
    functions=FunctionsSpec(kind="pool", concurrency=3, decode_s=0.004, overhead_s=0.001),
    cache=CacheSpec(budget_gb=8.0),
)
# The model trains 1,000 images/s, and functions decode 750.


def test_functions_limit_the_first_epoch_and_the_model_later_ones():
    forecast = forecast_of(PHOTOS)
    assert forecast.first_images_per_s == pytest.approx(750, rel=0.1)
    assert forecast.later_images_per_s == pytest.approx(1000, rel=0.02)
    assert 0.08 < forecast.waiting < 0.2
    assert forecast.wall_s == pytest.approx(20 * (1 / 0.75 + 4), rel=0.05)


def test_the_most_useful_change_is_named():
    few = replace(PHOTOS, datasets=(DatasetSpec(samples=2000),))
    small = replace(few, cache=CacheSpec(budget_gb=0.15))
    advice = advice_of(small)
    names = {name.split(",")[0] for name, _ in advice.changes}
    assert names >= {"a store (SUPER_STORE)", "a cache for all samples"}
    assert advice.best.startswith("Most useful: ")
    slow = replace(few, jobs=(replace(few.jobs[0], step_s=1.0),))
    assert advice_of(slow).best.startswith("Data hardly")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_is_predicted_from_a_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(advice, "_READING_S", 0.3)
    monkeypatch.setattr(advice, "_STEPS_S", 0.3)
    monkeypatch.setenv("SUPER_STORE", "none")
    monkeypatch.chdir(tmp_path)
    words = ["advise", "digits", "--set=training.threads=1", "--set=epochs=2"]
    assert main([*words, "--json", "--ranks=2"]) == 0
    probed = json.loads(capsys.readouterr().out)
    (data,), (job,) = probed["measured"]["datasets"], probed["measured"]["jobs"]
    assert (data["samples"], job["epochs"], job["replicas"]) == (1438, 2, 2)
    assert data["record_bytes"] == 64 * 64 * 3 + 64
    assert 0 < probed["measured"]["functions"]["decode_s"] < 1
    assert probed["measured"]["functions"]["concurrency"] >= 1
    assert probed["best"]
    assert main([*words, "--set=loader.kind=torch"]) == 2
    assert "loader.kind is torch" in capsys.readouterr().err
    assert main([*words, "--ranks=0"]) == 2
    assert "--ranks must be at least 1, not 0" in capsys.readouterr().err
