"""The arithmetic of bills: sums by hand, who loses to whom, and the simulator's word on reuse."""

import json
from dataclasses import replace

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.model import MONTH_HOURS, bills, left_out, produced
from superdl.cost.scenario import Scenario
from superdl.experiments.simulator.predict import predict
from superdl.experiments.simulator.spec import load_spec

PRICES = load_prices()
IMAGENET = Scenario()
WHOLE = replace(IMAGENET, cache_node="cache.r7g.12xlarge")
FAST = replace(IMAGENET, images_per_s=2000.0, machine="g5.xlarge")
SAMPLES = IMAGENET.samples
GET = 4e-7
LAMBDA, EMBEDDED, STORED = "SUPER with Lambda", "SUPER embedded", "SUPER embedded, store on NVMe"
DECODING, CONVERTED = "decoding from S3", "LitData raw"
ALL = [LAMBDA, EMBEDDED, STORED, DECODING, CONVERTED]


def by_tag(scenario):
    return {bill.tag: bill for bill in bills(scenario, PRICES)}


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
    bill = by_tag(scenario)[LAMBDA]
    hours = 0.1
    assert bill.first.hours == pytest.approx(hours)
    assert bill.first.trainer_usd == pytest.approx(0.526 * hours)
    # 10 ms for the work of a sample and 0.64 s / 64 of its request's, in 1769 MB
    assert bill.first.functions_usd == pytest.approx(
        36_000 * 0.02 * 1769 / 1024 * 1.33334e-5 + 36_000 / 64 * 2e-7
    )
    assert bill.first.gets_usd == pytest.approx(36_000 * GET)
    assert bill.first.cache_usd == pytest.approx(0.1752 * hours)
    assert bill.first.coordinator_usd == pytest.approx((0.03238 + 2 * 0.00356 + 5 * 0.01) * hours)
    assert bill.functions_at_once == pytest.approx(100 * 0.02)
    assert (bill.later.functions_usd, bill.later.gets_usd, bill.reuse) == (0.0, 0.0, 1.0)
    assert bill.month.usd == pytest.approx(bill.first.usd + 2 * bill.later.usd)


@pytest.mark.parametrize(
    ("scenario", "tags"),
    [
        (IMAGENET, ALL),
        (replace(IMAGENET, random=True), [LAMBDA, EMBEDDED, DECODING]),
        (replace(IMAGENET, machine="p3.2xlarge"), [LAMBDA, EMBEDDED, DECODING, CONVERTED]),  # has no NVMe
        (
            replace(IMAGENET, samples=20_000),
            [LAMBDA, EMBEDDED, DECODING, CONVERTED],
        ),  # memory holds all of it
    ],
)
def test_ways_have_a_bill_or_a_reason(scenario, tags):
    assert list(by_tag(scenario)) == tags
    assert set(left_out(scenario, PRICES)) == set(ALL) - set(tags)


def test_local_decoding_that_keeps_up_is_cheaper_than_a_single_job_on_lambda():
    """What docs/performance.md says where it says that SUPER loses."""
    for scenario in (IMAGENET, WHOLE):
        rows = by_tag(scenario)
        assert rows[DECODING].bound == "GPU"
        assert rows[DECODING].month.usd < rows[LAMBDA].month.usd
        assert rows[DECODING].later.gets_usd == pytest.approx(SAMPLES * GET)


def test_jobs_that_share_pay_for_functions_and_gets_once():
    eight = by_tag(replace(WHOLE, jobs=8))
    single, many = by_tag(WHOLE)[LAMBDA].month, eight[LAMBDA].month
    assert (many.functions_usd, many.gets_usd) == (single.functions_usd, single.gets_usd)
    assert many.trainer_usd == pytest.approx(8 * single.trainer_usd)
    assert many.usd < eight[DECODING].month.usd


def test_a_store_on_the_machines_nvme_decodes_once_what_fits_and_costs_nothing():
    share = 125e9 * 0.9 / (SAMPLES * IMAGENET.record_bytes)
    rows = by_tag(IMAGENET)
    stored, embedded = rows[STORED], rows[EMBEDDED]
    assert stored.reuse == pytest.approx(share)
    assert stored.first == embedded.first
    assert stored.later.gets_usd == pytest.approx(stored.first.gets_usd * (1 - share))
    assert by_tag(FAST)[STORED].later.gets_usd == 0
    slow = by_tag(replace(FAST, nvme_mb_per_s=15.0592))[STORED]
    assert (slow.bound, slow.images_per_s) == ("NVMe", pytest.approx(100.0))


def test_zones_and_months_cost():
    near, far = by_tag(IMAGENET)[LAMBDA], by_tag(replace(IMAGENET, one_zone=False))[LAMBDA]
    moved = (SAMPLES + far.first.produced) * IMAGENET.record_bytes / 1e9
    assert far.first.transfer_usd == pytest.approx(moved * 0.02)
    assert near.first.transfer_usd == 0.0
    always = by_tag(replace(IMAGENET, always_up=True))[LAMBDA]
    assert always.month.cache_usd == pytest.approx(0.1752 * MONTH_HOURS)
    assert always.month.trainer_usd == near.month.trainer_usd


SPEC = """
name: reuse
datasets: [{name: d, samples: 20000}]
jobs: JOBS
functions: {kind: lambda, concurrency: 100, cold_start_s: 0.5, decode_s: 0.004, memory_gb: 1.769}
cache: {budget_gb: 1.64}
"""
"""Half of the dataset fits."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "in_step", "share"),
    [(1, True, 1.0), (8, True, 1.0), (8, False, 0.5)],  # how far docs/performance.md says
)
def test_the_simulator_produces_as_much(tmp_path, count, in_step, share):
    alike = {"dataset": "d", "batch_size": 64, "step_s": 0.15, "epochs": 4}
    jobs = [{"name": f"job-{n}", "seed": 0 if in_step else n} | alike for n in range(count)]
    file = tmp_path / "reuse.yaml"
    file.write_text(SPEC.replace("JOBS", json.dumps(jobs)))
    scenario = Scenario(samples=20_000, jobs=count, in_step=in_step, epochs=4)
    first, later = produced(scenario, 0.5)
    expected = share * (first + 3 * later)
    assert predict(load_spec(file)).samples_produced == pytest.approx(expected, rel=0.05 if in_step else 0.2)
