"""``superdl cost``: what it prints, for people, for programs and for docs/cost.md."""

from __future__ import annotations

import json

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
        (["--inputs"], "--inputs goes with --markdown"),
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


def test_the_map_has_a_row_for_each_workload_and_the_same_figures_as_json(capsys):
    assert main(["cost", "tiny-imagenet-64", "--map"]) == 0
    assert {"1,000,000", "WebDataset", "+11%"} <= set(capsys.readouterr().out.split())
    assert main(["cost", "tiny-imagenet-64", "--map", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny-imagenet-64 on g4dn.xlarge or bigger, 4,000 images/s a GPU:"
    assert main(["cost", "tiny-imagenet-64", "--map", "--json"]) == 0
    spots = json.loads(capsys.readouterr().out)["map"]
    assert len(lines) == 4 + len(spots) == 4 + 18
    for line, spot in zip(lines[4:], spots, strict=True):
        samples, jobs, epochs, *kinds, against = line.strip("|").split("|")
        assert (samples, jobs, epochs) == (f"{spot['samples']:,}", str(spot["jobs"]), str(spot["epochs"]))
        assert against.strip("%+-") == f"{abs(spot['super_against_others']):.0%}".strip("%")
        costs = {kind: one["month_usd"] for kind, one in spot["cheapest"].items()}
        bold = [cell.startswith("**") for cell in kinds]
        assert bold == [usd == min(costs.values()) for usd in costs.values()]
