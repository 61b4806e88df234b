"""The command as people type it, in processes of its own."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.protocol import installed_version
from tests.fixtures.images import SIDE

SUPERDL = Path(sys.executable).with_name("superdl")
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def superdl(*words, cwd=None):
    return subprocess.run(  # our own command
        [str(SUPERDL), *words], capture_output=True, text=True, timeout=280, check=False, cwd=cwd
    )


@pytest.mark.parametrize("columns", ["10", "80", "200"])
def test_help_groups_the_commands_by_what_they_are_for(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main(["--help"])
    groups = {}
    overview = capsys.readouterr().out.partition("\nload:")[2]
    for line in f"load:{overview}".splitlines():
        if group := re.fullmatch(r"(\w+):", line):
            groups[group[1]] = []
        elif command := re.match(r"    (\w+) +\S", line):
            groups[list(groups)[-1]].append(command[1])
    assert groups == {
        "load": ["doctor", "index", "warm", "store"],
        "watch": ["top", "stats"],
        "train": ["run", "compare", "report", "evaluate", "data", "demo", "bench"],
        "plan": ["cost", "advise", "simulate"],
        "serve": ["coordinator", "worker"],
    }


@pytest.mark.timeout(300)
def test_run_trains_the_digits_through_the_embedded_default(tmp_path, monkeypatch):
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
    done = superdl("run", "digits", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "finished"
    assert report["epochs"][-1]["val"]["accuracy"] > 0.97
    trained = [epoch["train"] for epoch in report["epochs"]]
    assert len(trained) == 3
    assert all(one["samples"] == one["hits"] + one["misses"] == 1438 for one in trained)
    first, *later = (one["job"]["invocations"] for one in trained)
    assert first > 0
    assert later == [0, 0], "the dataset fits: it is decoded once"
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "report.json").read_text()) == report
    assert "validation accuracy" in done.stderr
    whole = report["utilization"]["phases"][1]
    assert (whole["epoch"], whole["split"]) == (0, "train")
    parts = {"trainer", "workers", "coordinator", "cache", "functions"}
    assert parts <= whole["groups"].keys()
    assert whole["groups"]["workers"]["processes_max"] == 2
    top5 = report["epochs"][-1]["val"]["top5_accuracy"]
    assert report["epochs"][-1]["val"]["accuracy"] <= top5 <= 1


def test_stats_shows_jobs_and_batches(stack, images):
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
        ref = next(iter(sampler))
        dataset[ref]
        jobs = json.loads(superdl("stats", "--coordinator", stack.address, "--json").stdout)
        assert [job["job"] for job in jobs["jobs"]] == [sampler.job]
        told = jobs["coordinating"]
        assert (told["version"], told["cache"]) == (installed_version(), stack.valkey.unix_url)
        assert (told["executors"], told["lambda_function"]) == (["local"], "")
        assert abs(told["clock_s"] - time.time()) < 60
        assert sampler.job in superdl("stats", "--coordinator", stack.address).stdout
        hex_id = ref.batch_id.hex()
        (batch,) = json.loads(
            superdl("stats", "--coordinator", stack.address, "--batch", hex_id, "--json").stdout
        )["statuses"]
        assert batch["known"]
        assert batch["resident"] == batch["samples"] == 16
        assert batch["occurrences"] == [{"job": sampler.job, "epoch": 0, "position": 0, "rank": 0}]
        assert [sample["key"] for sample in batch["details"]] == list(ref.keys)
        shown = superdl("stats", "--coordinator", stack.address, "--batch", hex_id).stdout
        assert all(key in shown for key in ref.keys)
        assert " s ago  " in shown


def test_wrong_use_exits_with_2_a_failure_with_1_and_both_say_why(capsys):
    for words, reason in {
        ("run", "no-such-spec"): "no-such-spec",
        ("run", "digits", "--set", "loader.batchsize=1"): "batch_size",
    }.items():
        assert main(words) == 2
        assert reason in capsys.readouterr().err
    for words, code, reason in (
        (("coordinator", "--listen", "0.0.0.0:50051"), 2, "TLS"),
        (("stats", "--coordinator", "127.0.0.1:1"), 1, "127.0.0.1:1"),
    ):
        done = superdl(*words)
        assert (done.returncode, reason in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
