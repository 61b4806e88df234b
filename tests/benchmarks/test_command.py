"""All benchmarks end to end, as small as possible."""

import json
import re
import sys

import pytest

from benchmarks import BENCHMARKS
from benchmarks.loaders.contenders import CONTENDERS
from superdl.main import main
from tests.pages.commands import check
from tests.pages.markdown import ROOT


def run_json(capsys, *words):
    assert main(["bench", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def check_envelope(report, benchmark):
    assert report["format"] == 3
    assert report["benchmark"] == benchmark
    assert report["method"]
    assert report["environment"]["packages"]["torch"]
    assert report["environment"]["memory_bytes"]


@pytest.mark.slow
def test_read_compares_all_loaders_on_the_same_images(capsys, tmp_path):
    words = ["--images", "photos", "--photos", "100", "--batch-size", "64", "--workers", "0", "1"]

    report = run_json(capsys, "read", *words, "--rounds", "1", "--epochs", "1", "--data", str(tmp_path))

    check_envelope(report, "read")
    rows = {(row["loader"], row["num_workers"]): row for row in report["rows"]}
    assert rows.keys() == {
        (form.title, workers)
        for form in CONTENDERS.values()
        for workers in (0, 1)
        if form.workers_of(workers) == workers and not form.missing()
    }
    for form in CONTENDERS.values():
        absent = any(line.startswith(f"{form.title}: not installed") for line in report["method"])
        assert absent == bool(form.missing())
    for (_, workers), row in rows.items():
        if workers == 0:  # a loader may keep helpers, but what decodes or reads is the main process
            assert row["main_cpu_ms"] > row["workers_cpu_ms"]
    assert rows["DataLoader + boto3", 0]["s3_cpu_ms"] > 0
    assert {row["epoch"] for row in report["rows"]} == {"later"}
    assert len({run["checksum"] for run in report["runs"]}) == 1


@pytest.mark.slow
def test_read_counts_the_gets_of_the_first_epoch_of_shards(capsys, tmp_path):
    words = ["--from", "shards", "--images", "photos", "--photos", "200", "--batch-size", "64"]

    report = run_json(capsys, "read", *words, "--workers", "0", "1", "--rounds", "1", "--data", str(tmp_path))

    rows = {(row["loader"], row["num_workers"], row["epoch"]): row for row in report["rows"]}
    arms = [("WebDataset", 0), ("WebDataset", 1), ("SuperLoader", 0)]
    assert rows.keys() == {(*arm, epoch) for arm in arms for epoch in ("first", "second")}
    first, second = (rows["SuperLoader", 0, epoch] for epoch in ("first", "second"))
    assert 2 <= 200 * first["gets"] < 200, "neighbours come with a member"
    assert (second["gets"], second["decodes"]) == (0, 0)
    assert first["functions_cpu_ms"] > 0
    for (name, _, epoch), row in rows.items():
        assert 0 < row["first_batch_ms"] < 1e3 * 200 / row["images_per_s"]
        assert (row["coordinator_cpu_ms"] > 0) == (name == "SuperLoader")
        assert (row["s3_cpu_ms"] > 0) or (name, epoch) == ("SuperLoader", "second")
    assert len({run["checksum"] for run in report["runs"]}) == 1


@pytest.mark.slow
def test_coordinator_reports_what_batches_jobs_and_listings_cost(capsys):
    words = ["--samples", "60000", "--jobs", "1", "10", "--rate", "300", "--seconds", "1", "--rounds", "1"]
    report = run_json(capsys, "coordinator", *words)

    check_envelope(report, "coordinator")
    rows = {(row["way"], row["jobs"]): row for row in report["rows"] if row["part"] == "jobs"}
    assert rows.keys() == {(way, jobs) for way in ("cached, flat out", "random recipe") for jobs in (1, 10)}
    assert all(row["batches_per_cpu_s"] > row["batches_per_s"] * 0.5 > 0 for row in rows.values())
    listings = [row for row in report["rows"] if row["part"] == "listing"]
    assert [row["source"] for row in listings] == ["s3", "parquet"]
    for name in ("cpu_us_per_sample", "check_p99_ms", "peak_mb", "restart_s"):
        assert all(row[name] > 0 for row in listings), name


@pytest.mark.slow
def test_train_compares_training_on_the_same_images(capsys, tmp_path):
    # Of width 2, torch 2.13 corrupts its heap on processors without AVX-512.
    words = ["--images", "digits", "--workers", "1", "--width", "8", "--epochs", "1", "--rounds", "1"]

    report = run_json(capsys, "train", *words, "--data", str(tmp_path))

    check_envelope(report, "train")
    rows = {(row["loader"], row["epochs"]): row for row in report["rows"]}
    loaders = ("DataLoader + Pillow", "SUPER", "SuperLoader")
    assert rows.keys() == {(loader, part) for loader in loaders for part in ("first", "later")}
    assert all(0 < row["wait_percent"] < 100 and row["step_ms"] > 0 for row in rows.values())
    assert rows["SUPER", "first"]["functions_cpu_ms"] > 0
    assert rows["DataLoader + Pillow", "later"]["workers_cpu_ms"] > 0
    assert len({run["checksum"] for run in report["runs"]}) == 1
    assert rows["SUPER", "first"]["decodes"] > 0
    assert rows["SUPER", "later"]["decodes"] == 0


@pytest.mark.slow
def test_store_counts_what_is_decoded_and_asked_for_in_every_row(capsys, tmp_path):
    report = run_json(capsys, "store", "--images", "digits", "--epochs", "2", "--data", str(tmp_path))

    check_envelope(report, "store")
    figures = {}
    for row in report["rows"]:
        figures.setdefault((row["row"], row["arm"]), []).append(row)
    decodes = {arm: [row.get("decodes") for row in rows] for arm, rows in figures.items()}
    assert decodes["saved", "cache holds all"] == [1, 0]
    assert sum(decodes["saved", "cache holds a quarter"]) > 1.5
    assert sum(decodes["saved", "a quarter, and a store"]) == pytest.approx(1, abs=0.01)
    assert decodes["saved", "the same, started again"] == [0, 0]
    assert decodes["saved", "pillow, 2 workers"] == [None, None]
    assert decodes["straight", "SuperLoader, packs"] == [0, 0]
    absent = any(line.startswith("LitData raw: not installed") for line in report["method"])
    assert (("straight", "LitData raw") in figures) != absent
    # The last answers may come in the next epoch.
    assert sum(decodes["s3", "S3 store, empty"]) == pytest.approx(1, abs=0.01)
    assert decodes["s3", "a later job"] == [0, 0]
    assert 0 < figures["s3", "a later job"][0]["gets"] < 0.5


@pytest.mark.parametrize("words", [[], ["read", "--json"]])
def test_without_a_checkout_it_says_that_one_is_needed(words, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "benchmarks", None)  # as import finds it where there is none

    assert main(["bench", *words]) == 2
    assert "need a checkout" in capsys.readouterr().err


def test_the_page_names_commands_that_exist_and_every_benchmark():
    named = set()
    for section in (ROOT / "docs/performance.md").read_text(encoding="utf-8").split("\n## "):
        commands = re.findall(r"`superdl bench (\w+)([^`]*)`", section)
        named |= {benchmark for benchmark, _ in commands}
        for benchmark, words in commands:
            check(f"superdl bench {benchmark} {words}")
        for words in re.findall(r"`(--[^`]+)`", section) if commands else ():
            check(f"superdl bench {commands[0][0]} {words}")
    assert named == BENCHMARKS.keys()


@pytest.mark.slow
def test_function_compares_its_ways_with_a_bare_loop(capsys):
    report = run_json(capsys, "function", "--images", "digits", "--rounds", "1", "--passes", "1")

    check_envelope(report, "function")
    assert [row["way"] for row in report["rows"]] == ["bare loop", "S3"]
    assert all(row["images_per_s"] > 0 and row["cpu_ms"] > 0 for row in report["rows"])
