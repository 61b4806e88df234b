"""The report: one set of figures in the table and in the JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from superdl.experiments.output import write_json
from superdl.experiments.records import EpochSummary, LoaderCounters, PassSummary
from superdl.experiments.reporting.run_report import RunReport, print_report

TRAIN = PassSummary(
    samples=1438,
    batches=45,
    wall_s=2.0,
    first_batch_s=0.5,
    wait_s=1.25,
    read_s=0.31,
    compute_s=0.62,
    fetch_s=0.75,
    decode_s=4.56,
    invocations=78,
    hits=1400,
    misses=38,
    size_bytes=17_670_144,
    loss=0.5,
    accuracy=0.8765,
    images_per_s=719.0,
    job=LoaderCounters(invocations=78, decode_s=4.56, cache_hits=1400, cache_misses=38),
)
VAL = replace(TRAIN, samples=359, accuracy=0.9812, fetch_s=None, decode_s=None, invocations=None, job=None)


def report(**changes):
    return replace(
        RunReport(
            name="digits",
            status="finished",
            reason=None,
            started_at="2026-01-01T00:00:00+00:00",
            wall_s=5.5,
            directory="runs/digits-1",
            classes=("0", "1"),
            train_samples=1438,
            val_samples=359,
            epochs=(EpochSummary(0, TRAIN, VAL),),
            spec={"epochs": 1},
            environment={"python": "3.11"},
        ),
        **changes,  # type: ignore[arg-type]  # names of fields
    )


def printed(value, width=80):
    file = io.StringIO()
    print_report(value, Console(file=file, width=width))
    return file.getvalue()


def test_the_table_has_the_figures_and_fits_80_columns():
    text = printed(report())
    rows = [line.split() for line in text.splitlines() if line.split()[1:2] in (["train"], ["val"])]
    assert rows == [
        ["1", "train", "0.8765", "719", "1.25", "0.31", "0.75", "4.56", "0.62", "78", "1,400", "38", "0"],
        ["1", "val", "0.9812", "719", "1.25", "0.31", "-", "-", "0.62", "-", "1,400", "38", "0"],
    ]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "Accuracy: after epoch 1 the model was right for 98.1% of 359 validation images." in text
    assert "Written to runs/digits-1" in text


def test_the_json_has_the_same_figures_and_what_json_has_not_by_name_or_null(tmp_path):
    path = tmp_path / "report.json"
    path.write_text("x" * 100_000)
    diverged = EpochSummary(1, replace(TRAIN, loss=math.nan), None)
    settings = {"workers": 2, "collate": max, "size": None}
    value = report(epochs=(*report().epochs, diverged), loader_settings=settings)
    write_json(value.to_mapping(), path)
    loaded = json.loads(path.read_text())
    train, val = loaded["epochs"][0]["train"], loaded["epochs"][0]["val"]
    names = ("wait_s", "read_s", "decode_s", "compute_s", "invocations", "hits", "misses")
    assert [train[name] for name in names] == [1.25, 0.31, 4.56, 0.62, 78, 1400, 38]
    assert train["job"]["cache_hits"] == 1400
    assert (val["decode_s"], val["accuracy"]) == (None, 0.9812)
    assert loaded["epochs"][1]["train"]["loss"] is None
    assert (loaded["val_accuracy"], loaded["images_per_s"], loaded["format"]) == (0.9812, 719.0, 2)
    assert loaded["environment"] == {"python": "3.11"}
    assert loaded["loader_settings"] == settings | {"collate": "<built-in function max>"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
