"""What warming is said to take before it begins."""

from __future__ import annotations

import pytest

from superdl.coordinator.core import Prices
from superdl.coordinator.executors.price_table import load_prices
from superdl.super_wire.errors import UnknownJobError
from superdl.super_wire.recipe import Recipe
from superdl.warm.estimate import Standing, estimate_of, memory_of, record_bytes_of, standing_of
from tests.sampler.scripted_coordinator import ScriptedCoordinator
from tests.sampler.stand_ins import BoundDataset

CROP = Recipe.image(resize=256, crop=224)
PRICES = load_prices()


def standing(**changes):
    facts = {
        "samples": 1_281_167,
        "budget_bytes": 2**34,
        "free_bytes": 2**34,
        "prices": {"lambda": PRICES.of("lambda")},
    }
    return Standing(**{**facts, **changes})


def test_the_size_of_a_record_is_known_where_the_recipe_says_it():
    assert record_bytes_of(CROP) == (64 + 224 * 224 * 3, False)
    assert record_bytes_of(Recipe.image(resize=96)) == (64 + 96 * 96 * 4, True)
    assert record_bytes_of(Recipe([])) == (2**20, True)
    bounded = {"op": "resize", "size": 96, "max_size": 120}
    assert record_bytes_of(Recipe([bounded])) == (64 + 90 * 120 * 3, True)
    assert record_bytes_of(Recipe([{"op": "grayscale"}, bounded])) == (64 + 90 * 120, True)
    assert record_bytes_of(Recipe([{"op": "resize", "size": [96, 120]}])) == (64 + 96 * 120 * 3, False)


def test_a_coordinator_that_is_restarted_while_it_lists_is_told_the_dataset_again():
    server = ScriptedCoordinator()
    try:
        server.script.listing = [0, 10, 10, 500]
        server.script.failures["GetDataset"] = [UnknownJobError("what dataset?")]
        seen: list[int] = []
        found = standing_of(server.address, BoundDataset(), run="run", listed=seen.append)
        assert (found.samples, found.budget_bytes) == (1000, 77)
        assert seen[:2] == [10, 500]
        assert server.count("RegisterDataset") == 2
    finally:
        server.stop()


def test_what_fits_is_counted_as_the_coordinator_counts():
    estimate = estimate_of(standing(), CROP, "s3://bucket")
    assert estimate.fits == 2**34 // memory_of(150_592)
    assert estimate.cache_bytes <= 2**34 < estimate.cache_bytes + memory_of(150_592)
    assert estimate_of(standing(free_bytes=-5), CROP, "s3://bucket").fits == 0
    small = estimate_of(standing(samples=10), CROP, "s3://bucket")
    assert (small.fits, small.invocations, small.gets) == (10, 1, 10)


def test_a_store_takes_records_as_they_are():
    plenty = estimate_of(standing(), CROP, "s3://bucket", to_store=True)
    assert (plenty.fits, plenty.cache_bytes) == (1_281_167, 1_281_167 * 150_592)
    assert estimate_of(standing(store_free_bytes=1e9), CROP, "s3://bucket", to_store=True).fits == 6640
    assert estimate_of(standing(store_free_bytes=-1.0), CROP, "s3://bucket", to_store=True).fits == 0


def test_money_is_invocations_work_and_gets():
    of = PRICES.of("lambda")
    estimate = estimate_of(standing(samples=6400), CROP, "s3://bucket")
    expected = 100 * of.invocation + estimate.gb_s["lambda"] * of.gb_s + 6400 * of.source_request
    assert estimate.usd["lambda"] == pytest.approx(expected)
    # 1.91 ms at half a core's speed, 50 ms for each request, of 1,769 MB
    assert estimate.gb_s["lambda"] == pytest.approx((6400 * 0.00382 + 100 * 0.05) * 1769 / 1024)


def test_files_cost_no_gets():
    prices = {"local": Prices(invocation=0.001, source_request=1.0), "lambda": Prices(gb_s=1.0)}
    estimate = estimate_of(standing(prices=prices, samples=320), CROP, "file:///data")
    assert (estimate.gets, estimate.invocations) == (0, 5)
    assert estimate.gb_s["local"] == pytest.approx((320 * 0.00191 + 5 * 0.05) * 1769 / 1024)
    assert estimate.usd["lambda"] == pytest.approx(estimate.gb_s["lambda"])
    assert estimate.usd["local"] == pytest.approx(0.005)
