"""The arithmetic of bills: sums by hand, who loses to whom, and the simulator's word on reuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost import bills
from superdl.cost.model import (
    MONTH_HOURS,
    cache_samples,
    embedded_reuse,
    produced,
    reuse,
)
from superdl.cost.scenario import PRESETS, Scenario
from superdl.experiments.simulator.predict import predict
from superdl.experiments.simulator.spec import load_points
from superdl.super_wire.errors import ConfigError

PRICES = load_prices()
IMAGENET = PRESETS["imagenet"]
WHOLE = replace(IMAGENET, cache_node="cache.r7g.12xlarge")


NAMES = {
    "SUPER with Lambda": "lambda",
    "SUPER with Ray": "ray",
    "SUPER with Lambda, store in S3": "stored in S3",
    "SUPER embedded": "embedded",
    "SUPER embedded, store on NVMe": "stored",
    "decoding from S3": "s3",
    "decoding from gp3": "disk",
}


def by_name(scenario: Scenario):
    """On the scenario's own machine."""
    found = bills(scenario, PRICES)
    return {NAMES.get(bill.tag, bill.tag): bill for bill in found if bill.machine == scenario.machine}


def test_a_small_sum_by_hand():
    scenario = Scenario(
        samples=36_000,
        images_per_s=100.0,
        record_bytes=12_352,
        function_cpu_ms=5.0,
        lambda_vcpu=0.5,
        request_s=0.64,
        spare=1.0,
        epochs=3,
    )
    bill = by_name(scenario)["lambda"]
    hours = 0.1
    assert bill.first.hours == pytest.approx(hours)
    assert bill.first.trainer == pytest.approx(0.526 * hours)
    # 10 ms for the work of a sample and 0.64 s / 64 of its request's, in 1769 MB
    assert bill.first.functions == pytest.approx(
        36_000 * 0.02 * 1769 / 1024 * 1.33334e-5 + 36_000 / 64 * 2e-7
    )
    assert bill.first.gets == pytest.approx(36_000 * 4e-7)
    assert bill.first.cache == pytest.approx(0.1752 * hours)
    assert bill.first.coordinator == pytest.approx((0.03238 + 2 * 0.00356 + 5 * 0.01) * hours)
    assert bill.functions_at_once == pytest.approx(100 * 0.02)
    assert (bill.later.functions, bill.later.gets, bill.reuse) == (0.0, 0.0, 1.0)
    assert bill.month.usd == pytest.approx(bill.first.usd + 2 * bill.later.usd)


def test_local_decoding_that_keeps_up_is_cheaper_than_a_single_job_of_super():
    """What docs/cost.md says where it says that SUPER loses."""
    for scenario in (IMAGENET, WHOLE):
        found = by_name(scenario)
        assert found["s3"].bound == "GPU"
        assert found["s3"].month.usd < found["lambda"].month.usd
        assert found["disk"].month.usd < found["lambda"].month.usd


def test_jobs_that_share_pay_for_functions_and_gets_once():
    eight = replace(WHOLE, jobs=8)
    one, many = by_name(WHOLE)["lambda"].month, by_name(eight)["lambda"].month
    assert (many.functions, many.gets) == (one.functions, one.gets)
    assert many.trainer == pytest.approx(8 * one.trainer)
    assert many.usd < by_name(eight)["s3"].month.usd


def test_the_caches_network_is_a_bound():
    found = by_name(replace(IMAGENET, jobs=8))
    assert found["lambda"].bound == "cache's network"
    node = PRICES.cache_node("cache.r7g.large")
    made = produced(replace(IMAGENET, jobs=8), reuse(IMAGENET, PRICES))[1] / IMAGENET.samples
    assert found["lambda"].images_per_s == pytest.approx(
        node.network_gbps * 1e9 / 8 / IMAGENET.record_bytes / (8 + made)
    )


def test_zones_and_months_cost():
    near, far = by_name(IMAGENET)["lambda"], by_name(replace(IMAGENET, one_zone=False))["lambda"]
    moved = (IMAGENET.samples + far.first.produced) * IMAGENET.record_bytes / 1e9
    assert far.first.transfer == pytest.approx(moved * 0.02)
    assert near.first.transfer == 0.0
    always = by_name(replace(IMAGENET, always_up=True))
    assert always["lambda"].month.cache == pytest.approx(0.1752 * MONTH_HOURS)
    assert always["ray"].month.coordinator < always["lambda"].month.coordinator
    host = PRICES.machine("c6i.2xlarge")
    assert always["ray"].first.functions == pytest.approx(host.hour * always["ray"].first.hours), (
        "hosts are whole"
    )
    assert always["disk"].month.disk == pytest.approx(IMAGENET.samples * 110e-6 * 0.08, rel=1e-3)


def test_a_random_recipe_reuses_nothing_over_epochs_and_is_shared_in_step():
    random = replace(WHOLE, random=True, jobs=8)
    first, later = produced(random, reuse(random, PRICES))
    assert first == later == WHOLE.samples
    assert by_name(random)["lambda"].reuse == 0.0
    assert embedded_reuse(random, PRICES.machine("g4dn.xlarge")) == 0.0


def test_a_store_on_the_machines_nvme_decodes_once_what_fits_and_costs_nothing():
    share = 125e9 * 0.9 / (IMAGENET.samples * IMAGENET.record_bytes)
    stored, embedded = by_name(IMAGENET)["stored"], by_name(IMAGENET)["embedded"]
    assert stored.reuse == pytest.approx(share)
    assert stored.first == embedded.first
    assert stored.later.gets == pytest.approx(stored.first.gets * (1 - share))
    assert by_name(replace(IMAGENET, machine="g5.xlarge"))["stored"].later.gets == 0
    slow = by_name(replace(IMAGENET, machine="g5.xlarge", nvme_mb_per_s=15.0592))["stored"]
    assert (slow.bound, slow.images_per_s) == ("NVMe", pytest.approx(100.0))
    assert "stored" not in by_name(replace(IMAGENET, random=True))
    assert "stored" not in by_name(PRESETS["tiny-imagenet-64"]), "memory holds all of it"


def test_a_store_in_s3_decodes_once_and_pays_for_puts_gets_and_the_month():
    plain, stored = by_name(IMAGENET)["lambda"], by_name(IMAGENET)["stored in S3"]
    restored = IMAGENET.samples * (1 - reuse(IMAGENET, PRICES)) * IMAGENET.spare
    month = IMAGENET.samples * 150_592 / 1e9 * 0.023
    assert (stored.first.functions, stored.first.gets) == (plain.first.functions, plain.first.gets)
    assert stored.first.store == pytest.approx(
        IMAGENET.samples / 64 * 5e-6 + month * stored.first.hours / MONTH_HOURS
    )
    assert (stored.later.produced, stored.later.gets) == (0.0, 0.0)
    assert stored.later.store == pytest.approx(restored * 4e-7 + month * stored.later.hours / MONTH_HOURS)
    # 0.6 ms for the work of a restore and 50 ms / 64 of its request's, in 1769 MB
    assert stored.later.functions == pytest.approx(
        restored * ((0.6e-3 + 0.05 / 64) * 1769 / 1024 * 1.33334e-5 + 2e-7 / 64)
    )
    assert stored.month.store == pytest.approx(IMAGENET.samples / 64 * 5e-6 + 89 * restored * 4e-7 + month)
    eight = by_name(replace(IMAGENET, jobs=8, in_step=False))
    assert eight["stored in S3"].first.produced == IMAGENET.samples < eight["lambda"].first.produced
    assert by_name(WHOLE)["stored in S3"].later.store == pytest.approx(
        month * by_name(WHOLE)["lambda"].later.hours / MONTH_HOURS
    ), "what the cache holds is not restored"
    assert "stored in S3" not in by_name(replace(IMAGENET, random=True))


def test_what_fits_is_counted_as_in_production():
    assert 60_000 < cache_samples(IMAGENET, PRICES) < 70_000
    assert cache_samples(WHOLE, PRICES) > IMAGENET.samples
    five = cache_samples(replace(IMAGENET, cache_nodes=5), PRICES)
    assert 4.5 < five / cache_samples(IMAGENET, PRICES) < 5
    with pytest.raises(ConfigError, match="cache_nodes is a number above 0"):
        replace(IMAGENET, cache_nodes=0)


def test_a_training_loop_that_leaves_no_vcpu_is_refused():
    with pytest.raises(ConfigError, match=r"g4dn\.xlarge has no vCPU left.*trainer_vcpus is 4"):
        bills(replace(IMAGENET, trainer_vcpus=4.0), PRICES)


SPEC = """
name: reuse
datasets: [{name: d, samples: 20000, image: 224, source_bytes: 110000}]
jobs: [{name: train, dataset: d, JOBS, batch_size: 64, step_s: 0.15, epochs: 4, workers: 4}]
functions: {kind: lambda, concurrency: 100, cold_start_s: 0.5, decode_s: 0.004, memory_gb: 1.769}
cache: {budget_gb: 1.64}
"""
"""Half of the dataset fits."""


@pytest.mark.parametrize(
    ("jobs", "count", "in_step", "share"),
    [
        ("count: 1", 1, True, 1.0),
        pytest.param("count: 8, same_seed: true", 8, True, 1.0, marks=pytest.mark.slow),
        pytest.param("count: 8", 8, False, 0.5, marks=pytest.mark.slow),  # how far docs/cost.md says
    ],
)
def test_the_simulator_produces_as_much(tmp_path, jobs, count, in_step, share):
    file = tmp_path / "reuse.yaml"
    file.write_text(SPEC.replace("JOBS", jobs))
    ((swept, spec),) = load_points(str(file))
    scenario = Scenario(samples=20_000, jobs=count, in_step=in_step, epochs=4)
    first, later = produced(scenario, 0.5)
    expected = share * (first + 3 * later)
    assert predict(spec, swept).samples_produced == pytest.approx(expected, rel=0.05 if in_step else 0.2)
