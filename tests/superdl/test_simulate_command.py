"""``superdl simulate`` as people type it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from superdl.main import main

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """
name: small
datasets: [{name: data, samples: 500, image: 32}]
jobs: [{batch_size: 20, step_s: 0.05, workers: 2}]
functions: {kind: pool, concurrency: 2, decode_s: 0.01}
cache: {budget_gb: 0.01}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "small.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return str(file)


def a_pass(samples: int, *, invocations: int = 0, wall_s: float = 1.0) -> dict:
    batches = -(-samples // 20)
    job = {"invocations": invocations, "samples_produced": samples if invocations else 0}
    job |= {"fetch_s": 0.01, "decode_s": samples * 0.001, "push_s": 0.01} if invocations else {}
    return {
        "samples": samples,
        "batches": batches,
        "wall_s": wall_s,
        "first_batch_s": 0.1,
        "wait_s": 0.2,
        "read_s": 0.1,
        "hits": samples,
        "misses": 0,
        "size_bytes": samples * 3136,
        "job": {"fetch_s": 0.0, "decode_s": 0.0, "push_s": 0.0, **job},
    }


def a_report() -> dict:
    return {
        "format": 1,
        "name": "measured",
        "status": "finished",
        "spec": {"loader": {"kind": "super", "batch_size": 20, "num_workers": 2}},
        "environment": {"usable_cpus": 2},
        "epochs": [
            {"epoch": 0, "train": a_pass(500, invocations=9, wall_s=2.0), "val": a_pass(60, invocations=2)},
            {"epoch": 1, "train": a_pass(500), "val": None},
        ],
    }


def test_rows_say_that_they_are_simulated(spec, capsys, tmp_path):
    output = tmp_path / "out.json"
    assert main(["simulate", spec, "--json", "--output", str(output), "--set", "jobs=null"]) == 2
    assert main(["simulate", spec, "--json", "--check", "--output", str(output)]) == 0
    told = capsys.readouterr()
    mapping = json.loads(told.out)
    assert mapping == json.loads(output.read_text(encoding="utf-8"))
    assert mapping["simulated"] is True
    (row,) = mapping["rows"]
    assert row["simulated"] is True
    assert row["samples_read"] == 500
    assert "small, simulated" in told.err


@pytest.mark.parametrize("version", [1, 2])
def test_a_prediction_stands_beside_what_was_measured(spec, capsys, tmp_path, version):
    (tmp_path / "report.json").write_text(json.dumps(a_report() | {"format": version}), encoding="utf-8")
    assert main(["simulate", spec, "--json", "--beside", str(tmp_path)]) == 0
    mapping = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in mapping["beside"]["figures"]}
    assert figures["train: invocations"]["measured"] == 9
    assert figures["train: images/s"]["measured"] == pytest.approx(1000 / 3.0)
    assert figures["train: images/s"]["ratio"] == pytest.approx(1.0, abs=0.2)
    assert figures["val: hit rate"]["measured"] == 1.0
    jobs = {job["name"]: job for job in mapping["spec"]["jobs"]}
    assert jobs["train"]["step_s"] == pytest.approx((3.0 - 0.4) / 50)
    assert mapping["spec"]["functions"]["decode_s"] == pytest.approx(0.001)
    assert mapping["spec"]["datasets"][0]["record_bytes"] == 3136


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "failed"}, "has not finished"),
        ({"format": 7}, "no report of superdl run"),
        ({"spec": {"loader": {"kind": "torch"}}}, "another loader"),
    ],
)
def test_only_finished_runs_are_compared(spec, capsys, tmp_path, change, message):
    (tmp_path / "report.json").write_text(json.dumps(a_report() | change), encoding="utf-8")
    assert main(["simulate", spec, "--beside", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
