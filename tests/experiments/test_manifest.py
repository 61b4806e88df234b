"""The manifest: what a run was, which commit ran, and nothing of the machine that is nobody's business."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from superdl.coordinator.executors.price_table import load_prices
from superdl.experiments.manifest import LOCAL_PATH, Manifest, commit_of
from superdl.experiments.spec import Spec, load_spec
from superdl.super_wire.errors import ConfigError

CPU = torch.device("cpu")
STARTED = "2026-01-01T00:00:00+00:00"


def manifest(directory: Path, spec: Spec) -> dict:
    Manifest(directory, spec, CPU, started_at=STARTED)
    return json.loads((directory / "manifest.json").read_text())


def test_it_names_versions_hardware_prices_and_the_seed(tmp_path, monkeypatch):
    monkeypatch.delenv("SUPER_PRICES", raising=False)
    written = manifest(tmp_path, load_spec("digits", ["seed=7"]))
    assert (written["seed"], written["status"], written["started_at"]) == (7, "running", STARTED)
    assert written["ended_at"] is None
    assert written["software"]["python"] == platform.python_version()
    assert written["software"]["packages"]["torch"] == torch.__version__
    assert written["software"]["packages"]["superdl"]
    assert written["hardware"]["logical_cores"] == os.cpu_count()
    assert written["hardware"]["memory_bytes"] > 1 << 28
    assert len(written["hardware"]["gpus"]) == torch.cuda.device_count()
    table = load_prices()
    assert (written["prices"]["region"], written["prices"]["date"]) == (table.region, table.date)
    assert written["prices"]["by_executor"]["lambda"]["invocation"] == table.of("lambda").invocation
    assert written["spec"] == load_spec("digits", ["seed=7"]).to_mapping()


def test_prices_are_those_of_the_table_that_is_set_and_the_end_changes_nothing_else(tmp_path, monkeypatch):
    prices = tmp_path / "mine.toml"
    prices.write_text('[about]\nregion = "eu-x"\ndate = "2031-01"\n')
    monkeypatch.setenv("SUPER_PRICES", str(prices))
    begun = Manifest(tmp_path, Spec(), CPU, started_at=STARTED)
    before = json.loads((tmp_path / "manifest.json").read_text())
    assert (before["prices"]["region"], before["prices"]["date"]) == ("eu-x", "2031-01")
    monkeypatch.setenv("SUPER_PRICES", str(tmp_path / "absent.toml"))
    begun.end("failed", "2026-01-01T00:01:00+00:00")
    after = json.loads((tmp_path / "manifest.json").read_text())
    assert after == before | {"status": "failed", "ended_at": "2026-01-01T00:01:00+00:00"}
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        manifest(tmp_path, Spec())


def test_it_tells_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPER_TEST_SECRET", "s3cr3t-of-the-environment")
    spec = load_spec(
        "digits",
        [
            f"data.train={tmp_path}/train",
            f"data.val=file://{tmp_path}/val",
            "data.train_key_list='https://jane:pw@host/keys.csv?X-Amz-Signature=abc'",
            "data.val_key_list=~jane/keys.csv",
            f"output={tmp_path}",
        ],
    )
    written = manifest(tmp_path, spec)
    text = json.dumps(written)
    for secret in (str(tmp_path), str(Path.home()) + "/", "jane", "X-Amz", "s3cr3t"):
        assert secret not in text, secret
    for name in (platform.node(), getpass.getuser()):
        if len(name) > 4:  # shorter ones are parts of words
            assert name not in text
    assert written["spec"]["data"] == {
        "kind": "auto",
        "directory": None,
        "samples": None,
        "train": LOCAL_PATH,
        "val": LOCAL_PATH,
        "train_key_list": "https://***@host/keys.csv?***",
        "val_key_list": LOCAL_PATH,
        "train_alias": None,
        "val_alias": None,
        "versions": None,
    }
    assert written["spec"]["output"] == LOCAL_PATH


def git(directory, *words):
    identity = ("-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false")
    command = [shutil.which("git"), "-C", directory, *identity, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_commit_and_whether_tracked_files_differ(tmp_path, monkeypatch):
    git(tmp_path, "init", "--quiet")
    assert commit_of(tmp_path) == (None, None), "no commit yet"
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    with monkeypatch.context() as patch:
        patch.setenv("GIT_DIR", "/nowhere")  # a hook sets it, and it is not about this checkout
        found = commit_of(tmp_path)
    assert found == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "untracked").write_text("x")
    assert commit_of(tmp_path)[1] is False
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path)[1] is True
    (tmp_path / "site-packages").mkdir()
    assert commit_of(tmp_path / "site-packages") == (None, None), "a repository further up is not ours"
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(tmp_path) == (None, None), "no git"
