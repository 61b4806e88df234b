"""Price tables: the built-in one names where it comes from, a user's replaces what it names."""

from __future__ import annotations

import pytest

from coordinator.core.prices import Prices
from coordinator.price_table import load_prices
from super_wire.errors import ConfigError


def written(tmp_path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_the_built_in_table_says_where_its_prices_come_from():
    table = load_prices()
    assert table.region == "us-east-1"
    assert table.date
    assert "https://aws.amazon.com/" in table.source


def test_functions_on_a_machine_that_is_paid_for_cost_nothing_but_their_gets():
    local, on_lambda = load_prices().of("local"), load_prices().of("lambda")
    assert local == Prices(source_request=on_lambda.source_request)
    assert on_lambda.gb_s > 0
    assert on_lambda.invocation > 0
    assert on_lambda.hour > 0


def test_an_executor_without_prices_bills_nothing():
    assert not load_prices().of("abacus").billed


def test_a_file_replaces_what_it_names(tmp_path):
    table = load_prices(
        written(tmp_path, '[about]\nregion = "mars"\n[lambda]\ngb_s = 1\n[abacus]\ninvocation = 0.5\n')
    )
    assert table.region == "mars"
    assert table.date == load_prices().date
    assert table.of("lambda").gb_s == 1.0
    assert table.of("lambda").invocation == load_prices().of("lambda").invocation
    assert table.of("abacus") == Prices(invocation=0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[lambda]\ngbs = 1\n", "gbs"),
        ("[lambda]\ngb_s = -1\n", "gb_s"),
        ('[lambda]\ngb_s = "much"\n', "much"),
        ("[lambda]\ngb_s = true\n", "gb_s"),
        ("[about]\nplanet = 1\n", "planet"),
        ("gb_s = 1\n", "outside of a section"),
        ("[lambda\n", "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused_and_named(tmp_path, text, reason):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_prices(path)
    assert path in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_prices(str(tmp_path / "absent.toml"))
