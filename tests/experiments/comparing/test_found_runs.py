"""Runs that were made elsewhere: what their reports allow to be compared, and what not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from superdl.experiments.comparing.comparison import compare_runs
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def found_run(place: Path, *walls_s: float, first: int = 0, **changes: object) -> str:
    """The directory of a run of which only the report is there."""
    place.mkdir(parents=True)
    one = {"samples": 4000, "batches": 500, "wait_s": 1.0, "first_batch_s": 0.5, "job": None, "stalls": None}
    report = {
        "format": 2,
        "name": "found",
        "ranks": 1,
        "status": "finished",
        "wall_s": 30.0,
        "train_samples": 4000,
        "val_samples": None,
        "epochs": [
            {"epoch": first + at, "train": one | {"wall_s": wall_s}, "val": None}
            for at, wall_s in enumerate(walls_s)
        ],
        "spec": {
            "loader": {"kind": "torch", "batch_size": 8},
            "cost": {"cache_node": None},
            "compare": {"warmup_epochs": 1},
        },
        "environment": {},
        "utilization": None,
        "first_batch_s": None,
        "bill": None,
        "executor": None,
        "loader_settings": {"num_workers": 2},
    }
    (place / "report.json").write_text(json.dumps(report | changes))
    return str(place)


def test_runs_are_compared_by_name_and_what_they_do_not_tell_is_said(tmp_path: Path) -> None:
    """Of a run that went on the first epoch is cold, whatever its number."""
    alone = found_run(tmp_path / "alone", 140.0, 40.0, executor="as the coordinator at x decides")
    ranks = found_run(tmp_path / "ranks", 10.0, 20.0, ranks=4, environment={"machine": "other"})
    on = found_run(tmp_path / "on", 140.0, 50.0, first=3)
    found = compare_runs([f"alone={alone}", f"ranks={ranks}", f"alone={on}"])
    assert [arm.name for arm in found.arms] == ["alone", "ranks"]
    assert [one.images_per_s for one in found.figures_of("alone")] == [100.0, 80.0]
    notes = " ".join(found.notes)
    for words in (
        "ranks had 4 ranks: their CPU is not compared",
        "of 2 different machines",
        "alone used a coordinator that it did not start",
        "on went on with epoch 4: its warm-up is counted from there",
    ):
        assert words in notes
    assert "went on" not in " ".join(compare_runs([alone]).notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "failed"}, "is failed: leave it out"),
        ({"epochs": []}, r"1 warm-up epoch\(s\) leave nothing to compare"),
        ({"format": 1}, "is not of format 2, which this version reads"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused_by_name(tmp_path: Path, changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        compare_runs([found_run(tmp_path / "run", 1.0, 1.0, **changes)])
