"""The files of checkpoints: written whole or not at all, and what is none is refused by name."""

from __future__ import annotations

import resource
import signal
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from superdl.experiments.training.checkpoints import Checkpoint, Checkpoints, read_checkpoint
from superdl.experiments.training.device import random_states, restore_random_states
from superdl.experiments.training.ranks import Place, Ranks
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path):
    alone = Ranks(Place())

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


@pytest.mark.parametrize("damage", [{}, {"python": None}, {"numpy": ["MT19937"]}, {"cpu": [torch.zeros(3)]}])
def test_states_of_chance_that_are_damaged_are_told_as_such(damage):
    alone, device = Ranks(Place()), torch.device("cpu")
    whole = random_states(device, alone)
    assert restore_random_states(whole, device, alone)
    with pytest.raises(ConfigError, match="the checkpoint's states of chance are damaged"):
        restore_random_states(whole | damage if damage else damage, device, alone)
    assert restore_random_states(whole, device, alone)
