"""Inputs of the cost model: each says where it is from, and none is taken that cannot be reckoned with."""

from __future__ import annotations

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.scenario import Scenario, load_scenario
from superdl.super_wire.errors import ConfigError


def test_every_input_says_what_it_is_and_where_it_is_from():
    known = ("measured: superdl bench", "assumed: ")
    for one in Scenario().inputs():
        assert one["about"], one["name"]
        assert one["basis"] == "chosen" or one["basis"].startswith(known), one["name"]


def test_what_was_given_is_not_said_to_be_measured():
    bases = {one["name"]: one["basis"] for one in load_scenario(["read_cpu_ms=1"]).inputs()}
    assert bases["read_cpu_ms"] == "given"
    assert bases["s3_cpu_ms"] == "measured: superdl bench read"


def test_the_price_table_has_what_the_default_case_names():
    scenario, prices = Scenario(), load_prices()
    prices.machine(scenario.machine)
    prices.machine(scenario.cpu_host)
    prices.cache_node(scenario.cache_node)


def test_values_are_replaced_by_their_types():
    scenario = load_scenario(
        ["jobs=8", "in_step=false", "machine=g5.xlarge", "images_per_s=1_200", "request_s=0"]
    )
    assert (scenario.jobs, scenario.in_step, scenario.machine) == (8, False, "g5.xlarge")
    assert (scenario.images_per_s, scenario.request_s) == (1200.0, 0.0)
    assert scenario.samples == Scenario().samples


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("jobs", "cannot apply 'jobs'"),
        ("dogs=8", "unknown key dogs"),
        ("jobs=8.5", "jobs must be a valid integer"),
        ("images_per_s=fast", "images_per_s must be a valid number"),
        ("images_per_s=.nan", "images_per_s must be a finite number"),
        ("jobs=0", "jobs must be at least 1"),
        ("request_s=-1", "request_s must be at least 0"),
        ("in_step=maybe", "in_step must be true or false"),
        ("reserved_share=1", "reserved_share must be below 1"),
        ("spare=0.5", "spare must be at least 1"),
    ],
)
def test_what_cannot_be_reckoned_with_is_refused(text, reason):
    with pytest.raises(ConfigError, match=reason):
        load_scenario([text])
