"""The shipped price table is complete, and a user's table overrides single prices."""

from dataclasses import replace

import pytest

from superdl.coordinator.core import Prices
from superdl.coordinator.executors.base import shipped_prices_of
from superdl.coordinator.executors.price_table import load_prices
from superdl.super_wire.errors import ConfigError


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_the_shipped_table_is_complete():
    table = load_prices()
    assert table.region == "us-east-1"
    assert table.date
    assert "https://aws.amazon.com/" in table.source
    on_lambda = table.of("lambda")
    # On machines that are already paid for, or billed by the hour, functions cost only their GETs and PUTs.
    requests = Prices(source_request=on_lambda.source_request, store_put=on_lambda.store_put)
    assert table.of("local") == table.of("workers") == requests
    assert min(on_lambda.gb_s, on_lambda.invocation, on_lambda.hour) > 0
    # Read without validation, as most coordinators do.
    names = ("local", "workers", "lambda", "none of that name")
    assert [shipped_prices_of(name) for name in names] == [table.of(name) for name in names]
    task = table.fargate["vcpu_hour"] + 2 * table.fargate["gb_hour"]
    assert on_lambda.hour == pytest.approx(table.cache_node("cache.r7g.large").hour + task, abs=5e-5)
    assert not table.of("abacus").billed
    dated = {name: machine for name, machine in table.machines.items() if machine.date}
    assert all(machine.source for machine in dated.values())
    assert {"p4d.24xlarge", "c5.18xlarge", "p2.xlarge", "p5.48xlarge", "ml.p4d.24xlarge"} <= set(dated)
    assert {name for name in table.machines if name.startswith("ml.")} <= set(dated)
    for name in table.verified:
        section, unit = name.split(".")
        assert unit in getattr(table, section), name


def test_a_file_overrides_single_prices(tmp_path):
    path = written(
        tmp_path,
        '[about]\nregion = "mars"\n[lambda]\ngb_s = 1\n[abacus]\ninvocation = 0.5\n'
        '[machine."g4dn.xlarge"]\nhour = 1\n[machine."m9.huge"]\nhour = 2\nvcpus = 4\nmemory_gib = 8\n'
        "[storage]\ns3_gb_month = 0\n",
    )
    table, before = load_prices(path), load_prices()
    assert (table.region, table.date) == ("mars", before.date)
    assert table.of("lambda") == replace(before.of("lambda"), gb_s=1.0)
    assert table.of("abacus") == Prices(invocation=0.5)
    assert table.machine("g4dn.xlarge") == replace(before.machine("g4dn.xlarge"), hour=1.0)
    assert table.machine("m9.huge").memory_gib == 8.0
    assert table.machine("g5.xlarge") == before.machine("g5.xlarge")
    assert table.storage == {"s3_gb_month": 0.0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[lambda]\ngbs = 1\n", "lambda gbs"),
        ("[storage]\ngb = 1\n", "storage has no unit gb"),
        ("[lambda]\ngb_s = -1\n", "gb_s"),
        ('[lambda]\ngb_s = "much"\n', "much"),
        ("[lambda]\nhour = 0.01\ncoordinator_hour = 0.02\n", "coordinator_hour .* must not exceed hour"),
        ("gb_s = 1\n", "must be in a section"),
        ("[lambda\n", "cannot parse .* as TOML"),
        ("[about]\ndate = 2026\n", "date"),
        ("[transfer]\nbetween_zones_gb = inf\n", "transfer between_zones_gb"),
        ("[machine]\nhour = 1\n", "machines hour"),
        ('[machine."m9.huge"]\nhour = 1\nvcpus = 0\nmemory_gib = 4\n', "m9.huge vcpus"),
        ('[machine."m9.huge"]\nhour = 1\nvcpus = 2\nmemory_gib = 4\ngpus = 1\n', "given together"),
    ],
)
def test_an_invalid_table_is_refused_by_name(tmp_path, text, reason):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_prices(path)
    assert path in str(caught.value)


def test_unknown_names_and_missing_files_are_reported():
    with pytest.raises(ConfigError, match=r"'abacus'.*g4dn\.xlarge.*SUPER_PRICES"):
        load_prices().machine("abacus")
    with pytest.raises(ConfigError, match=r"'tin'.*cache\.r7g\.large"):
        load_prices().cache_node("tin")
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_prices("/nowhere/absent.toml")
