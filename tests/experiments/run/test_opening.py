"""Custom steps of runs, and step times."""

import json
import subprocess
import sys
import time

import pytest
import yaml

from superdl.experiments.run.listeners import StepTimes
from tests.experiments.small_runs import step_record
from tests.fixtures.images import write_images

HEAVY = {
    "op": "custom",
    "name": "experiments.augmentations.heavy:heavy@1",
    "params": {"rounds": 1},
    "random": True,
}
OTHERS = {"op": "custom", "name": "experiments.models:build_model@1"}


def superdl_run(tmp_path, steps):
    """Run in a process of its own, which ends its services."""
    spec = {
        "epochs": 2,
        "output": str(tmp_path / "runs"),
        "data": {"train": str(write_images(tmp_path / "images", 24))},
        "recipe": {"resize": 24, "crop": 24, "steps": steps},
        "loader": {"batch_size": 8, "num_workers": 0},
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-P", "-m", "superdl.main", "run", str(tmp_path / "spec.yaml")]
    return subprocess.run([*command, "--json", "--no-page"], capture_output=True, text=True, check=False)


CROP = [{"op": "resize", "size": 24}, {"op": "center_crop", "size": 24}]


def test_a_run_may_use_a_shipped_custom_step(tmp_path):
    process = superdl_run(tmp_path, [*CROP, HEAVY])
    assert process.returncode == 0, process.stderr
    assert [epoch["train"]["samples"] for epoch in json.loads(process.stdout)["epochs"]] == [24, 24]


@pytest.mark.slow
def test_other_custom_steps_are_refused(tmp_path):
    process = superdl_run(tmp_path, [*CROP, OTHERS])
    assert process.returncode in (1, 2)
    assert "SUPER_STEP_MODULES does not list experiments.models" in process.stderr


def test_step_times_are_means_of_groups_and_of_the_epoch_so_far():
    lines = []
    times = StepTimes(2, lines.append)
    times.on_pass_start(0, "train", 6)
    began_s = time.time()
    steps = [step_record(step=step, finished_at_s=began_s + (step + 1) ** 2) for step in range(5)]
    times.on_steps([*steps, step_record(finished_at_s=began_s, split="val")])
    assert [(group.step, group.steps) for group in times.times] == [(2, 2), (4, 2)]
    assert [group.mean_s for group in times.times] == pytest.approx([2.0, 6.0], abs=0.1)
    assert [group.since_start_s for group in times.times] == pytest.approx([2.0, 4.0], abs=0.1)
    assert len(lines) == 2
