"""The largest batch that fits: the search, and what a step takes on a CPU."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from superdl.experiments.run.batch_search import Probe, StepShape, TriedBatch, find_batch_size
from superdl.main import main
from superdl.super_wire.errors import ConfigError

MIB = 2**20
SHAPE = StepShape(model="small_cnn", classes=10, side=64, precision="float32", threads=1)


class Room:
    """Room for so many images, each a MiB."""

    device = "cpu"

    def __init__(self, images: int) -> None:
        self.limit_bytes = images * MIB

    def try_size(self, batch_size: int) -> TriedBatch:
        needed = batch_size * MIB
        return TriedBatch(batch_size, fits=needed <= self.limit_bytes, memory_bytes=needed, measured=True)


@pytest.mark.parametrize("room", [1, 2, 3, 31, 32, 33, 100, 777, 1000])
def test_the_search_comes_to_within_a_sixteenth(room):
    lines: list[str] = []
    found = find_batch_size(Room(room), 10_000, lines.append)
    assert room - max(room // 16, 1) < found.batch_size <= room
    assert found.batch_size == max(one.batch_size for one in found.tried if one.fits)
    assert len(lines) == len(found.tried) <= 15
    assert lines[0] == "batch 1: 0.00 GiB, fits"


def test_a_search_ends_at_what_there_is_to_train_on_and_where_nothing_fits():
    assert find_batch_size(Room(1000), 24, lambda _: None).batch_size == 24
    with pytest.raises(ConfigError, match=r"not even a batch of one image fits into 0\.00 GiB on cpu"):
        find_batch_size(Room(0), 24, lambda _: None)


@pytest.mark.slow
def test_on_a_cpu_what_would_not_fit_is_not_run():
    probe = Probe(SHAPE, torch.device("cpu"))
    small, large = probe.try_size(1), probe.try_size(256)
    assert large.measured
    assert large.fits
    growth = large.memory_bytes - small.memory_bytes
    assert 255 * 64 * 64 * 3 < growth < 2**31, "images as floats and what is kept of each layer"
    limit = small.memory_bytes + growth // 2
    found = find_batch_size(Probe(SHAPE, torch.device("cpu"), limit_bytes=limit), 4096, lambda _: None)
    assert 32 <= found.batch_size <= 192
    assert all(one.memory_bytes > limit for one in found.tried if not one.fits)
    assert all(one.memory_bytes < 1.2 * limit for one in found.tried if one.measured), "what was run"


@pytest.mark.slow
def test_the_command_finds_it_and_trains_nothing(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for index in range(6):
            Image.new("RGB", (16, 16), (index, 0, 0)).save(tmp_path / "train" / name / f"{index}.png")
    settings = (
        f"data.train={tmp_path / 'train'}",
        "loader.kind=torch",
        "loader.num_workers=0",
        "recipe.resize=16",
        "recipe.crop=16",
        f"output={tmp_path / 'runs'}",
    )
    assert main(["run", "digits", "--find-batch-size", "--json", *(f"--set={one}" for one in settings)]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["batch_size"] == 12
    assert [one["batch_size"] for one in found["tried"]] == [1, 2, 4, 8, 12]
    assert (
        "loader.batch_size=12 is the largest that fits (all training images that a rank has)" in printed.err
    )
    assert not (tmp_path / "runs").exists()
