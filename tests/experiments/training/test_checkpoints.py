"""Files of checkpoints: written whole or not at all, and refused by name."""

import resource
import signal
import threading

import pytest
import torch

from superdl.experiments.training.checkpoints import Checkpoint, Checkpoints, read_checkpoint
from superdl.experiments.training.ranks import ProcessRank, Ranks
from superdl.super_wire.errors import ConfigError


def checkpoint(epoch, **changes):
    values = {"batches": {}, "model": {}, "optimizer": {}, "schedule": {}, "facts": {}, **changes}
    return Checkpoint(epoch=epoch, best=None, **values)


def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path):
    alone = Ranks(ProcessRank())

    def refused(place):
        with pytest.raises(ConfigError) as caught:
            read_checkpoint(str(place), alone)
        return str(caught.value)

    assert "there is no checkpoint at" in refused(tmp_path / "absent")
    assert "there is no checkpoint at" in refused(tmp_path)
    weights = {"weight": torch.zeros(9999)}
    Checkpoints(tmp_path / "checkpoints", {}).write("last.pt", checkpoint(1, model=weights))
    whole = tmp_path / "checkpoints" / "last.pt"
    read, path = read_checkpoint(str(tmp_path), alone)
    assert (read.epoch, path) == (1, whole)

    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(whole.read_bytes()[:-1000])
    assert "is damaged or not a checkpoint" in refused(damaged)
    torch.save(weights, damaged)
    assert "is not a run checkpoint" in refused(damaged)
    torch.save(torch.load(whole, weights_only=True) | {"format": 99}, damaged)
    assert "cannot read. Resume" in refused(damaged)


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", {})
    checkpoints.write("last.pt", checkpoint(1))
    before = (tmp_path / "run" / "last.pt").read_bytes()
    with pytest.raises(TypeError):
        checkpoints.write("last.pt", checkpoint(2, batches={"lock": threading.Lock()}))
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # as a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(ConfigError, match=r"last\.pt: File too large\. Free some space"):
            checkpoints.write("last.pt", checkpoint(2, model={"weight": torch.zeros(10**6)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handled)
    assert (tmp_path / "run" / "last.pt").read_bytes() == before
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["last.pt"]
