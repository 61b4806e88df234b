"""Runs of several ranks under torchrun."""

import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from superdl.experiments.run import run
from superdl.experiments.spec import load_spec
from tests.experiments.small_runs import CHANNELS, PIXELS, Ended, launch, write_colours

TRAIN_PER_CLASS, VAL_PER_CLASS = 12, 5  # 36, whose last batch of 8 is short, and 15, which two ranks pad


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    directory = tmp_path_factory.mktemp("colours")
    return write_colours(directory, train=TRAIN_PER_CLASS, val=VAL_PER_CLASS, classes=CHANNELS)


def about(colours, *more):
    return [
        f"data.train={colours / 'train'}",
        f"data.val={colours / 'val'}",
        *PIXELS,
        "epochs=2",
        "loader.kind=torch",
        "loader.num_workers=0",
        "model.name=vit_mini",  # has no batch norm, so ranks compute the same as a single process
        "training.precision=float32",
        "optimizer.lr=0.001",
        *more,
    ]


@pytest.mark.slow
def test_two_ranks_train_like_one_process_with_batches_of_twice_the_size(colours, tmp_path):
    two = launch(2, tmp_path / "two", *about(colours, "loader.batch_size=4"))
    assert two.code == 0, two.errors
    overrides = about(colours, "loader.batch_size=8", "training.threads=1", f"output={tmp_path / 'one'}")
    report = run(load_spec("digits", overrides), console=Console(quiet=True))
    one = Ended(0, "", Path(report.directory))
    assert (two.report["ranks"], two.report["strategy"], one.report["strategy"]) == (2, "ddp", "single")
    for with_two, with_one in zip(two.report["epochs"], one.report["epochs"], strict=True):
        for split, samples in (("train", 3 * TRAIN_PER_CLASS), ("val", 3 * VAL_PER_CLASS)):
            assert with_two[split]["samples"] == with_one[split]["samples"] == samples, "no padding"
            assert with_two[split]["loss"] == pytest.approx(with_one[split]["loss"], abs=2e-3)
        assert with_two["val"]["job"]["samples_produced"] == 3 * VAL_PER_CLASS + 1, "padding is decoded"
    for split in ("train", "val"):
        steps = [two.steps(rank, split) for rank in (0, 1)]
        assert len(steps[0]) == len(steps[1]) == len(one.steps(0, split))
        both = [first["samples"] + second["samples"] for first, second in zip(*steps, strict=True)]
        assert both == [step["samples"] for step in one.steps(0, split)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_any_strategy_resumes_from_a_checkpoint_of_fsdp(colours, tmp_path, precision):
    more = ("epochs=3", "training.checkpoint_every=1", f"training.precision={precision}")
    sharded = launch(
        2, tmp_path / "fsdp", *about(colours, "training.strategy=fsdp", "loader.batch_size=4", *more)
    )
    assert sharded.code == 0, sharded.errors
    assert sharded.report["strategy"] == "fsdp"
    best = sharded.directory / "checkpoints" / "best.pt"
    state = torch.load(best, weights_only=True)
    assert state["epoch"] < 3, "it is not the last epoch"
    losses = {}
    for name, ranks, strategy, batch in (("one", 1, "auto", 8), ("ddp", 2, "ddp", 4), ("fsdp", 2, "fsdp", 4)):
        ended = launch(
            ranks,
            tmp_path / f"to-{name}",
            *about(colours, f"training.strategy={strategy}", f"loader.batch_size={batch}", *more),
            f"training.resume={best}",
        )
        assert ended.code == 0, ended.errors
        losses[name] = [epoch["train"]["loss"] for epoch in ended.report["epochs"]]
        assert len(losses[name]) == 3 - state["epoch"]
    same = [epoch["train"]["loss"] for epoch in sharded.report["epochs"][state["epoch"] :]]
    assert losses["fsdp"] == same, "the same ranks give the same bits"
    tolerance = 2e-3 if precision == "float32" else 5e-2
    assert losses["one"] == pytest.approx(same, abs=tolerance)
    assert losses["ddp"] == pytest.approx(same, abs=tolerance)


@pytest.mark.slow
def test_a_failed_rank_names_the_reason_and_ends_the_others(colours, tmp_path):
    """Rank 1 reads a corrupt file while rank 0 waits for it in a collective."""
    broken = shutil.copytree(colours, tmp_path / "images")
    (broken / "train" / "red" / "7.png").rename(broken / "val" / "red" / "7.png")  # an even number to share
    (broken / "val" / "red" / "7.png").write_bytes(
        b"no image"
    )  # the last one in key order, which rank 1 reads
    ended = launch(2, tmp_path / "runs", *about(broken, "loader.batch_size=4"))
    assert ended.code == 1
    report = ended.report
    assert "7.png" in ended.errors
    assert report["status"] != "finished"
    assert len(report["epochs"]) == 0


@pytest.mark.slow
def test_terminated_ranks_stop_after_the_same_step_with_a_checkpoint(colours, tmp_path):
    more = ("epochs=300", "training.checkpoint_every=1000", "training.print_every=1", "loader.batch_size=4")
    more = (*more, "loader.num_workers=1")  # torchrun sends the signal to the workers too
    ended = launch(2, tmp_path / "runs", *about(colours, *more), stop_after=1)
    assert ended.code != 0
    assert (ended.report["status"], ended.report["reason"]) == (
        "interrupted",
        "Terminated: the process received SIGTERM",
    )
    steps = [ended.steps(rank)[-1] for rank in (0, 1)]
    assert steps[0]["step"] == steps[1]["step"]
    assert steps[0]["epoch"] == steps[1]["epoch"] < 299
    state = torch.load(ended.directory / "checkpoints" / "last.pt", weights_only=True)
    done = steps[0]["epoch"] * 5 + steps[0]["step"] + 1
    assert state["epoch"] * 5 + state["batches"]["step"] == done
    assert state["schedule"]["last_epoch"] == done
    resumed = launch(
        2, tmp_path / "rest", *about(colours, *more), f"training.resume={ended.directory}", stop_after=1
    )
    first = resumed.steps(0)[0]
    assert first["epoch"] * 5 + first["step"] == done
