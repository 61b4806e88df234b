"""The report of a run as a table."""

import io
from dataclasses import replace

from rich.console import Console

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
    hits=1400,
    misses=38,
    size_bytes=17_670_144,
    loss=0.5,
    accuracy=0.8765,
    images_per_s=719.0,
    job=LoaderCounters(invocations=78, decode_s=4.56, cache_hits=1400, cache_misses=38),
)
VAL = replace(TRAIN, samples=359, accuracy=0.9812, job=None)


def test_the_table_has_the_figures_and_fits_80_columns():
    report = RunReport(
        name="digits",
        status="finished",
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=5.5,
        directory="runs/digits-1",
        epochs=(EpochSummary(0, TRAIN, VAL),),
        spec={"epochs": 1, "data": {"train": None}},
        environment={"python": "3.11"},
    )
    file = io.StringIO()
    print_report(report, Console(file=file, width=80))
    text = file.getvalue()
    rows = [line.split() for line in text.splitlines() if line.split()[1:2] in (["train"], ["val"])]
    assert rows == [
        ["1", "train", "1,438", "2.00", "719", "0.500", "87.6", "62.5", "0.500"],
        ["1", "val", "359", "2.00", "719", "0.500", "98.1", "62.5", "0.500"],
    ]
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert "throughput" in text
    assert "Accuracy: 98.1% of 359 validation images after epoch 1." in text
    assert "Written to runs/digits-1" in text
