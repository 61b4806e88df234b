"""Advice: what is foretold of a run, and which change it names."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from superdl.experiments.advising import probing
from superdl.experiments.advising.advice import Measured, advice_of, foretold
from superdl.experiments.spec import Spec
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


def advised(measured):
    return advice_of(measured, Spec())


def test_functions_limit_the_first_epoch_and_the_model_those_after_it():
    forecast = foretold(PHOTOS)
    assert forecast.first_images_per_s == pytest.approx(750, rel=0.1)
    assert forecast.first_waiting == pytest.approx(0.25, abs=0.07)
    assert forecast.later_images_per_s == pytest.approx(1000, rel=0.02)
    assert forecast.later_waiting < 0.01
    assert forecast.wall_s == pytest.approx(20 * (1 / 0.75 + 4), rel=0.05)
    assert foretold(PHOTOS, hour_usd=3.6).usd == pytest.approx(forecast.wall_s / 1000)


@pytest.mark.slow
def test_the_change_that_is_named_is_the_one_that_helps_most():
    few = replace(PHOTOS, functions=1, epochs=1)
    assert "functions for 2 requests at once" in advised(few).best
    slow = advised(replace(few, function_s=0.04))
    name, forecast = slow.changes[0]
    assert name in slow.best
    assert forecast.wall_s / slow.forecast.wall_s == pytest.approx(0.5, rel=0.1)
    small_cache = replace(PHOTOS, cache_bytes=2**30, functions=1, epochs=30)
    by_store = advised(small_cache).best
    assert "a store (SUPER_STORE)" in by_store or "a cache for all samples, SUPER_CACHE_BYTES=" in by_store
    slow_reads = replace(PHOTOS, workers=1, read_s=0.3, epochs=10)
    assert "loader.num_workers=2" in advised(slow_reads).best


def test_where_data_does_not_limit_nothing_is_promised():
    assert "only a faster step would" in advised(replace(PHOTOS, functions=16)).best


@pytest.mark.slow
def test_ranks_share_functions_and_each_takes_its_own_steps():
    four = foretold(replace(PHOTOS, ranks=4))
    assert four.first_images_per_s == pytest.approx(750, rel=0.1)
    assert four.first_waiting == pytest.approx(1 - 750 / 4000, abs=0.07)
    assert four.later_images_per_s == pytest.approx(4000, rel=0.05)
    assert "functions for 6 requests at once" in advised(replace(PHOTOS, ranks=4)).best


@pytest.mark.slow
def test_a_random_recipe_is_decoded_in_each_epoch_whatever_the_cache():
    random = replace(PHOTOS, random=True)
    forecast = foretold(random)
    assert forecast.later_images_per_s == pytest.approx(750, rel=0.1)
    assert not any("cache" in name or "store" in name for name, _ in advised(random).changes)


@pytest.mark.slow
def test_a_large_set_is_played_as_a_small_one():
    large = replace(PHOTOS, samples=2_000_000, cache_bytes=400 * 2**30)
    forecast, small = foretold(large), foretold(PHOTOS)
    assert forecast.first_images_per_s == pytest.approx(small.first_images_per_s, rel=0.05)
    assert forecast.wall_s == pytest.approx(100 * small.wall_s, rel=0.05)
    hardly_cached = foretold(replace(large, cache_bytes=2**30, functions=8))
    assert hardly_cached.first_waiting < 0.03, "a small cache has room to look ahead"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_is_foretold_from_a_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(probing, "_READING_S", 0.3)
    monkeypatch.setattr(probing, "_STEPS_S", 0.3)
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
    assert "what is foretold is SUPER, and loader.kind is torch" in capsys.readouterr().err
    assert main([*words, "--ranks=0"]) == 2
    assert "--ranks is 1 or more, not 0" in capsys.readouterr().err
