"""A benchmark's report: tables by group, a dash for what there is not, the machine named."""

from __future__ import annotations

import io
import json

from rich.console import Console

from benchmarks.report import BenchmarkReport, Column, describe_machine, print_report, to_json

REPORT = BenchmarkReport(
    benchmark="read",
    started_at="2026-01-01T00:00:00+00:00",
    wall_s=1.5,
    settings={"rounds": 1},
    method=("How it was measured.",),
    group_by=("images",),
    columns=(Column("loader", "loader"), Column("cpu_ms", "CPU ms", ".3f")),
    rows=(
        {"images": "a", "loader": "one", "cpu_ms": 0.12345},
        {"images": "b", "loader": "two", "cpu_ms": None},
    ),
    rounds=(),
    environment=describe_machine(),
)


def printed() -> str:
    console = Console(file=io.StringIO(), width=100)
    print_report(REPORT, console)
    return console.file.getvalue()


def test_tables_are_by_group():
    lines = printed().splitlines()
    assert [line.strip() for line in lines if line.startswith("read, ")] == [
        "read, images a",
        "read, images b",
    ]


def test_numbers_are_formatted_and_what_is_absent_is_a_dash():
    words = printed().split()
    assert "0.123" in words
    assert words[words.index("two") + 1] == "-"


def test_method_machine_and_versions_are_named():
    text = printed()
    assert "How it was measured." in text
    assert REPORT.environment["cpu_model"] in text
    assert f"torch {REPORT.environment['packages']['torch']}" in text


def test_json_has_the_figures_and_not_the_layout():
    mapping = json.loads(to_json(REPORT))
    assert mapping["rows"][0]["cpu_ms"] == 0.12345
    assert not {"columns", "group_by"} & set(mapping)
