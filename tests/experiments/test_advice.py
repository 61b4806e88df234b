"""Advice: what is foretold of a run, and which change it names."""

import json

import pytest

from superdl.experiments.simulator import advice
from superdl.experiments.simulator.advice import Measured, forecast_of
from superdl.main import main

PHOTOS = Measured(
    samples=20_000,
    batch_size=100,
    epochs=5,
    workers=4,
    step_s=0.1,
    handover_s=0.0,
    function_s=0.004,
    read_s=0.005,
    record_bytes=150_592,
    functions=3,
    cache_bytes=8 * 2**30,
    stored=False,
    random=False,
)
"""A step takes 1,000 images/s, functions make 750 of them."""


def test_functions_limit_the_first_epoch_and_the_model_those_after_it():
    forecast = forecast_of(PHOTOS)
    assert forecast.first_images_per_s == pytest.approx(750, rel=0.1)
    assert forecast.first_waiting == pytest.approx(0.25, abs=0.07)
    assert forecast.later_images_per_s == pytest.approx(1000, rel=0.02)
    assert forecast.later_waiting < 0.01
    assert forecast.wall_s == pytest.approx(20 * (1 / 0.75 + 4), rel=0.05)
    assert forecast_of(PHOTOS, hour_usd=3.6).usd == pytest.approx(forecast.wall_s / 1000)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_is_foretold_from_a_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(advice, "_READING_S", 0.3)
    monkeypatch.setattr(advice, "_STEPS_S", 0.3)
    monkeypatch.setenv("SUPER_STORE", "none")
    monkeypatch.chdir(tmp_path)
    words = ["advise", "digits", "--set=training.threads=1", "--set=epochs=2"]
    assert main([*words, "--json", "--ranks=2"]) == 0
    probed = json.loads(capsys.readouterr().out)
    measured = probed["measured"]
    assert (measured["samples"], measured["epochs"], measured["ranks"]) == (1438, 2, 2)
    assert measured["record_bytes"] == 64 * 64 * 3 + 64
    assert 0 < measured["function_s"] < 1
    assert measured["functions"] >= 1
    assert probed["best"]
    assert main([*words, "--set=loader.kind=torch"]) == 2
    assert "loader.kind is torch" in capsys.readouterr().err
    assert main([*words, "--ranks=0"]) == 2
    assert "--ranks must be at least 1, not 0" in capsys.readouterr().err
