"""A run allows the steps that come with it to what it starts, and nothing that it does not name or ship."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest
import yaml

from superdl.experiments.run.opening import shipped_steps_allowed
from superdl.experiments.spec import RecipeSpec
from superdl.super_wire.errors import RecipeError
from tests.fixtures.images import write_images

HEAVY = {
    "op": "custom",
    "name": "experiments.augmentations.heavy:heavy@1",
    "params": {"rounds": 1},
    "random": True,
}
OTHERS = {"op": "custom", "name": "experiments.models:build_model@1"}


@pytest.fixture(autouse=True)
def nothing_is_allowed(monkeypatch):
    for name in ("SUPER_STEP_MODULES", "SUPER_COORDINATOR", "SUPER_EXECUTOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("before", "steps", "within"),
    [
        (None, [HEAVY], "superdl.experiments.augmentations.heavy"),
        ("mine,other", [HEAVY, HEAVY], "mine,other,experiments.augmentations.heavy"),
        (None, [{"op": "resize", "size": 8}], None),
        ("mine", [OTHERS], "mine"),
        (None, [OTHERS], None),
        (None, None, None),
    ],
)
def test_what_is_allowed_within_and_afterwards(monkeypatch, before, steps, within):
    if before is not None:
        monkeypatch.setenv("SUPER_STEP_MODULES", before)
    recipe = RecipeSpec(steps=None if steps is None else tuple(steps))
    with contextlib.suppress(KeyError), shipped_steps_allowed(recipe):
        assert os.environ.get("SUPER_STEP_MODULES") == within
        raise KeyError
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
    return subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "superdl.main",
            "run",
            str(tmp_path / "spec.yaml"),
            "--json",
            "--no-page",
        ],
        capture_output=True,
        text=True,
        check=False,
    )


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
