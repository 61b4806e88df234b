"""Whole runs: the files they write, and what they report if something fails."""

import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.monitoring import ProcessGroups
from superdl.experiments.run import run
from superdl.experiments.spec import load_spec, parse_spec
from superdl.super_wire.errors import BadSampleError, ConfigError, SourceError
from tests.experiments.small_runs import PIXELS, quiet, steps_of
from tests.experiments.small_runs import spec_of as small_spec
from tests.experiments.small_runs import the_run as run_in
from tests.fixtures.stack import Stack


def spec_of(images, *overrides):
    own = ("name=colours", "epochs=2", *PIXELS)
    return small_spec(images, images.parent / "runs", *own, *overrides)


def the_run(images):
    return run_in(images.parent / "runs")


def files_in(directory):
    return {path.relative_to(directory) for path in Path(directory).rglob("*") if path.is_file()}


def test_the_files_of_a_run_are_uploaded_at_its_end(colours, object_store):
    bucket = object_store.directory / "results"
    bucket.mkdir()
    report = run(
        spec_of(colours, "output=s3://results/mine/", "training.checkpoint_every=2"), console=quiet()
    )
    (uploaded,) = (bucket / "mine").iterdir()
    assert files_in(uploaded) == files_in(report.directory)
    assert json.loads((uploaded / "report.json").read_text())["status"] == "finished"
    shutil.rmtree(report.directory)
    console = quiet()
    with pytest.raises(SourceError, match="nobody"):
        run(spec_of(colours, "output=s3://nobody/mine"), console=console)
    assert "step 1" not in console.file.getvalue(), "it fails before training"


def test_a_run_writes_all_files_into_one_directory(colours):
    console = quiet()
    report = run(spec_of(colours), console=console)
    directory = the_run(colours)
    assert directory.name.startswith("colours-2")
    assert report.directory == str(directory)
    assert sorted(entry.name for entry in directory.iterdir()) == [
        "report.html",
        "report.json",
        "spec.yaml",
        "steps.jsonl",
    ]
    assert load_spec(directory / "spec.yaml") == spec_of(colours)

    loaded = json.loads((directory / "report.json").read_text())
    assert (loaded["status"], loaded["reason"], loaded["notes"]) == ("finished", None, [])
    assert loaded["model"] == "small_cnn, not pretrained"
    assert console.file.getvalue().startswith("model small_cnn, not pretrained\n")
    assert "model small_cnn, not pretrained" in (directory / "report.html").read_text()
    assert (loaded["classes"], loaded["train_samples"], loaded["val_samples"]) == (["blue", "red"], 24, 8)
    assert len(loaded["epochs"]) == 2
    assert parse_spec(loaded["spec"]) == spec_of(colours)
    known = {"python", "torch_threads", "usable_cpus", "device", "packages", "cpu", "gpus"}
    assert known <= loaded["environment"].keys()

    steps = [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    assert [(step["epoch"], step["split"], step["samples"]) for step in steps] == [
        (epoch, split, 8) for epoch in range(2) for split in ("train", "train", "train", "val")
    ]
    assert "validation accuracy" in console.file.getvalue()

    stalls = [epoch[split]["stalls"] for epoch in loaded["epochs"] for split in ("train", "val")]
    assert [stall["steps"] for stall in stalls] == [3, 1, 3, 1]
    assert {cause for stall in stalls for cause in stall["causes"]} <= {"starting", "storage", "decoding"}
    assert [point["epochs_done"] for point in loaded["learning"]] == [1.0, 2.0]
    losses = [step["loss"] for step in steps if step["split"] == "train"]
    assert [point["loss"] for point in loaded["learning"]] == [
        pytest.approx(sum(losses[:3]) / 3),
        pytest.approx(sum(losses[3:]) / 3),
    ]


def test_resource_use_is_reported_by_phase(colours):
    earlier = set(ProcessGroups().read())  # groups of earlier tests in this process
    report = run(spec_of(colours, "loader.num_workers=1"), console=quiet())
    phases = report.phases
    assert [(phase.epoch, phase.split) for phase in phases] == [
        (None, "start"),
        *((epoch, split) for epoch in range(2) for split in ("train", "val")),
    ]
    own = {"trainer", "workers", "other"}
    assert all(set(phase.groups) <= own | earlier for phase in phases), "no services of SUPER"
    # Each loader has a worker, which persists.
    assert phases[1].groups["workers"].processes_max >= 1
    assert phases[2].groups["workers"].processes_max >= 2
    assert all(phase.gpu_percent is None for phase in phases)
    for phase, epoch in zip(phases[1::2], report.epochs, strict=True):
        assert phase.wall_s >= epoch.train.wall_s


def test_a_run_skips_and_lists_bad_samples_even_if_they_fill_batches(colours):
    broken = sorted((colours / "train").glob("*/*.png"))[::5]
    for file in broken:
        file.write_text("no image")
    with Stack() as stack:
        own = (
            "epochs=2",
            "loader.kind=super-threads",
            "loader.batch_size=1",
            "loader.on_bad_sample=skip",
            "training.checkpoint_steps=1",
            f"loader.coordinator={stack.address}",
        )
        report = run(spec_of(colours, *own), console=quiet())
        assert [epoch.train.samples for epoch in report.epochs] == [24 - len(broken)] * 2
        notes = json.loads((the_run(colours) / "report.json").read_text())["notes"]
        for file in broken:
            assert any(f"{file.parent.name}/{file.name}" in note for note in notes)
        spec = spec_of(colours, *own)
        source = Source(str(colours / "train"))
        opened = open_loader(LoaderRequest(source, spec.recipe, spec.loader, False, 0, False))
        batches = iter(opened)
        seen = [labels.tolist() for _, labels, _ in islice(batches, 3)]
        opened.load_state_dict(opened.state_dict(3))
        seen += [labels.tolist() for _, labels, _ in opened]
        opened.close()
    assert len(seen) == 24 - len(broken)
    with pytest.raises(ConfigError, match="on_bad_sample"):
        spec_of(colours, "loader.on_bad_sample=skip")


def test_a_failed_run_reports_the_reason(colours):
    (colours / "val" / "green").mkdir()
    Image.new("RGB", (16, 16), (0, 200, 0)).save(colours / "val" / "green" / "0.png")
    console = quiet()
    with pytest.raises(SourceError, match="the 2 given classes: 'green'"):
        run(spec_of(colours), console=console)
    assert "Failed after 0 of 2 epochs in " in console.file.getvalue()
    assert ": SourceError: " in console.file.getvalue()
    assert f"file://{colours / 'val'}" in console.file.getvalue()
    loaded = json.loads((the_run(colours) / "report.json").read_text())
    assert loaded["status"] == "failed"
    assert "green" in loaded["reason"]


def test_a_run_that_fails_within_a_pass_writes_its_last_steps(colours):
    """Steps are held back while a GPU may still compute them."""
    (colours / "val" / "red" / "3.png").write_bytes(b"no image")  # the last one in key order
    with pytest.raises(BadSampleError, match=r"red/3\.png"):
        run(spec_of(colours, "loader.batch_size=2"), console=quiet())
    loaded = json.loads((the_run(colours) / "report.json").read_text())
    assert (loaded["status"], loaded["epochs"]) == ("failed", [])
    steps = [place for *place, _, _ in steps_of(the_run(colours))]
    assert steps[12:] == [[0, "val", 0], [0, "val", 1], [0, "val", 2]]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_run_learns_the_digits(tmp_path, seed):
    overrides = [
        f"seed={seed}",
        "loader.kind=torch",
        f"data.directory={tmp_path / 'digits'}",
        f"output={tmp_path}",
    ]
    report = run(load_spec("digits", overrides), console=quiet())
    assert report.val_accuracy > 0.975
