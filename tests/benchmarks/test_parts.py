"""Parts of benchmarks: checksums, figures and reports."""

import argparse
import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from benchmarks.harness.arm import Lap, checksum
from benchmarks.harness.processes import BenchmarkError
from benchmarks.harness.results import (
    BenchmarkReport,
    Column,
    Run,
    check_same_images,
    measured,
    print_report,
)


def test_a_report_has_medians_in_tables_by_group_and_names_the_machine():
    options = argparse.Namespace(command="bench", benchmark="read", rounds=1, data="/home/me", json=True)
    made = BenchmarkReport(
        method=["How it was measured."],
        columns=[
            Column("loader", "loader"),
            Column("cpu_ms", "CPU ms", ".3f"),
            Column("gets", "GETs", ".1f"),
        ],
        runs=[
            *(Run({"images": "a", "loader": "one"}, {"cpu_ms": ms}) for ms in (0.9, 0.12345, 0.1)),
            Run({"images": "b", "loader": "two"}, {}),
            Run({"images": "b", "loader": "three"}, {"cpu_ms": 0.5}),
        ],
        group_by=["images"],
    )
    report, content = measured(lambda *_: made, options, lambda _: None)
    console = Console(file=io.StringIO(), width=100)
    print_report(report, content, console)
    text = console.file.getvalue()
    titles = [line.strip() for line in text.splitlines() if line.startswith("read, ")]
    assert titles == ["read, images a", "read, images b"]
    words = text.split()
    assert "0.123" in words
    assert words[words.index("two") + 1] == "-"
    assert "GETs" not in words, "a table without such figures has no such column"
    assert "How it was measured." in text
    assert f"torch {content['environment']['packages']['torch']}" in text
    assert content["rows"][0]["cpu_ms"] == 0.12345
    assert len(content["runs"]) == 5
    assert content["settings"] == {"rounds": 1}


def test_the_checksum_tells_labels_that_were_exchanged():
    images, labels = torch.arange(24, dtype=torch.uint8).view(2, 3, 2, 2), torch.tensor([0, 1])
    assert checksum(images, labels) != checksum(images, labels.flip(0))
    assert checksum(images, labels) == checksum(images.flip(0), labels.flip(0))


def test_loaders_that_deliver_other_images_are_refused():
    runs = [Run({"images": "a", "loader": name}, {"checksum": 7}) for name in ("one", "two")]
    check_same_images(runs)
    with pytest.raises(BenchmarkError, match=r"for a: \['one', 'three'\]"):
        check_same_images([*runs, Run({"images": "a", "loader": "three"}, {"checksum": 8})])


def test_figures_are_milliseconds_for_each_image():
    lap = Lap(
        images=1000, first_s=0.1, wall_s=2.0, main_cpu_s=0.1, workers_cpu_s=0.4, cache_cpu_s=0.02,
        coordinator_cpu_s=0.03, functions_cpu_s=0.04, s3_cpu_s=0.05, decoded=500, gets=20,
    )  # fmt: skip
    figures = {name.removesuffix("_cpu_ms"): value for name, value in lap.figures().items()}
    assert figures == pytest.approx(
        {"main": 0.1, "workers": 0.4, "cache": 0.02, "coordinator": 0.03, "functions": 0.04, "s3": 0.05}
        | {"reader": 0.5, "all": 0.59, "images_per_s": 500, "first_batch_ms": 100, "decodes": 0.5}
        | {"gets": 0.02, "checksum": 0}
    )
    assert "decodes" not in replace(lap, decoded=None).figures()
