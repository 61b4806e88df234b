"""Several ranks of one run: who each is, what they tell one another, and whole runs under torchrun."""

import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from superdl.experiments.run import run
from superdl.experiments.spec import load_spec
from tests.experiments.small_runs import CHANNELS, PIXELS, Ended, launch, write_colours

TRAIN_PER_CLASS, VAL_PER_CLASS = 12, 5  # 36, in batches of 8 the last one short; 15, which two ranks pad


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
        "model.name=vit_mini",  # no batch norm: ranks compute what one process with all of it does
        "training.precision=float32",
        "optimizer.lr=0.001",
        *more,
    ]


@pytest.mark.slow
def test_two_ranks_train_what_one_process_does_with_batches_of_twice_the_size(colours, tmp_path):
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
    of_rank_1 = {path.stem for path in two.directory.glob("*-rank1.jsonl")}
    assert of_rank_1 == {"steps-rank1"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["super", "super-threads"])
def test_ranks_of_super_train_each_sample_once(colours, tmp_path, kind):
    both = launch(2, tmp_path / "runs", *about(colours, f"loader.kind={kind}", "loader.batch_size=4"))
    assert both.code == 0, both.errors
    for epoch in both.report["epochs"]:
        assert (epoch["train"]["samples"], epoch["val"]["samples"]) == (36, 15)
        assert epoch["train"]["job"]["cache_hits"] + epoch["train"]["job"]["cache_misses"] == 36
    ids = [[step["batch_id"] for step in both.steps(rank)] for rank in (0, 1)]
    assert not set(ids[0]) & set(ids[1])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_what_fsdp_saved_another_strategy_goes_on_with(colours, tmp_path, precision):
    more = ("epochs=3", "training.checkpoint_every=1", f"training.precision={precision}")
    sharded = launch(
        2, tmp_path / "fsdp", *about(colours, "training.strategy=fsdp", "loader.batch_size=4", *more)
    )
    assert sharded.code == 0, sharded.errors
    assert sharded.report["strategy"] == "fsdp"
    best = sharded.directory / "checkpoints" / "best.pt"
    state = torch.load(best, weights_only=True)
    assert state["epoch"] < 3, "the colours are learnt, or unlearnt, before the end"
    gone_on = {}
    for name, ranks, strategy, batch in (("one", 1, "auto", 8), ("ddp", 2, "ddp", 4), ("fsdp", 2, "fsdp", 4)):
        ended = launch(
            ranks,
            tmp_path / f"to-{name}",
            *about(colours, f"training.strategy={strategy}", f"loader.batch_size={batch}", *more),
            f"training.resume={best}",
        )
        assert ended.code == 0, ended.errors
        gone_on[name] = [epoch["train"]["loss"] for epoch in ended.report["epochs"]]
        assert len(gone_on[name]) == 3 - state["epoch"]
    same = [epoch["train"]["loss"] for epoch in sharded.report["epochs"][state["epoch"] :]]
    assert gone_on["fsdp"] == same, "the same ranks: bit by bit"
    tolerance = 2e-3 if precision == "float32" else 5e-2
    assert gone_on["one"] == pytest.approx(same, abs=tolerance)
    assert gone_on["ddp"] == pytest.approx(same, abs=tolerance)


@pytest.mark.slow
def test_a_rank_that_fails_says_why_and_ends_the_others(colours, tmp_path):
    """Rank 1 finds a file that is no image; rank 0 waits for it in a collective."""
    broken = shutil.copytree(colours, tmp_path / "images")
    (broken / "train" / "red" / "7.png").rename(broken / "val" / "red" / "7.png")  # an even number to share
    (broken / "val" / "red" / "7.png").write_bytes(
        b"no image"
    )  # in key order the last one, so that of rank 1
    ended = launch(2, tmp_path / "runs", *about(broken, "loader.batch_size=4"))
    assert ended.code == 1
    report = ended.report
    assert "7.png" in ended.errors
    assert report["status"] != "finished"
    assert len(report["epochs"]) == 0


@pytest.mark.slow
def test_ranks_that_are_asked_to_end_keep_one_checkpoint_of_one_step(colours, tmp_path):
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
    gone_on = launch(
        2, tmp_path / "rest", *about(colours, *more), f"training.resume={ended.directory}", stop_after=1
    )
    first = gone_on.steps(0)[0]
    assert first["epoch"] * 5 + first["step"] == done
