"""``superdl cost``: what it prints, for people, for programs and for docs/cost.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from superdl.cost.model import PARTS
from superdl.main import main

PAGE = (Path(__file__).parents[3] / "docs/cost.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def built_in_prices(monkeypatch):
    monkeypatch.delenv("SUPER_PRICES", raising=False)


def printed(capsys, *words: str) -> str:
    assert main(["cost", *words]) == 0
    return capsys.readouterr().out


def loaders(capsys, *words: str) -> list[dict]:
    return json.loads(printed(capsys, "--json", *words))["loaders"]


def test_the_text_says_what_it_assumes_and_leaves_out(capsys):
    text = printed(capsys, "--set", "jobs=8", "--set", "random=true")
    for words in (
        "imagenet: 1,281,167 samples, 8 jobs, in step, 90 epochs each on g4dn.xlarge (1 x T4);",
        "the recipe is random",
        "SUPER with Lambda: held back by the cache's network; functions at once in a first epoch: 1",
        "no row for LitData raw: a random recipe",
        "jobs = 8: jobs at the same time, a training machine each (given)",
        "s3_cpu_ms = 2.75 ms: ",
        "(assumed: its Python thread)",
        "(measured: superdl bench function)",
        "us-east-1, 2026-11",
        "looked up: endpoint.gb, others",
    ):
        assert words in text


def test_json_adds_up(capsys):
    answer = json.loads(printed(capsys, "tiny-imagenet-64", "--json", "--set", "cache_nodes=2"))
    assert answer["scenario"]["name"] == "tiny-imagenet-64"
    assert answer["cache_samples"] > 100_000
    assert {entry["name"] for entry in answer["inputs"]} == answer["scenario"].keys() - {"name"}
    assert len(answer["loaders"]) == 4
    for loader in answer["loaders"]:
        for period in ("first", "later", "month"):
            costs = loader[period]
            assert costs["usd"] == pytest.approx(sum(costs[part] for part in PARTS))


def test_a_price_table_of_ones_own_counts(capsys, tmp_path, monkeypatch):
    before = loaders(capsys)[0]["month"]["trainer_usd"]
    file = tmp_path / "mine.toml"
    file.write_text('[machine."g4dn.xlarge"]\nhour = 100\n')
    monkeypatch.setenv("SUPER_PRICES", str(file))
    assert loaders(capsys)[0]["month"]["trainer_usd"] == pytest.approx(before * 100 / 0.526)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cifar"], "a preset is one of"),
        (["--set", "machine=abacus"], "no machine 'abacus'"),
        (["--set", "cache_node=tin"], "no cache_node 'tin'"),
    ],
)
def test_wrong_use_is_refused(capsys, words, reason):
    assert main(["cost", *words]) == 2
    assert reason in capsys.readouterr().err


def test_a_month_that_takes_longer_than_a_month_says_so(capsys):
    text = printed(capsys, "--set", "images_per_s=5")
    assert "90 epochs take up to 6,406 hours, a month has 730" in text
    assert "a month has" not in printed(capsys)


def test_the_page_has_what_its_command_prints(capsys):
    ((command, text),) = re.findall(r"^\$ superdl cost (.*)\n(imagenet: [^`]*)^```", PAGE, re.MULTILINE)
    lines = [line.rstrip() for line in printed(capsys, *shlex.split(command)).splitlines()]
    assert "\n".join(lines).partition("\nwhat this assumes")[0] == text


def test_the_months_of_the_page_are_the_commands(capsys):
    heads, _, *rows = re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        workload, *months = (cell.strip() for cell in row.split("|"))
        settings = re.findall(r"\w+=[\w.]+", workload)
        bills = loaders(capsys, *(word for setting in settings for word in ("--set", setting)))
        assert [bill["tag"] for bill in bills] == [cell.strip() for cell in heads.split("|")[1:]]
        assert [f"{bill['month']['usd']:,.2f}" for bill in bills] == months
