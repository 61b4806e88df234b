"""``superdl evaluate``: metrics equal those of the run's own validation, on any number of ranks."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from superdl.main import main
from tests.experiments.small_runs import (
    CHANNELS,
    LAUNCH_TIMEOUT_S,
    PIXELS,
    done,
    spec_of,
    started,
    the_run,
    write_colours,
)

VAL_PER_CLASS = 5  # three classes: 15 images, which two ranks pad, in batches of 4 whose last is short


@pytest.fixture(scope="module")
def shades(tmp_path_factory):
    """Three classes of plain colours, with a green image among the blue ones."""
    directory = tmp_path_factory.mktemp("shades")
    write_colours(directory, train=8, val=VAL_PER_CLASS, classes=CHANNELS)
    for split in ("train", "val"):
        (directory / split / "blue" / "0.png").write_bytes(
            (directory / split / "green" / "0.png").read_bytes()
        )
    return directory


@pytest.fixture(scope="module")
def trained(shades, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    settings = (*PIXELS, "training.precision=float32", "optimizer.lr=0.01")
    batch = ("loader.batch_size=4", "model.name=vit_mini", "training.checkpoint_every=1")
    spec = spec_of(shades, output, *settings, *batch)
    done(spec)
    return the_run(output), spec


def evaluated(run, capsys, *words):
    assert main(["evaluate", str(run), "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_metrics_equal_those_of_the_run(trained, capsys):
    run, _ = trained
    report = json.loads((run / "report.json").read_text())
    last = evaluated(run, capsys, "--checkpoint=last")
    own = report["epochs"][-1]["val"]
    assert (last["samples"], last["top1"], last["top5"]) == (15, own["accuracy"], None)
    assert last["loss"] == pytest.approx(own["loss"], abs=1e-5)
    assert last["images_per_s"] > 0
    assert json.loads((run / "evaluation.json").read_text()) == last
    best = evaluated(run, capsys)
    assert best["checkpoint"].endswith("best.pt")
    assert best["top1"] == max(epoch["val"]["accuracy"] for epoch in report["epochs"])
    assert main(["evaluate", str(run)]) == 0
    assert f"top-1 {best['top1']:.4f}, loss" in capsys.readouterr().out


def test_other_images_need_the_classes_of_the_run(trained, shades, tmp_path, capsys):
    run, _ = trained
    whole = evaluated(run, capsys, f"--set=data.val={shades / 'train'}", "--set=loader.batch_size=24")
    assert (whole["samples"], whole["data"]) == (24, f"file://{shades / 'train'}")
    right = 0
    for name in ("blue", "green", "red"):  # alone, each would have the first label
        (tmp_path / name).mkdir()
        (tmp_path / name / name).symlink_to(shades / "train" / name)
        alone = evaluated(run, capsys, f"--set=data.val={tmp_path / name}")
        right += round(alone["top1"] * alone["samples"])
    assert right == round(whole["top1"] * 24)
    (tmp_path / "val" / "mauve").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "val" / "mauve" / "0.png")
    assert main(["evaluate", str(run), f"--set=data.val={tmp_path / 'val'}"]) == 1
    assert "'mauve'" in capsys.readouterr().err
    for words, message in (
        ([str(run), "--set=data.val=null"], "has no validation images. Add --set data.val="),
        ([str(run), "--set=model.name=small_cnn"], "best.pt belongs to another model"),
        ([str(tmp_path)], "is not a run directory: it has no spec.yaml"),
    ):
        assert main(["evaluate", *words]) == 2
        assert message in capsys.readouterr().err
    (run / "checkpoints" / "best.pt").rename(tmp_path / "best.pt")
    try:
        assert evaluated(run, capsys)["checkpoint"].endswith("last.pt")
        assert main(["evaluate", str(run), "--checkpoint=best"]) == 2
        assert "there is no best checkpoint in" in capsys.readouterr().err
    finally:
        (tmp_path / "best.pt").rename(run / "checkpoints" / "best.pt")


def test_code_in_a_checkpoint_is_not_run(trained, tmp_path, capsys):
    _, spec = trained
    (tmp_path / "checkpoints").mkdir()
    spec.write(tmp_path / "spec.yaml")
    torch.save({"format": Path}, tmp_path / "checkpoints" / "last.pt")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "evaluate: " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["torch", "super"])
def test_two_ranks_count_each_image_once(trained, tmp_path, capsys, kind, strategy):
    run, _ = trained
    alone = evaluated(run, capsys)
    words = ("--json", f"--set=loader.kind={kind}", f"--set=training.strategy={strategy}")
    process = started(2, tmp_path, "evaluate", str(run), *words)
    try:
        out, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    both = json.loads(out)
    assert (both["ranks"], both["samples"], both["top1"]) == (2, 15, alone["top1"])
    assert both["loss"] == pytest.approx(alone["loss"], abs=1e-6)
