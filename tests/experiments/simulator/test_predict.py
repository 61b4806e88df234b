"""Specs of simulations, and predictions, which repeat and keep the core's promises."""

from dataclasses import replace

import pytest

from superdl.experiments.simulator.predict import predict
from superdl.experiments.simulator.spec import (
    CacheSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    StoreSpec,
    load_spec,
)
from superdl.super_wire.errors import ConfigError
from tests.simulation.checked_world import CheckedWorld


@pytest.mark.parametrize("name", ["digits", "imagenet", "many_jobs"])
def test_a_built_in_spec_is_valid(name):
    spec = load_spec(name, ["cache.budget_gb=2"])
    assert (spec.name, spec.cache.budget_gb) == (name, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs: []", "jobs must have at least one entry, not []"),
        ("jobs: [{dataset: other}]", "jobs[0].dataset is unknown: other. Choose from data"),
        ("jobs: [{name: a}, {name: a}]", "duplicate names in jobs: a"),
        ("datasets: [{name: data, random: 1}]", "datasets[0].random must be true or false, not 1"),
        (
            "functions: {decode_s: 1}\nstore: {kind: directory}",
            "store.kind=directory requires functions.kind=pool",
        ),
        (
            "functions: {decode_s: 1, stragglers: 2}",
            "functions.stragglers must be less than or equal to 1, not 2",
        ),
        ("cache: {budget_gb: 0}", "cache.budget_gb must be greater than 0, not 0"),
    ],
)
def test_an_invalid_spec_is_refused(tmp_path, text, message):
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_spec(tmp_path / "spec.yaml")
    assert message in str(error.value)
    assert "spec.yaml" in str(error.value)


SPEC = SimulationSpec(
    datasets=(DatasetSpec(samples=2000, record_bytes=12_352),),
    jobs=(JobSpec(batch_size=50, step_s=0.1, epochs=3, workers=2),),
    functions=FunctionsSpec(
        concurrency=8, cold_start_s=1.0, overhead_s=0.01, fetch_s=0.01, decode_s=0.005, spread=0.2
    ),
    cache=CacheSpec(budget_gb=0.1),
)


def timeless(prediction):
    assert 0 < prediction.core_longest_s <= prediction.core_cpu_s
    return replace(prediction, simulated_in_s=0.0, core_cpu_s=0.0, core_longest_s=0.0)


@pytest.fixture
def checked(monkeypatch):
    """Check all promises after each event from now on."""
    return lambda: monkeypatch.setattr("superdl.experiments.simulator.predict.World", CheckedWorld)


def test_a_prediction_depends_only_on_the_spec(checked):
    prediction = timeless(predict(SPEC))
    checked()
    assert timeless(predict(SPEC)) == prediction
    assert timeless(predict(replace(SPEC, seed=1))) != prediction
    assert predict(replace(SPEC, minutes=0.05)).virtual_s == 3.0


def test_a_dataset_that_fits_is_decoded_once():
    prediction = predict(SPEC)
    assert prediction.samples_produced == prediction.source_requests == 2000
    assert prediction.samples_read == 6000
    assert prediction.jobs[0].epochs == pytest.approx(3.0)
    assert len(prediction.jobs[0].epochs_s) == 3
    assert prediction.cold_starts > 0
    assert 0 < prediction.functions_mean <= prediction.functions_peak <= 8
    assert prediction.first_batch_s > 1.0, "functions start cold"
    assert prediction.hit_rate > 2 / 3
    assert prediction.simulated


@pytest.mark.parametrize(("kind", "functions"), [("directory", "pool"), ("s3", "lambda")])
def test_with_a_store_and_a_small_cache_samples_are_decoded_once(kind, functions, checked):
    small = replace(SPEC, cache=CacheSpec(budget_gb=0.004), functions=replace(SPEC.functions, kind=functions))
    assert predict(small).samples_produced > 4000
    checked()
    first = predict(replace(small, store=StoreSpec(kind=kind, restore_s=0.001)))
    assert 2000 <= first.samples_produced < 2100, "a few race a slow restore"
    after = predict(replace(small, store=StoreSpec(kind=kind, restore_s=0.001, left_over=1.0)))
    assert after.samples_produced < 100
    assert first.samples_read == after.samples_read == 6000


def test_more_cache_or_functions_improve_a_prediction():
    rows = [predict(replace(SPEC, cache=CacheSpec(budget_gb=gb))) for gb in (0.004, 0.012, 0.1)]
    produced = [row.samples_produced for row in rows]
    assert produced == sorted(produced, reverse=True)
    assert produced[0] > produced[-1]
    rates = [row.hit_rate for row in rows]
    assert rates[0] <= rates[-1] + 0.02
    slow, quick = (
        predict(replace(SPEC, functions=replace(SPEC.functions, concurrency=count))) for count in (1, 8)
    )
    assert slow.images_per_s < quick.images_per_s
    assert slow.stall_share > quick.stall_share


def test_jobs_share_decoded_samples_and_ranks_read_disjoint_parts(checked):
    group = JobSpec(count=4, batch_size=50, step_s=0.1, start_every_s=0.5, workers=2)
    prediction = predict(replace(SPEC, jobs=(group,)))
    assert [job.name for job in prediction.jobs] == ["train-0", "train-1", "train-2", "train-3"]
    assert (prediction.samples_produced, prediction.samples_read) == (2000, 8000)
    ranks = JobSpec(replicas=2, batch_size=25, step_s=0.1, workers=2)
    checked()
    prediction = predict(replace(SPEC, jobs=(ranks,)))
    assert (prediction.samples_read, prediction.jobs[0].epochs) == (2000, 1.0)
