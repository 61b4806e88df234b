"""The main job through the Lambda executor, whole: ``superdl run``, an embedded coordinator, S3."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from superdl.experiments.data import make_digits

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 120.0


@pytest.fixture
def digits(object_store):
    """The digits in a bucket."""
    make_digits(object_store.directory / "digits")
    return "s3://digits"


@pytest.fixture
def superdl(temporary, monkeypatch, valkey):
    """Runs ``superdl run digits`` with overrides; its result."""
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SUPER_CACHE", valkey.url)

    def run(*overrides):
        command = [sys.executable, "-m", "superdl.main", "run", "digits", "--json"]
        for override in (f"output={temporary / 'runs'}", *overrides):
            command += ["--set", override]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )

    return run


@pytest.mark.slow
def test_training_through_lambda(lambda_service, superdl, digits, monkeypatch):
    monkeypatch.setenv("SUPER_EXECUTOR", "lambda")
    done = superdl(
        f"data.train={digits}/train",
        f"data.val={digits}/val",
        "loader.num_workers=1",
        "epochs=2",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["executor"] == "lambda"
    assert report["status"] == "finished"
    assert report["val_accuracy"] > 0.5
    assert lambda_service.invocations
    lines = {line["name"]: line["usd"] for line in report["bill"]["lines"]}
    jobs = [epoch[split]["job"] for epoch in report["epochs"] for split in ("train", "val")]
    assert lines["functions"] > 0
    assert lines["cache"] > lines["coordinator"] > 0
    gets = sum(job["source_requests"] for job in (*jobs, report["rest"]))
    assert lines["GETs"] == pytest.approx(4e-7 * gets)
    used = [*jobs, report["rest"]]
    assert report["bill"]["usd"] == pytest.approx(sum(job["usd"] for job in used)), "each thing once"
