"""What a run ran on, which commit ran, and nothing of the machine that is nobody's business."""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch

from superdl.experiments.machine import commit_of, describe_run


def test_it_names_versions_and_hardware_and_nobody():
    known = describe_run(torch.device("cpu"))
    assert known["python"] == platform.python_version()
    assert known["packages"]["torch"] == torch.__version__
    assert known["packages"]["superdl"]
    assert known["hardware"]["logical_cores"] == os.cpu_count()
    assert known["hardware"]["memory_bytes"] > 1 << 28
    assert len(known["hardware"]["gpus"]) == torch.cuda.device_count()
    text = json.dumps(known)
    assert f"{Path.home()}/" not in text
    for name in (platform.node(), getpass.getuser()):
        if len(name) > 4:  # shorter ones are parts of words
            assert name not in text


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
