"""What a spec says of functions reaches what the run starts; listeners."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml

from superdl.experiments.run.listeners import StepTimes
from superdl.experiments.run.training_run import executor_of, shipped_steps_allowed
from superdl.experiments.spec import RecipeSpec, load_spec
from superdl.super_wire.errors import RecipeError
from tests.experiments.small_runs import step_record
from tests.fixtures.images import write_images

HEAVY = {
    "op": "custom",
    "name": "experiments.augmentations.heavy:heavy@1",
    "params": {"rounds": 1},
    "random": True,
}
OTHERS = {"op": "custom", "name": "experiments.models:build_model@1"}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in ("SUPER_EXECUTOR", "SUPER_STEP_MODULES", "SUPER_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("overrides", "variables", "executor"),
    [
        ([], {}, "local"),
        ([], {"SUPER_EXECUTOR": "lambda"}, "lambda"),
        (["loader.kind=torch"], {"SUPER_EXECUTOR": "lambda"}, None),
        (["loader.coordinator=h:1"], {"SUPER_EXECUTOR": "lambda"}, "as the coordinator at h:1 decides"),
        ([], {"SUPER_COORDINATOR": "h:2"}, "as the coordinator at h:2 decides"),
    ],
)
def test_what_runs_functions(monkeypatch, overrides, variables, executor):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert executor_of(load_spec("digits", overrides)) == executor


@pytest.mark.parametrize(
    ("before", "steps", "within"),
    [
        (None, [HEAVY], "experiments.augmentations.heavy"),
        ("mine,other", [HEAVY, HEAVY], "mine,other,experiments.augmentations.heavy"),
        ("mine", [OTHERS, {"op": "resize", "size": 8}], "mine"),
        (None, [OTHERS], None),
        (None, None, None),
    ],
)
def test_the_steps_that_come_along_are_allowed_within(monkeypatch, before, steps, within):
    if before is not None:
        monkeypatch.setenv("SUPER_STEP_MODULES", before)
    recipe = RecipeSpec(steps=None if steps is None else tuple(steps))
    with shipped_steps_allowed(recipe):
        assert os.environ.get("SUPER_STEP_MODULES") == within
    assert os.environ.get("SUPER_STEP_MODULES") == before


def test_a_step_without_a_proper_name_is_refused():
    recipe = RecipeSpec(steps=({"op": "custom", "name": "heavy"},))
    with pytest.raises(RecipeError, match="module:function@version"), shipped_steps_allowed(recipe):
        pass


def superdl_run(tmp_path, steps):
    """In a process of its own: what it starts is to end with it."""
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


def test_a_run_trains_with_it_through_the_embedded_default(tmp_path):
    done = superdl_run(tmp_path, [*CROP, HEAVY])
    assert done.returncode == 0, done.stderr
    assert [epoch["train"]["samples"] for epoch in json.loads(done.stdout)["epochs"]] == [24, 24]


@pytest.mark.slow
def test_what_does_not_come_with_it_is_refused_by_its_functions(tmp_path):
    done = superdl_run(tmp_path, [*CROP, OTHERS])
    assert done.returncode in (1, 2)
    assert "SUPER_STEP_MODULES does not list experiments.models" in done.stderr


def step_times(*finished_after_s):
    """Groups of two of these steps, told together, as seconds from the start of the pass; and the lines."""
    lines = []
    times = StepTimes(2, lines.append)
    times.on_pass_start(0, "train", 6)
    begun_s = time.time()
    steps = [
        step_record(step=step, finished_at_s=begun_s + after_s)
        for step, after_s in enumerate(finished_after_s)
    ]
    times.on_steps([*steps, step_record(finished_at_s=begun_s, split="val")])
    return times.times, lines


def test_a_group_ends_when_its_steps_are_done_not_when_they_were_queued():
    """Steps on a GPU have finished by the time that they are told; ``finished_at_s`` is of queueing."""
    times = StepTimes(2, lambda _: None)
    times.on_pass_start(0, "train", 4)
    times.on_steps([step_record(step=step, finished_at_s=time.time() - 100.0) for step in (0, 1)])
    assert [(one.step, one.steps) for one in times.times] == [(2, 2)]
    assert times.times[0].mean_s >= 0.0


def test_groups_are_told_apart_and_beside_the_mean_since_the_start():
    """As the study mnist_split's original has it: a buffer that drains shows in the last group alone."""
    times, lines = step_times(*(3.0 * (step + 1) for step in range(5)))
    assert [one.step for one in times] == [2, 4], "validation is in none"
    assert times[1].mean_s == pytest.approx(3.0)
    assert lines[1] == "step 4: avg step time 3.000 s since the start, 3.000 s over the last 2"
    times, _ = step_times(*((step + 1) ** 2 for step in range(5)))
    assert [one.mean_s for one in times] == pytest.approx([2.0, 6.0], abs=0.1)
    assert [one.since_start_s for one in times] == pytest.approx([2.0, 4.0], abs=0.1)
