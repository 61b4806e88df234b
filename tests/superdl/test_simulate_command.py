"""``superdl simulate`` as people type it."""

from __future__ import annotations

import json

import pytest

from superdl.main import main

SPEC = """
name: small
datasets: [{name: data, samples: 500, image: 32}]
jobs: [{batch_size: 20, step_s: 0.05, workers: 2}]
functions: {kind: pool, concurrency: 2, decode_s: 0.01}
cache: {budget_gb: 0.01}
"""


@pytest.fixture
def spec(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return str(file)


def test_rows_say_that_they_are_simulated(spec, capsys, tmp_path):
    output = tmp_path / "out.json"
    assert main(["simulate", spec, "--json", "--output", str(output), "--set", "jobs=null"]) == 2
    assert main(["simulate", spec, "--json", "--output", str(output)]) == 0
    told = capsys.readouterr()
    mapping = json.loads(told.out)
    assert mapping == json.loads(output.read_text(encoding="utf-8"))
    assert mapping["simulated"] is True
    (row,) = mapping["rows"]
    assert row["simulated"] is True
    assert row["samples_read"] == 500
    assert "small, simulated" in told.err


def test_a_sweep_gives_a_row_each(spec, capsys, tmp_path):
    file = tmp_path / "swept.yaml"
    file.write_text(SPEC + "sweep: {concurrency: [1, 2], cache_gb: [0.01]}\n", encoding="utf-8")
    assert main(["simulate", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["swept"] for row in rows] == [
        {"concurrency": 1, "cache_gb": 0.01},
        {"concurrency": 2, "cache_gb": 0.01},
    ]
