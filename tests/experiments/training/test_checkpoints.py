"""The files of checkpoints: written whole or not at all, refused by name, and the best one in a bucket."""

from __future__ import annotations

import resource
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from superdl.experiments.training.checkpoints import Checkpoint, Checkpoints, bring_best, read_checkpoint
from superdl.experiments.training.ranks import ProcessRank, Ranks
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    alone = Ranks(ProcessRank())

    def refused(place: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            read_checkpoint(str(place), alone)
        return str(caught.value)

    assert "there is no checkpoint at" in refused(tmp_path / "absent")
    assert "there is no checkpoint at" in refused(tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints", {"seed": 0}, "")
    weights = {"weight": torch.zeros(9999)}
    checkpoints.write("last.pt", Checkpoint({}, "", 1, {}, None, weights, {}, {}, {}))
    whole = tmp_path / "checkpoints" / "last.pt"
    checkpoint, path = read_checkpoint(str(tmp_path), alone)
    assert (checkpoint.epoch, path) == (1, whole)

    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(whole.read_bytes()[:-1000])
    assert "is damaged, or no checkpoint" in refused(damaged)
    torch.save(weights, damaged)
    assert "is no checkpoint of a run; model.weights takes weights alone" in refused(damaged)
    torch.save(torch.load(whole, weights_only=True) | {"format": 99}, damaged)
    assert "has format 99" in refused(damaged)
    torch.save({"format": 1, "epoch": 0}, damaged)
    assert "is no whole checkpoint: it lacks facts, spec_digest" in refused(damaged)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path):
    checkpoints = Checkpoints(tmp_path, {}, "")
    checkpoints.write("last.pt", Checkpoint({}, "", 1, {}, None, {}, {}, {}, {}))
    before = (tmp_path / "last.pt").read_bytes()
    with pytest.raises(TypeError):
        checkpoints.write("last.pt", Checkpoint({}, "", 2, {"lock": threading.Lock()}, None, {}, {}, {}, {}))
    assert (tmp_path / "last.pt").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"last\.pt cannot be written: .*; make room, or set output"):
        Checkpoints(tmp_path / "file", {}, "").write(
            "last.pt", Checkpoint({}, "", 1, {}, None, {}, {}, {}, {})
        )


def test_a_failure_that_is_not_the_disks_is_not_told_as_one(tmp_path, monkeypatch):
    def interrupted(*_):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated")

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(RuntimeError, match="worker"):
        Checkpoints(tmp_path, {}, "").write("last.pt", Checkpoint({}, "", 1, {}, None, {}, {}, {}, {}))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_as_such(tmp_path):
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    weights = {"weight": torch.zeros(10**6)}
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(ConfigError, match=r"last\.pt cannot be written: File too large; make room"):
            Checkpoints(tmp_path, {}, "").write(
                "last.pt", Checkpoint({}, "", 1, {}, None, weights, {}, {}, {})
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def best(tmp_path: Path) -> Path:
    path = tmp_path / "best.pt"
    path.write_bytes(b"weights" * 9999)
    return path


@pytest.mark.parametrize(("prefix", "key"), [("", "run-1/best.pt"), ("/a/b/", "a/b/run-1/best.pt")])
def test_it_comes_into_a_bucket_whole(object_store, best, prefix, key):
    (object_store.directory / "models").mkdir()
    assert bring_best(best, f"s3://models{prefix}", "run-1") == f"s3://models/{key}"
    assert (object_store.directory / "models" / key).read_bytes() == best.read_bytes()


def test_an_upload_that_fails_names_the_file_that_stays(object_store, best, monkeypatch):
    with pytest.raises(SourceError, match=r"could not be brought to s3://absent/run-1/best\.pt: "):
        bring_best(best, "s3://absent", "run-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    (object_store.directory / "models").mkdir()
    with pytest.raises(SourceError, match=f"It is in {best}"):
        bring_best(best, "s3://models", "run-1")
    (best.parent / "file").write_text("x")
    with pytest.raises(SourceError, match=f"It is in {best}"):
        bring_best(best, str(best.parent / "file"), "run-1")
    assert best.is_file()
