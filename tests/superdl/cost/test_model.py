"""The arithmetic of the cost model, by a sum done by hand. docs/performance.md has the other sums."""

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.model import bills
from superdl.cost.scenario import Scenario

PRICES = load_prices()
GET = 4e-7


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
    bill = next(bill for bill in bills(scenario, PRICES) if bill.tag == "SUPER with Lambda")
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
