"""The output of ``superdl cost``: tables, JSON, and the figures in docs/performance.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

from superdl.cost.model import PARTS
from superdl.main import main

WAYS = (
    *("SUPER with Lambda", "SUPER embedded", "SUPER embedded, store on NVMe"),
    *("decoding from S3", "LitData raw"),
)
PERFORMANCE = (Path(__file__).parents[3] / "docs/performance.md").read_text(encoding="utf-8")
PAGE = PERFORMANCE.partition("\n## Cost\n")[2].partition("\n## ")[0]


@pytest.fixture(autouse=True)
def built_in_prices(monkeypatch):
    monkeypatch.delenv("SUPER_PRICES", raising=False)


def printed(capsys, *words):
    assert main(["cost", *words]) == 0
    return capsys.readouterr().out


def loaders(capsys, *words):
    return json.loads(printed(capsys, "--json", *words))["loaders"]


def test_a_way_that_is_not_possible_keeps_its_row(capsys):
    text = printed(capsys, "--machine", "p3.2xlarge")
    assert re.search(r"store on +- +- +- +- +p3.2xlarge has no NVMe", text)


def test_all_shows_each_input_with_its_origin(capsys):
    text = printed(capsys, "--jobs", "8", "--all")
    for name, origin in {"jobs = 8": "(given)", "s3_cpu_ms = 2.75 ms": "(measured", "(assumed": ""}.items():
        (line, *_) = [line for line in text.splitlines() if name in line]
        assert origin in line
    assert "endpoint.gb" in text


def test_json_has_the_inputs_and_each_part_of_a_sum(capsys):
    answer = json.loads(printed(capsys, "--json", "--images", "20000", "--set", "cache_nodes=2"))
    inputs = {entry["name"]: entry["value"] for entry in answer["inputs"]}
    assert (inputs["samples"], inputs["cache_nodes"]) == (20_000, 2)
    ways = [loader["tag"] for loader in answer["loaders"]]
    assert ways == [way for way in WAYS if "store" not in way], "memory holds all of it"
    for costs in (loader[period] for loader in answer["loaders"] for period in ("first", "later", "month")):
        assert costs["usd"] == pytest.approx(sum(costs[part] for part in PARTS))


def test_a_price_table_of_ones_own_counts(capsys, tmp_path, monkeypatch):
    before = loaders(capsys)[0]["month"]["trainer_usd"]
    file = tmp_path / "mine.toml"
    file.write_text('[machine."g4dn.xlarge"]\nhour = 100\n')
    monkeypatch.setenv("SUPER_PRICES", str(file))
    assert loaders(capsys)[0]["month"]["trainer_usd"] == pytest.approx(before * 100 / 0.526)


def test_the_page_has_what_its_command_prints(capsys):
    ((command, text),) = re.findall(r"^\$ superdl cost (.*)\n(\d[^`]*)^```", PAGE, re.MULTILINE)
    lines = [line.rstrip() for line in printed(capsys, *shlex.split(command)).splitlines()]
    assert lines[:-1] == text.splitlines(), "all but where the rest is shown"


def test_the_months_of_the_page_are_the_commands(capsys):
    heads, _, *rows = re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        workload, *months = (cell.strip() for cell in row.split("|"))
        settings = re.findall(r"\w+=[\w.]+", workload)
        bills = loaders(capsys, *(word for setting in settings for word in ("--set", setting)))
        assert [bill["tag"] for bill in bills] == [cell.strip() for cell in heads.split("|")[1:]]
        assert [f"{bill['month']['usd']:,.2f}" for bill in bills] == months
