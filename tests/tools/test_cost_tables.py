"""docs/cost.md has the figures that the price table gives, and an old table is noticed."""

from __future__ import annotations

import pytest

from superdl.coordinator.executors import price_table
from tools import cost_tables

TEXT = cost_tables.PAGE.read_text(encoding="utf-8")


def test_the_page_is_what_its_commands_print(monkeypatch):
    monkeypatch.setenv("SUPER_PRICES", "/nowhere/mine.toml")  # a table of the user's own does not count
    assert TEXT.count("<!-- superdl cost ") == TEXT.count("<!-- end -->") >= 3
    assert cost_tables.regenerated(TEXT) == TEXT, "python -m tools.cost_tables writes the tables anew"


def test_an_old_figure_is_found_and_mended(tmp_path, monkeypatch, capsys):
    page = tmp_path / "cost.md"
    table = "<!-- superdl cost tiny-imagenet-64 --markdown -->\n| old |\n<!-- end -->\n"
    page.write_text(f"before\n{table}after\n")
    monkeypatch.setattr(cost_tables, "PAGE", page)
    assert cost_tables.main(["--check"]) == 1
    assert "python -m tools.cost_tables" in capsys.readouterr().err
    assert cost_tables.main([]) == 0
    assert cost_tables.main(["--check"]) == 0
    text = page.read_text()
    assert text.startswith(
        "before\n<!-- superdl cost tiny-imagenet-64 --markdown -->\ntiny-imagenet-64: 100,000"
    )
    assert text.endswith("<!-- end -->\nafter\n")


def test_another_price_makes_the_page_old(monkeypatch, tmp_path):
    file = tmp_path / "prices.toml"
    table = (cost_tables.PAGE.parents[1] / "coordinator/executors/prices.toml").read_text(encoding="utf-8")
    file.write_text(table.replace("hour = 0.526", "hour = 0.6"))
    monkeypatch.setattr(price_table, "_DEFAULT", file)
    assert cost_tables.regenerated(TEXT) != TEXT


def test_a_command_that_does_not_run_is_told():
    with pytest.raises(SystemExit, match="superdl cost cifar --markdown is refused"):
        cost_tables.regenerated("<!-- superdl cost cifar --markdown -->\n<!-- end -->\n")
