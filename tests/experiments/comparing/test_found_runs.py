"""Runs that were made elsewhere: what their reports allow to be compared, and what not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from superdl.experiments.comparing.found_runs import compare_runs
from superdl.experiments.monitoring.monitor import GroupUsage, PhaseUsage, Utilization
from superdl.experiments.output import write_json
from superdl.experiments.records import EpochSummary, PassSummary
from superdl.experiments.reporting.run_report import RunReport
from superdl.experiments.spec import parse_spec

if TYPE_CHECKING:
    from pathlib import Path


def one_pass(wall_s: float = 10.0) -> PassSummary:
    counted = {"samples": 4000, "batches": 10, "hits": 0, "misses": 0, "size_bytes": 1, "invocations": None}
    seconds = {"wall_s": wall_s, "first_batch_s": 0.5, "wait_s": 1.0, "read_s": 0.0, "compute_s": 8.0}
    learnt = {"loss": 0.5, "accuracy": 0.9, "images_per_s": 4000 / wall_s}
    return PassSummary(**counted, **seconds, **learnt, decode_s=None, job=None)


def found_run(place: Path, *epochs: EpochSummary, **changes: object) -> str:
    """The directory of a run of which only the report is there."""
    place.mkdir(parents=True)
    trainer = GroupUsage(1, cpu_s=16.0, cpu_cores=1.6, rss_bytes_max=1, pss_bytes_max=1)
    phases = tuple(
        PhaseUsage(one.epoch, "train", 10.0, 3, {"trainer": trainer}, None, None) for one in epochs
    )
    values = {
        "name": "found",
        "status": "finished",
        "reason": None,
        "started_at": "2026-11-22T10:00:00+00:00",
        "wall_s": 30.0,
        "directory": str(place),
        "classes": ("a", "b"),
        "train_samples": 4000,
        "val_samples": None,
        "epochs": epochs,
        "spec": parse_spec({"name": "found", "data": {"train": "digits"}}).to_mapping(),
        "environment": {},
        "utilization": Utilization(1.0, 3, 0.0, phases),
    }
    report = RunReport(**(values | changes))  # type: ignore[arg-type]  # names of fields
    write_json(report.to_mapping(), place / "report.json")
    return str(place)


def test_no_cpu_by_image_is_told_of_several_ranks(tmp_path: Path) -> None:
    epochs = [EpochSummary(at, one_pass(), None) for at in range(2)]
    alone = found_run(tmp_path / "alone", *epochs)
    ranks = found_run(tmp_path / "ranks", *epochs, ranks=4)
    found = compare_runs([f"alone={alone}", f"ranks={ranks}"])
    assert found.figures_of("alone")[0].cpu_ms_per_image == pytest.approx(4.0)
    of_ranks = found.figures_of("ranks")[0]
    assert (of_ranks.cpu_ms_per_image, of_ranks.outside_ms_per_image) == (None, None)
    assert of_ranks.images_per_s == pytest.approx(400.0)
    assert any(note.startswith("ranks had 4 ranks: their CPU is not compared") for note in found.notes)


def test_a_run_that_went_on_has_its_warmup_from_where_it_went_on(tmp_path: Path) -> None:
    """Its first epoch is cold, whatever its number."""
    cold, warm = one_pass(wall_s=140.0), one_pass(wall_s=40.0)
    resumed = found_run(tmp_path / "on", EpochSummary(3, cold, None), EpochSummary(4, warm, None))
    found = compare_runs([resumed])
    figures = found.figures_of("found")[0]
    assert figures.images_per_s == pytest.approx(100.0)
    assert figures.cpu_ms_per_image == pytest.approx(4.0)
    assert any("went on with epoch 4: its warm-up is counted from there" in note for note in found.notes)
    whole = found_run(tmp_path / "whole", EpochSummary(0, cold, None), EpochSummary(1, warm, None))
    assert not any("went on" in note for note in compare_runs([whole]).notes)
