"""The report: one set of figures in the table and in the JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from superdl.cost.bill import PaidByHour, bill_of, prices_for
from superdl.experiments.monitoring import PhaseUsage, Utilization
from superdl.experiments.output import write_json
from superdl.experiments.records import CauseTotal, EpochSummary, LoaderCounters, PassSummary, StallSummary
from superdl.experiments.reporting.run_report import RunReport, print_report

HIRED = PaidByHour(machine="g4dn.xlarge")

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


def report(**changes: object) -> RunReport:
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


def printed(value: RunReport, width: int = 80) -> str:
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


def test_a_narrow_terminal_hides_no_digit():
    assert "…" not in printed(report(), width=40)


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


def test_throughput_is_over_all_epochs():
    slow = replace(TRAIN, wall_s=6.0)
    epochs = (EpochSummary(0, slow, VAL), EpochSummary(1, TRAIN, replace(VAL, accuracy=0.99)))
    both = report(epochs=epochs)
    assert both.images_per_s == pytest.approx(2 * 1438 / 8.0)
    assert both.val_accuracy == 0.99


def test_a_failed_run_says_why_in_words_as_they_are():
    text = printed(
        report(status="failed", reason="ReadTimeoutError: batch [bold]7[/bold]", epochs=(), notes=("n1",))
    )
    assert "Failed after 0 of 1 epochs in 5.50 s: ReadTimeoutError: batch [bold]7[/bold]." in text
    assert "Note: n1" in text
    assert "accuracy" not in text.lower()


def test_top5_stalls_and_costs_are_said_where_they_are_known():
    plain = printed(report())
    assert "Top-5" not in plain
    assert "mostly because" not in plain
    assert "cost of the run" not in plain
    stalls = StallSummary(45, 3, 1.25, {"decode": CauseTotal(1, 0.25), "cold_start": CauseTotal(2, 1.0)})
    epochs = (EpochSummary(0, replace(TRAIN, stalls=stalls), replace(VAL, top5_accuracy=0.999)),)
    bill = bill_of([], hired=HIRED, executor=None, wall_s=3600.0, prices=prices_for(HIRED), rest=None)
    text = printed(report(epochs=epochs, bill=bill))
    assert "validation images. Top-5: 99.9%." in text
    assert "mostly because workers, functions or the look-ahead were starting (1.00 s)" in text
    assert "try persistent workers" in text
    assert "$0.526 cost of the run" in text


def test_the_first_batch_is_counted_from_the_start_of_the_run():
    start = PhaseUsage(None, "start", 2.5, 3, {}, None, None)
    assert report(utilization=Utilization((start,))).first_batch_s == 3.0
    assert report().first_batch_s is None


def test_the_accuracy_is_of_the_last_epoch_that_was_validated_or_it_is_said_that_there_is_none():
    without = report(epochs=(EpochSummary(0, TRAIN, None),), val_samples=None)
    assert without.val_accuracy is None
    assert "no validation finished (data.val, training.validate_every)" in printed(without)
    epochs = (EpochSummary(0, TRAIN, VAL), EpochSummary(1, TRAIN, None))
    value = report(epochs=epochs, spec={"epochs": 2})
    assert "Accuracy: after epoch 1 the model was right for 98.1%" in printed(value)
    assert value.to_mapping()["val_accuracy"] == 0.9812
