"""The benchmarks end to end, as small as they can be: the output has the structure that readers count on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import BENCHMARKS
from benchmarks.loaders.contenders import CONTENDERS
from superdl.main import main
from tests.pages.commands import check
from tests.pages.markdown import ROOT

PARTS = ("main", "workers", "cache", "coordinator", "functions", "store")


def run_json(capsys, *words):
    assert main(["bench", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def check_envelope(report, benchmark):
    assert report["format"] == 2
    assert report["benchmark"] == benchmark
    assert report["method"]
    assert report["environment"]["packages"]["torch"]
    assert report["environment"]["cpu_model"]


@pytest.mark.slow
def test_read_compares_all_loaders_on_the_same_images(capsys, tmp_path):
    photos = 100  # one for each class
    words = ["--images", "photos", "--photos", str(photos), "--batch-size", "64", "--workers", "0", "1"]
    output = tmp_path / "report.json"
    short = ["--rounds", "1", "--epochs", "1", "--data", str(tmp_path), "--output", str(output)]

    report = run_json(capsys, "read", *words, *short)

    check_envelope(report, "read")
    assert json.loads(output.read_text()) == report
    rows = {(row["contender"], row["num_workers"]): row for row in report["rows"]}
    assert rows.keys() == {
        (name, workers)
        for name, form in CONTENDERS.items()
        for workers in (0, 1)
        if form.workers_of(workers) == workers and not form.missing()
    }
    for form in CONTENDERS.values():
        absent = any(line.startswith(f"{form.title}: not installed") for line in report["method"])
        assert absent == bool(form.missing())
    for (_, workers), row in rows.items():
        parts = {part: row[f"{part}_cpu_ms_per_image"] for part in PARTS}
        assert row["cpu_ms_per_image"] == pytest.approx(parts["main"] + parts["workers"])
        assert row["images_per_s"] > 0
        if workers == 0:  # a loader may keep helpers, but what decodes or reads is the main process
            assert parts["main"] > parts["workers"]
        assert row["times_less_than_pillow"] > 0
    assert rows["boto3", 0]["store_cpu_ms_per_image"] > 0
    assert {row["epoch"] for row in report["rows"]} == {"later"}
    assert rows["super", 0]["times_socket_loop"] > 0
    assert rows["super-loader", 0]["times_socket_loop"] > 0
    for run in report["rounds"]:
        assert run["images"] == photos
        assert run["produced"] == 0
    assert len({run["checksum"] for run in report["rounds"]}) == 1
    assert {run["round"] for run in report["rounds"]} == {1}


@pytest.mark.slow
def test_read_measures_chosen_loaders_only_in_interleaved_rounds(capsys, tmp_path):
    loaders = ["socket", "super", "super-loader"]
    words = ["--images", "digits", "--contenders", *loaders, "--workers", "0", "1"]

    report = run_json(capsys, "read", *words, "--rounds", "2", "--epochs", "1", "--data", str(tmp_path))

    rows = {(row["contender"], row["num_workers"]): row for row in report["rows"]}
    assert rows.keys() == {("super", 0), ("super", 1), ("socket", 0), ("super-loader", 0)}
    assert rows["super", 0]["times_less_than_pillow"] is None
    assert [run["round"] for run in report["rounds"]] == [1] * 4 + [2] * 4
    assert len({run["checksum"] for run in report["rounds"]}) == 1


@pytest.mark.slow
def test_read_counts_the_gets_of_both_readers_of_the_same_shards(capsys, tmp_path):
    words = ["--from", "shards", "--images", "photos", "--photos", "200", "--batch-size", "64"]

    report = run_json(capsys, "read", *words, "--workers", "0", "1", "--rounds", "1", "--data", str(tmp_path))

    check_envelope(report, "read")
    assert report["settings"]["source"] == "shards"
    assert report["environment"]["packages"]["webdataset"]
    rows = {(row["contender"], row["num_workers"], row["epoch"]): row for row in report["rows"]}
    arms = [("webdataset", 0), ("webdataset", 1), ("super-loader", 0)]
    assert rows.keys() == {(*arm, epoch) for arm in arms for epoch in ("first", "second")}
    gets = {key: 200 * row["gets_per_image"] for key, row in rows.items()}
    assert gets["webdataset", 1, "first"] == gets["webdataset", 1, "second"] == pytest.approx(2)
    assert 2 <= gets["super-loader", 0, "first"] < 200, "neighbours come with a member"
    assert gets["super-loader", 0, "second"] == 0
    for (name, _, epoch), row in rows.items():
        assert 0 < row["first_batch_ms"] < 1e3 * 200 / row["images_per_s"]
        parts = {part: row[f"{part}_cpu_ms_per_image"] for part in PARTS}
        assert row["cpu_of_all_ms_per_image"] == pytest.approx(sum(parts.values()) - parts["store"])
        assert (parts["coordinator"] > 0) == (name == "super-loader")
        assert (parts["store"] > 0) or (name, epoch) == ("super-loader", "second")
    assert rows["super-loader", 0, "first"]["functions_cpu_ms_per_image"] > 0
    assert max(rows["webdataset", workers, "second"]["share_of_webdataset"] for workers in (0, 1)) == 1
    assert [run["images"] for run in report["rounds"]] == [200] * 6
    assert len({run["checksum"] for run in report["rounds"]}) == 1


@pytest.mark.slow
def test_coordinator_reports_what_batches_jobs_and_listings_cost(capsys):
    words = ["--samples", "60000", "--jobs", "1", "10", "--rate", "300", "--seconds", "1", "--rounds", "1"]
    report = run_json(capsys, "coordinator", *words)

    check_envelope(report, "coordinator")
    rows = {(row["way"], row["jobs"]): row for row in report["rows"] if row["part"] == "jobs"}
    ways = ("cached", "cached, flat out", "random recipe")
    assert rows.keys() == {(way, jobs) for way in ways for jobs in (1, 10)}
    for (way, _), row in rows.items():
        assert row["batches"] > 0
        assert row["cpu_ms_per_batch"] * row["batches_per_cpu_s"] == pytest.approx(1e3)
        assert row["open_ms"] > 0
        assert row["rss_mb"] > 0
        assert (row["produced_per_batch"] > 0) == (way == "random recipe")
    listings = [row for row in report["rows"] if row["part"] == "listing"]
    assert [row["source"] for row in listings] == ["s3", "parquet"]
    for row in listings:
        assert row["cpu_us_per_sample"] > 0
        assert row["check_p99_ms"] > 0
        assert row["peak_mb"] > 0
        assert row["restart_s"] > 0


@pytest.mark.slow
def test_train_compares_equal_training(capsys, tmp_path):
    words = ["--images", "digits", "--workers", "1", "--width", "2", "--epochs", "1", "--rounds", "1"]

    report = run_json(capsys, "train", *words, "--data", str(tmp_path))

    check_envelope(report, "train")
    rows = {(row["contender"], row["epochs"]): row for row in report["rows"]}
    assert rows.keys() == {
        ("pillow", "later"),
        *((loader, part) for loader in ("super", "super-loader") for part in ("cold", "warm")),
    }
    assert all(0 < row["wait_percent"] < 100 and row["step_ms"] > 0 for row in rows.values())
    assert rows["super", "cold"]["functions_cpu_ms_per_image"] > 0
    assert report["settings"]["decode_to_compute"] > 0
    assert report["settings"]["workers"] == 1
    assert "data" not in report["settings"], "a path of the machine"
    assert report["settings"]["loss_difference_max"] == pytest.approx(0, abs=1e-4)
    assert len({run["checksum"] for run in report["rounds"]}) == 1
    produced = {(run["contender"], run["epoch"]): run["produced"] for run in report["rounds"]}
    assert produced["pillow", 0] == produced["pillow", 1] == produced["super", 1] == 0
    assert produced["super", 0] > 0


@pytest.mark.slow
def test_store_counts_what_is_decoded_and_asked_for_in_every_row(capsys, tmp_path):
    report = run_json(capsys, "store", "--images", "digits", "--epochs", "2", "--data", str(tmp_path))

    check_envelope(report, "store")
    figures = {}
    for row in report["rows"]:
        arms = figures.setdefault(row["row"], {})
        for name, value in row.items():
            arms.setdefault(row["arm"], {}).setdefault(name, []).append(value)
        if row["cpu_ms"] is not None:
            assert row["images_per_s"] > 0
            assert row["cpu_of_all_ms"] >= row["cpu_ms"] > 0
    assert figures.keys() == {"saved", "straight", "disk", "s3"}
    decodes = {arm: columns["decodes"] for arm, columns in figures["saved"].items()}
    assert decodes["cache holds all"] == [1, 0]
    assert sum(decodes["cache holds a quarter"]) > 1.5
    assert sum(decodes["a quarter, and a store"]) == pytest.approx(1, abs=0.01)
    assert decodes["the same, started again"] == [0, 0]
    assert decodes["bare preadv and hash"] == decodes["pillow, 2 workers"] == [None, None]
    assert figures["straight"]["SuperLoader, packs"]["decodes"] == [0, 0]
    assert figures["straight"]["bare preadv and hash"]["cpu_times_bare"][1] == 1
    for title in ("LitData raw", "MDS raw"):
        assert {title, f"{title}: not installed"} & figures["straight"].keys()
    assert len(figures["disk"]) == 2
    # The last answers may come in the next epoch.
    assert sum(figures["s3"]["S3 store, empty"]["decodes"]) == pytest.approx(1, abs=0.01)
    assert figures["s3"]["a later job"]["decodes"] == [0, 0]
    assert 0 < figures["s3"]["a later job"]["gets"][0] < 0.5


@pytest.mark.parametrize("words", [[], ["read", "--json"]])
def test_without_a_checkout_it_says_that_one_is_needed(words, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "benchmarks", None)  # as import finds it where there is none

    assert main(["bench", *words]) == 2
    assert "need a checkout" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_of_a_checkout_has_the_benchmarks_wherever_it_is_called(tmp_path):
    command = [Path(sys.executable).with_name("superdl"), "bench", "read", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "--contenders" in done.stdout


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


def test_wrong_use_is_refused(capsys):
    for words in (
        ["read", "--batch-size", "0"],
        ["read", "--contenders", "x"],
        ["read", "--workers", "-1"],
        ["nothing"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(["bench", *words])
        assert caught.value.code == 2
    assert "--workers" in capsys.readouterr().err


def test_contenders_that_read_no_shards_are_refused(capsys, tmp_path):
    words = ["--from", "shards", "--contenders", "pillow", "--data", str(tmp_path)]
    assert main(["bench", "read", *words]) == 1
    assert "webdataset, super-loader" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_function_compares_its_ways_with_a_bare_loop(capsys):
    report = run_json(
        capsys, "function", "--images", "digits", "--cores", "1", "--rounds", "1", "--passes", "1"
    )

    check_envelope(report, "function")
    rows = {row["way"]: row for row in report["rows"]}
    assert list(rows) == ["bare loop", "S3"]
    assert rows["bare loop"]["share_of_bare"] is None
    assert rows["S3"]["share_of_bare"] > 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="holds processes to cores")
def test_train_needs_two_cores(capsys, tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert main(["bench", "train", "--data", str(tmp_path)]) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert "it needs at least 2" in capsys.readouterr().err
