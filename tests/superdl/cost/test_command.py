"""``superdl cost``: what it prints, for people, for programs and for docs/cost.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from superdl.cost.model import PARTS
from superdl.main import main


def test_tables_say_what_they_assume(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["cost", "--set", "jobs=8"]) == 0
    told = capsys.readouterr().out
    for words in (
        "imagenet: 1,281,167 samples, 8 jobs, in step",
        "first epoch",
        "held back by the",
        "g4dn.xlarge, SUPER with Ray",
        "g4dn.xlarge, LitData raw",
        "images_per_s",
        "assumed: ",
        "measured: superdl bench function",
        "us-east-1, 2026-11",
        "express.write_gb, others",
    ):
        assert words in told


def test_json_adds_up(capsys):
    assert main(["cost", "tiny-imagenet-64", "--json", "--set", "cache_nodes=2"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["scenario"]["name"] == "tiny-imagenet-64"
    assert answer["cache_samples"] > 100_000
    assert {one["name"] for one in answer["inputs"]} == answer["scenario"].keys() - {"name"}
    assert len(answer["loaders"]) == 14
    for loader in answer["loaders"]:
        for period in ("first", "later", "month"):
            costs = loader[period]
            assert costs["usd"] == pytest.approx(sum(costs[f"{part}_usd"] for part in PARTS))


def test_a_price_table_of_ones_own_counts(capsys, tmp_path, monkeypatch):
    file = tmp_path / "mine.toml"
    file.write_text('[machine."g4dn.xlarge"]\nhour = 100\n')
    usd = []
    for words, variable in (([], ""), (["--prices", str(file)], ""), ([], str(file))):
        monkeypatch.setenv("SUPER_PRICES", variable)
        assert main(["cost", "--json", *words]) == 0
        usd.append(json.loads(capsys.readouterr().out)["loaders"][0]["month"]["trainer_usd"])
    assert usd[1] == usd[2] == pytest.approx(usd[0] * 100 / 0.526)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cifar"], "a preset is one of"),
        (["--set", "machine=abacus"], "no machine 'abacus'"),
        (["--set", "cache_node=tin"], "no cache_node 'tin'"),
        (["--json", "--markdown"], "choose one"),
        (["--prices", "/nowhere/mine.toml"], "cannot be read"),
    ],
)
def test_wrong_use_is_told(capsys, monkeypatch, words, reason):
    monkeypatch.delenv("SUPER_PRICES", raising=False)
    assert main(["cost", *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_month_that_takes_longer_than_a_month_says_so(capsys):
    assert main(["cost", "--set", "images_per_s=5"]) == 0
    assert "90 epochs take up to 6,406 hours, a month has 730" in capsys.readouterr().out
    assert main(["cost"]) == 0
    assert "a month has" not in capsys.readouterr().out


def test_the_page_has_what_its_command_prints(capsys, monkeypatch):
    monkeypatch.delenv("SUPER_PRICES", raising=False)  # a table of the user's own does not count
    page = (Path(__file__).parents[3] / "docs/cost.md").read_text(encoding="utf-8")
    ((command, table),) = re.findall(r"<!-- superdl (cost .*?) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == table
