"""What is looked at of this machine alone, and what is said where nothing was named."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from superdl.doctor import Verdict
from superdl.doctor.limits import check_open_files
from superdl.doctor.machine import judge_shared_memory
from superdl.main import main
from tests.superdl.doctor.asking import asked, only

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (64 * MIB, 64 * MIB, Verdict.BAD),
        (1024 * MIB, 16 * MIB, Verdict.DOUBTFUL),
        (1024 * MIB, 900 * MIB, Verdict.GOOD),
    ],
)
def test_shared_memory(monkeypatch, tmp_path, size, free, verdict):
    sizes = (4096, 4096, size // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))
    found = judge_shared_memory(tmp_path)
    assert found.verdict is verdict
    assert f"{size // MIB:,} MiB" in found.reason
    assert ("--shm-size" in found.remedy) is (verdict is not Verdict.GOOD)


def test_a_system_without_shared_memory(tmp_path):
    assert judge_shared_memory(tmp_path / "none").verdict is Verdict.SKIPPED


def test_few_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        found = check_open_files(None, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.verdict is Verdict.DOUBTFUL
    assert "ulimit -n" in found.remedy


def test_with_nothing_named_it_says_what_to_name(capsys):
    code, found = asked(capsys)
    assert code == 0
    assert {name for name, one in found.items() if one["verdict"] == "ok"} >= {
        "function", "function version", "open files", "shared memory"
    }  # fmt: skip
    for check, remedy in {
        "listing": "s3://bucket/prefix",
        "coordinator": "--coordinator",
        "cache": "--cache",
    }.items():
        assert found[check]["verdict"] == "skip"
        assert remedy in found[check]["remedy"]
    assert not [one for one in found.values() if one["verdict"] == "skip" and not one["reason"]]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--recipe", "/no/such/file"], "--recipe /no/such/file cannot be read"),
        (["--recipe", "file", "--crop", "8"], "not by both"),
        (["--crop", "-1"], "size"),
        (["--batches-per-s", "-1"], "--batches-per-s"),
        (["--patience", "0"], "--patience"),
        (["--executor", "carrier-pigeon"], "executor is one of"),
        (["--stack", "no/such.json"], "cannot be read"),
        (["gs://bucket"], "unknown scheme gs://"),
        ([".", "--key-list", "gs://bucket/k.csv"], "key list 'gs://bucket/k.csv' has the unknown scheme"),
    ],
)
def test_wrong_use(capsys, words, reason):
    assert main(["doctor", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["s3://AKIA:geheim@bucket/x"],
        ["https://u:geheim@h/x"],
        [".", "--key-list", "https://h/a.csv?sig=geheim"],
        ["--stack", "https://u:geheim@x/stack.json"],
        ["--coordinator", "user:geheim@host:1"],
        ["--cache", "redis://:geheim@h:1"],
    ],
)
def test_credentials_in_addresses_are_not_repeated(capfd, monkeypatch, words):
    only(monkeypatch, "coordinator", "cache")
    assert main(["doctor", *words]) in {1, 2}
    assert "geheim" not in "".join(capfd.readouterr())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from superdl.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_without_torch_as_beside_a_coordinator(images, valkey):
    command = [sys.executable, "-c", WITHOUT_TORCH, "doctor", str(images), "--cache", valkey.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, done.stderr
    assert found["listing"]["verdict"] == found["object"]["verdict"] == found["function"]["verdict"] == "ok"
    for check in ("cache", "sample"):
        assert found[check]["verdict"] == "skip"
        assert "needs torch" in found[check]["reason"]


def test_a_batch_of_none(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--batch-size", "0"])
    assert ended.value.code == 2
    assert "--batch-size" in capsys.readouterr().err
