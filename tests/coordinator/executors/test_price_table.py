"""Price tables: the built-in one names where it comes from, a user's replaces what it names."""

from __future__ import annotations

import pytest

from superdl.coordinator.core import Prices
from superdl.coordinator.executors.price_table import load_prices
from superdl.super_wire.errors import ConfigError


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
        ("gb_s = 1\n", "outside of a section"),
        ("[lambda\n", "cannot be read"),
        ("[about]\ndate = 2026\n", "date is a text"),
        ('[about]\nverified = "all"\n', "verified is a list"),
        ("[fargate]\nhour = 1\n", "vcpu_hour, gb_hour"),
        ("[transfer]\ninternet_gb = inf\n", "internet_gb is a number"),
        ("[machine]\nhour = 1\n", "a section for each by name"),
        ('[machine."m9.huge"]\nhour = 1\nvcpus = 2\n', "m9.huge.* lacks memory_gib"),
        ('[machine."m9.huge"]\nhour = 1\nvcpus = 0\nmemory_gib = 4\n', "above 0"),
        ('[machine."m9.huge"]\nhour = 1\nvcpus = 2\nmemory_gib = 4\ngpus = 1\n', "go together"),
        ('[machine."m9.huge"]\narm = 1\n', "arm is true or false"),
        ('[machine."m9.huge"]\ngpu = 4\n', "gpu is a text"),
        ('[cache_node."cache.r7g.large"]\nmemory_gib = 0\n', "above 0"),
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


def test_functions_on_hosts_that_are_paid_by_the_hour_cost_their_gets():
    assert load_prices().of("ray") == load_prices().of("local")


def test_the_hour_of_lambda_is_its_node_and_its_task():
    table = load_prices()
    task = table.fargate.vcpu_hour + 2 * table.fargate.gb_hour
    assert table.of("lambda").hour == pytest.approx(table.cache_node("cache.r7g.large").hour + task, abs=5e-5)


def test_a_file_replaces_and_adds_machines_and_pieces(tmp_path):
    path = written(
        tmp_path,
        '[machine."g4dn.xlarge"]\nhour = 1\n[machine."m9.huge"]\nhour = 2\nvcpus = 4\nmemory_gib = 8\n'
        "[storage]\ns3_gb_month = 0\n",
    )
    table, before = load_prices(path), load_prices()
    assert table.machine("g4dn.xlarge").hour == 1.0
    assert table.machine("g4dn.xlarge").vcpus == before.machine("g4dn.xlarge").vcpus
    assert table.machine("m9.huge").memory_gib == 8.0
    assert table.machine("g5.xlarge") == before.machine("g5.xlarge")
    assert table.storage.s3_gb_month == 0.0
    assert table.storage.disk_gb_month == before.storage.disk_gb_month


def test_what_the_table_lacks_is_named_with_what_it_has():
    with pytest.raises(ConfigError, match=r"no machine 'abacus'; there are .*g4dn\.xlarge.*SUPER_PRICES"):
        load_prices().machine("abacus")
    with pytest.raises(ConfigError, match=r"no cache_node 'tin'; there are .*cache\.r7g\.large"):
        load_prices().cache_node("tin")


def test_what_is_said_to_be_verified_is_a_price_of_the_table():
    table = load_prices()
    for name in table.verified:
        section, unit = name.split(".")
        assert hasattr(getattr(table, section, table.of(section)), unit), name


def test_larger_machines_of_a_kind_cost_more():
    table = load_prices()
    for things in (table.machines, table.cache_nodes):
        families: dict[str, list] = {}
        for name, thing in things.items():
            families.setdefault(name.rsplit(".", 1)[0], []).append(thing)
        for family in families.values():
            by_memory = sorted(family, key=lambda thing: (getattr(thing, "gpus", 0), thing.memory_gib))
            single = [thing for thing in by_memory if getattr(thing, "gpus", 0) <= 1]
            assert [thing.hour for thing in single] == sorted(thing.hour for thing in single)
