"""The arithmetic of bills: sums by hand, and who loses to whom."""

from dataclasses import replace

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.model import bills
from superdl.cost.scenario import Scenario

PRICES = load_prices()
IMAGENET = Scenario()
WHOLE = replace(IMAGENET, cache_node="cache.r7g.12xlarge")
FAST = replace(IMAGENET, images_per_s=2000.0, machine="g5.xlarge")
SAMPLES = IMAGENET.samples
GET = 4e-7
LAMBDA, EMBEDDED, STORED = "SUPER with Lambda", "SUPER embedded", "SUPER embedded, store on NVMe"
DECODING = "decoding from S3"


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
    assert (bill.later.functions_usd, bill.later.gets_usd, bill.reuse) == (0.0, 0.0, 1.0)
    assert bill.month.usd == pytest.approx(bill.first.usd + 2 * bill.later.usd)


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
