"""Interrupted runs resume with the steps, losses and weights of a run without interruption."""

import json
import shutil

import pytest

from superdl.super_wire.errors import ConfigError
from tests.experiments.small_runs import (
    EVERY,
    done,
    every_checkpoint,
    interrupted_after,
    same,
    spec_of,
    state_in,
    steps_of,
    the_run,
)

FLOAT16 = (
    "training.precision=float16",
    "optimizer.name=sgd",
    "optimizer.schedule=cosine",
    "optimizer.warmup_epochs=0.5",
)


@pytest.mark.parametrize(
    ("kind", "model", "more"),
    [
        ("torch", "small_cnn", ()),
        pytest.param("torch", "small_cnn", FLOAT16, marks=pytest.mark.slow),
        ("super", "small_cnn", ()),
        pytest.param("torch", "vit_mini", (), marks=pytest.mark.slow),
        pytest.param("super-threads", "resnet18", (), marks=pytest.mark.slow),
    ],
)
def test_a_run_interrupted_within_an_epoch_resumes_exactly(digits, tmp_path, monkeypatch, kind, model, more):
    about = (f"loader.kind={kind}", f"model.name={model}", "training.print_every=1", *EVERY, *more)
    whole = done(spec_of(digits, tmp_path / "whole", *about))
    with monkeypatch.context() as patch:
        interrupted_after(7 + 3 + 2, patch)  # training and validation of an epoch, two steps of the next
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            done(spec_of(digits, tmp_path / "first", *about))
    first = the_run(tmp_path / "first")
    assert json.loads((first / "report.json").read_text())["status"] == "interrupted"
    rest = done(spec_of(digits, tmp_path / "rest", *about, f"training.resume={first}"))
    steps = steps_of(the_run(tmp_path / "whole"))
    assert steps_of(first) + steps_of(the_run(tmp_path / "rest")) == steps
    assert (len(steps), rest.val_accuracy) == (30, whole.val_accuracy)
    ends = [state_in(the_run(tmp_path / name)) for name in ("whole", "rest")]
    assert same(*ends)
    assert bool(ends[1]["scaler"]) == bool(more), "includes the loss scale"
    (note,) = [note for note in rest.notes if "resuming from" in note]
    assert "resuming from epoch 2, step 3: the training metrics of that epoch cover only the rest" in note


@pytest.mark.parametrize(
    ("after", "trained"),
    [(7, 7), (7 + 3 + 7, 14), (10 + 10 + 7, 21), (10 + 10 + 8, 21)],
    ids=[
        "the last step of the first epoch",
        "the last step of an epoch",
        "the last step of all",
        "validation",
    ],
)
def test_a_resumed_run_starts_with_the_missing_validation(digits, tmp_path, monkeypatch, after, trained):
    about = ("training.print_every=1", *EVERY)
    whole = done(spec_of(digits, tmp_path / "whole", *about))
    with monkeypatch.context() as patch:
        interrupted_after(after, patch)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            done(spec_of(digits, tmp_path / "first", *about))
    first = the_run(tmp_path / "first")
    assert len(steps_of(first)) == after, "it also stops during validation"
    assert state_in(first)["schedule"]["last_epoch"] == trained
    rest = done(spec_of(digits, tmp_path / "rest", *about, f"training.resume={first}"))
    steps, gone_on = steps_of(the_run(tmp_path / "whole")), steps_of(the_run(tmp_path / "rest"))
    assert gone_on == [step for step in steps if step[0] >= trained // 7 - 1][7:]
    assert [epoch.val.accuracy for epoch in rest.epochs] == [
        epoch.val.accuracy for epoch in whole.epochs[trained // 7 - 1 :]
    ]
    assert (rest.status, rest.epochs[0].train.batches) == ("finished", 0)
    ends = [state_in(the_run(tmp_path / name), "best.pt") for name in ("whole", "rest")]
    assert ends[0]["best"] == ends[1]["best"]
    assert any(f"the validation of epoch {trained // 7}, whose steps are done" in note for note in rest.notes)
    assert not any("earlier epochs do not count" in note for note in rest.notes)


def test_a_loader_that_cannot_seek_resumes_at_the_start_of_an_epoch(digits, tmp_path, monkeypatch):
    pytest.importorskip("webdataset")
    monkeypatch.chdir(tmp_path)  # tars are written below it
    about = ("loader.kind=webdataset", "loader.num_workers=1", "training.print_every=1", *EVERY)
    about = (*about, "training.validate_every=0")
    with monkeypatch.context() as patch:
        interrupted_after(7 + 3, patch)
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            done(spec_of(digits, tmp_path / "first", *about))
    first = the_run(tmp_path / "first")
    assert (state_in(first)["epoch"], state_in(first)["batches"]["step"]) == (1, 0)
    rest = done(spec_of(digits, tmp_path / "rest", *about, f"training.resume={first}"))
    assert [epoch.train.samples for epoch in rest.epochs] == [50, 50]
    assert any("so the orders of the first epochs repeat" in note for note in rest.notes)
    with pytest.raises(ConfigError, match="loader.kind webdataset cannot resume within an epoch"):
        done(spec_of(digits, tmp_path / "refused", *about, "training.checkpoint_steps=2"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "super"])
def test_epochs_of_a_number_of_steps_resume_exactly(digits, tmp_path, monkeypatch, kind):
    """An epoch has nine steps, the loader seven batches. Checkpoints follow every fourth step."""
    about = (f"loader.kind={kind}", "epochs=2", "training.steps_per_epoch=9", "training.validate_every=0")
    whole = spec_of(digits, tmp_path / "whole", *about, "training.checkpoint_steps=4")
    done(whole)
    directory = the_run(tmp_path / "whole")
    steps = steps_of(directory)
    assert [step[:3] for step in steps] == [(epoch, "train", step) for epoch in (0, 1) for step in range(9)]
    assert len({step[3] for step in steps}) == 18, "each pass has a new order"
    assert state_in(directory)["epoch"] == 2
    with monkeypatch.context() as patch:
        kept = every_checkpoint(tmp_path, patch)
        done(spec_of(digits, tmp_path / "again", *about, "training.checkpoint_steps=4"))
    assert len(kept) == 6
    for number, (path, at) in enumerate(zip(kept[:5], (4, 8, 9, 13, 17), strict=True)):
        output = tmp_path / f"from{number}"
        done(spec_of(digits, output, *about, f"training.resume={path}"))
        assert steps_of(the_run(output)) == steps[at:]


@pytest.mark.parametrize("kind", ["torch", "super"])
def test_a_checkpoint_of_another_run_is_refused_with_the_differences(digits, tmp_path, kind):
    data = tmp_path / "other"  # a running coordinator does not list a directory again
    shutil.copytree(digits, data)
    about = (f"loader.kind={kind}", *EVERY)
    done(spec_of(digits, tmp_path / "runs", "epochs=1", *about))
    resume = f"training.resume={the_run(tmp_path / 'runs') / 'checkpoints' / 'last.pt'}"
    with pytest.raises(ConfigError, match="all 1 epochs are trained"):
        done(spec_of(digits, tmp_path / "refused", *about, resume, "epochs=1"))
    for split in ("train", "val"):
        first = next(path for path in sorted((data / split).rglob("*")) if path.is_file())
        first.write_bytes(first.read_bytes() + b"\0")
    others = ("recipe.resize=72", "model.name=vit_mini", "loader.batch_size=4")
    with pytest.raises(ConfigError) as caught:
        done(spec_of(data, tmp_path / "refused", *about, resume, *others))
    for text in (
        "model.name is 'small_cnn' there but 'vit_mini' here",
        "recipe.resize is 64 there but 72 here",
        "images of a step (loader.batch_size times ranks) is 8 there but 4 here",
        "epochs is 1 there but 3 here",
        "fingerprint of the training data is '",
        "fingerprint of the validation data is '",
        "(a fingerprint changes when files are added",
    ):
        assert text in str(caught.value)
