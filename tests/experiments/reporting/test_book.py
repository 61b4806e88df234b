"""The log book: rows from what runs left, whole or not; what is broken is named, what is hostile is text."""

import csv
import json
import shutil

import pytest

from superdl.experiments.reporting.run_files import read_book, write_book
from superdl.main import main
from superdl.super_wire.errors import ConfigError
from tests.experiments.reporting.conftest import NAME
from tests.fixtures.pages import read_page


@pytest.fixture
def runs(finished, tmp_path):
    """Four runs, one of them in a comparison's directory: whole, on a GPU, failed, killed."""
    root = tmp_path / "runs"
    for name in ("whole", "gpu-compare/runs/gpu", "=failed", "killed"):
        shutil.copytree(finished, root / name)
    change(root / "whole", started_at="2026-11-20T10:00:00+00:00")
    report = json.loads((root / "whole/report.json").read_text())
    phases = report["utilization"]["phases"]
    for phase, busy in zip([one for one in phases if one["split"] == "train"], (50.0, 80.0), strict=True):
        phase |= {"wall_s": busy, "gpu_percent": busy, "gpu_memory_bytes_max": busy * 1e8}
    spec = report["spec"] | {"cost": {"machine": "g4dn.xlarge", "machines": 2}}
    figures = {"val_accuracy": 0.637, "val_top5_accuracy": 0.9, "utilization": {"phases": phases}}
    figures |= {"strategy": "fsdp", "ranks": 4, "precision": "bf16", "spec": spec}
    change(root / "gpu-compare/runs/gpu", started_at="2026-11-22T10:00:00+00:00", **figures)
    failed = {"status": "failed", "reason": "OutOfMemoryError: 2 GiB", "epochs": [], "val_accuracy": None}
    change(root / "=failed", started_at="2026-11-21T10:00:00+00:00", images_per_s=None, **failed)
    killed = {"status": "running", "epochs": report["epochs"][:1], "bill": None}
    change(root / "killed", started_at="2026-11-23T10:00:00+00:00", **killed)
    return root


def change(directory, **values):
    path = directory / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_row_for_each_run_the_oldest_first(runs):
    book = read_book(runs)
    whole, failed, gpu, killed = book.rows
    assert [row["run"] for row in book.rows] == ["whole", "=failed", "gpu-compare/runs/gpu", "killed"]
    assert book.broken == {}
    assert (gpu["machine"], gpu["strategy"], gpu["ranks"], gpu["precision"]) == (
        "2 x g4dn.xlarge",
        "fsdp",
        4,
        "bf16",
    )
    assert (gpu["top-1 (% right)"], gpu["top-5 (% right)"]) == (63.7, 90.0)
    assert gpu["GPU (% busy)"] == pytest.approx((50 * 50 + 80 * 80) / 130)
    assert gpu["GPU memory (most, GB)"] == 8.0
    report = json.loads((runs / "whole/report.json").read_text())
    assert (whole["time (s)"], whole["throughput (images/s)"]) == (report["wall_s"], report["images_per_s"])
    assert (whole["epochs"], whole["batch (a rank)"], whole["cost (USD)"]) == (2, 8, report["bill"]["usd"])
    trained = [epoch["train"] for epoch in report["epochs"]]
    waited, took = (sum(one[name] for one in trained) for name in ("wait_s", "wall_s"))
    assert whole["waiting (% of training)"] == pytest.approx(100 * waited / took)
    assert "cores of" in whole["machine"]
    assert failed["how it ended"] == "failed: OutOfMemoryError: 2 GiB"
    assert (killed["how it ended"], killed["epochs"], killed["cost (USD)"]) == ("running", 1, None)


def test_page_and_csv_have_all_rows_and_attacks_are_text(runs):
    page, sheet = write_book(read_book(runs))
    shown = read_page(page.read_text(encoding="utf-8"))
    assert (shown.title, shown.loads, "script" in shown.tags) == ("Log book of runs", [], False)
    assert shown.text.count(NAME) == 4
    table = shown.table("All runs")
    assert [row[0] for row in table.rows] == ["whole", "=failed", "gpu-compare/runs/gpu", "killed"]
    assert table.head[:4] == ["run", "begun", "name", "how it ended"]
    with sheet.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == ["whole", "'=failed", "gpu-compare/runs/gpu", "killed"], (
        "no formula"
    )
    assert float(rows[2]["GPU memory (most, GB)"]) == 8.0
    assert {row["name"] for row in rows} == {NAME}
    assert write_book(read_book(runs)) == (page, sheet), "its own files are no runs"


def test_broken_directories_are_named_and_do_no_harm(runs, capsys):
    (runs / "empty").mkdir()
    for name, content in {
        "list": [],
        "odd": {"epochs": "none"},
        "vast": {"wall_s": 10**400},
        "cell": {"spec": {"model": {"name": ["x"]}}},
    }.items():
        (runs / name).mkdir()
        (runs / name / "report.json").write_text(json.dumps(content))
    (runs / "cut").mkdir()
    (runs / "cut/report.json").write_text('{"name": "cut", "st')
    (runs / "deep").mkdir()
    (runs / "deep/report.json").write_text('{"spec": ' + "[" * 100_000)
    (runs / "link").symlink_to(runs / "whole")
    (runs / "killed/steps.jsonl").write_text("[]\n")
    assert main(["report", "--book", str(runs)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{runs / 'book.html'}\n{runs / 'book.csv'}\n"
    for words in (
        "empty: it contains no run",
        "link: it contains no run",
        "odd: it contains no run that this version can read (AttributeError: ",
        "list: its files contain no run",
        "vast: it contains no run that this version can read (OverflowError: ",
        "deep: ",
        "cell: it contains no run that this version can read (TypeError: a figure is ['x']",
        "cut: report.json cannot be read",
        "killed: steps.jsonl has 1 line(s) that this version cannot read",
    ):
        assert words in told.err
    page = read_page((runs / "book.html").read_text(encoding="utf-8"))
    assert page.headings == ["Unreadable or incomplete runs"]
    assert {row[0] for row in page.table("All runs").rows} == {
        "whole",
        "=failed",
        "killed",
        "gpu-compare/runs/gpu",
    }
    assert main(["report", "--book", str(runs), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(page.table("All runs").rows)


def test_what_holds_no_runs_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="contains no runs"):
        read_book(tmp_path)
    assert main(["report", "--book", str(tmp_path / "absent")]) == 2
    assert "absent cannot be read: No such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
