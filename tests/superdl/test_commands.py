"""The ``superdl`` command in separate processes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


@pytest.mark.timeout(300)
def test_run_trains_the_digits_through_the_embedded_default(tmp_path, monkeypatch):
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
    done = superdl("run", "digits", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["status"] == "finished"
    val = report["epochs"][-1]["val"]
    assert 0.97 < val["accuracy"] <= val["top5_accuracy"] <= 1
    trained = [epoch["train"] for epoch in report["epochs"]]
    assert len(trained) == 3
    assert all(one["samples"] == one["hits"] + one["misses"] == 1438 for one in trained)
    first, *later = (one["job"]["invocations"] for one in trained)
    assert first > 0
    assert later == [0, 0], "the dataset fits: it is decoded once"
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "report.json").read_text()) == report
    parts = {"trainer", "workers", "coordinator", "cache", "functions"}
    assert parts <= report["utilization"]["phases"][1]["groups"].keys()


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
        of_batch = ("stats", "--coordinator", stack.address, "--batch", ref.batch_id.hex())
        (batch,) = json.loads(superdl(*of_batch, "--json").stdout)["statuses"]
        assert batch["known"]
        assert batch["resident"] == batch["samples"] == 16
        assert batch["occurrences"] == [{"job": sampler.job, "epoch": 0, "position": 0, "rank": 0}]
        assert [sample["key"] for sample in batch["details"]] == list(ref.keys)
        shown = superdl(*of_batch).stdout
        assert all(key in shown for key in ref.keys)
