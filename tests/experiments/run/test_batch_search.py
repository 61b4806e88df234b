"""The largest batch that fits: the search, and what a step takes on a CPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from PIL import Image

from superdl.experiments.run.batch_search import Probe, TriedBatch, find_batch_size
from superdl.experiments.spec import load_spec
from superdl.experiments.training.ranks import ProcessRank, Ranks
from superdl.main import main
from superdl.super_wire.errors import ConfigError
from tests.experiments.training.ranks_of_a_run import LAUNCH_TIMEOUT_S, started

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20
SETTINGS = ["training.precision=float32", "training.threads=1", "loader.num_workers=0", "device=cpu"]


def probe_of(host_bytes: int) -> Probe:
    alone = Ranks(ProcessRank())
    return Probe(load_spec("digits", SETTINGS), 10, torch.device("cpu"), alone, host_bytes=host_bytes)


class Room:
    """Room for so many images, each a MiB."""

    device = "cpu"

    def __init__(self, images: int) -> None:
        self.limit_bytes = images * MIB

    def try_size(self, batch_size: int) -> TriedBatch:
        needed = batch_size * MIB
        return TriedBatch(batch_size, fits=needed <= self.limit_bytes, memory_bytes=needed)


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
def test_on_a_cpu_a_step_is_held_to_its_memory():
    probe = probe_of(2**40)
    small, large = probe.try_size(1), probe.try_size(256)
    assert (small.loader_bytes, large.loader_bytes) == (4 * 64 * 64 * 3, 256 * 4 * 64 * 64 * 3)
    assert large.memory_bytes == large.by_rank[0] + large.loader_bytes, "the loader's batches are counted"
    growth = large.memory_bytes - small.memory_bytes
    assert 255 * 64 * 64 * 3 < growth < 2**31, "images as floats and what is kept of each layer"
    held = probe_of(small.memory_bytes + growth // 2)
    assert held.try_size(16).fits
    assert not held.try_size(512).fits
    with pytest.raises(ConfigError, match=r"a step of 1 image\(s\) failed"):
        probe_of(small.memory_bytes // 2).try_size(1)


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for index in range(6):
            Image.new("RGB", (16, 16), (index, 0, 0)).save(tmp_path / "train" / name / f"{index}.png")
    return [
        f"--set=data.train={tmp_path / 'train'}",
        "--set=loader.num_workers=0",
        "--set=recipe.resize=16",
        "--set=recipe.crop=16",
        f"--set=output={tmp_path / 'runs'}",
    ]


@pytest.mark.slow
def test_the_command_finds_it_and_trains_nothing(settings, tmp_path, capsys):
    assert main(["run", "digits", "--find-batch-size", "--json", "--set=loader.kind=torch", *settings]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["batch_size"], found["strategy"], found["ranks"]) == (12, "single", 1)
    assert [one["batch_size"] for one in found["tried"]] == [1, 2, 4, 8, 12]
    assert (
        "loader.batch_size=12 is the largest that fits (all training images that a rank has)" in printed.err
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("strategy", "kind", "more"),
    [("ddp", "super", "model.name=small_cnn"), ("fsdp", "torch", "model.name=vit_mini")],
)
def test_on_several_ranks_each_takes_the_step_by_their_strategy(settings, tmp_path, strategy, kind, more):
    for path in tmp_path.glob("train/*/[2-5].png"):
        path.unlink()
    words = (f"--set=training.strategy={strategy}", f"--set=loader.kind={kind}", f"--set={more}")
    process = started(2, tmp_path, "run", "digits", "--find-batch-size", "--json", *words, *settings)
    try:
        out, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    found = json.loads(out)
    assert (found["batch_size"], found["strategy"], found["ranks"]) == (2, strategy, 2)
    for one in found["tried"]:
        assert len(one["by_rank"]) == 2
        assert one["memory_bytes"] == max(one["by_rank"]) + one["loader_bytes"]
    assert "the largest that fits on each of 2 ranks (all training images that a rank has)" in errors


_SHORT_OF_MEMORY = """
import sys, torch
from superdl.experiments.run import batch_search
from superdl.experiments.spec import load_spec
from superdl.experiments.training.ranks import ProcessRank, join_ranks, process_rank

whole = batch_search.Updater.update

def short(self, loss):
    raise torch.OutOfMemoryError("CUDA out of memory")

if process_rank().rank == 1:  # in its child too, which imports this file
    batch_search.Updater.update = short

if __name__ == "__main__":
    device, spec = torch.device("cpu"), load_spec("digits", sys.argv[1:])
    with join_ranks(process_rank(), device) as ranks:
        probe = batch_search.Probe(spec, 10, device, ranks, host_bytes=2**40)
        for size in (1, 2):
            one = probe.try_size(size)
            assert (one.fits, one.memory_bytes) == (False, None), one
    print("both tried")
"""


@pytest.mark.slow
def test_one_rank_that_runs_out_of_memory_leaves_none_waiting(tmp_path):
    """The step of the other rank waits for it in a collective, and is ended; the next size is tried."""
    script = tmp_path / "short.py"
    script.write_text(_SHORT_OF_MEMORY)
    process = started(2, tmp_path, *SETTINGS, program=(str(script),))
    try:
        out, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert out.count("both tried") == 2
