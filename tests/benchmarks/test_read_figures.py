"""The rows of ``superdl bench read`` say what the arms measured, and ratios of rows that belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.arm import ArmResult
from benchmarks.contenders import BOTO3, PILLOW, RAM, SOCKET, SUPER
from benchmarks.image_sets import ImageSet
from benchmarks.read_figures import COLUMNS, Cell, Run, rows_of

SET = ImageSet("photos", "about", "/data/photos-9/train", 100, 256, 224)
RESULT = ArmResult(
    images=1000,
    batches=4,
    wall_s=2.0,
    main_cpu_s=0.1,
    workers_cpu_s=0.0,
    cache_cpu_s=0.02,
    coordinator_cpu_s=0.03,
    functions_cpu_s=0.04,
    store_cpu_s=0.05,
    produced=0,
    checksum=1,
)


def cell(contender: str, workers: int) -> Cell:
    return Cell(SET, 256, workers, contender)


def rows(*measured: tuple[Cell, float]) -> dict[Cell, dict]:
    """The rows of cells whose arms took so many CPU seconds in the main process for 1000 images."""
    runs = [Run(1, one, replace(RESULT, main_cpu_s=cpu_s)) for one, cpu_s in measured]
    cells = list(dict.fromkeys(one for one, _ in measured))
    return dict(zip(cells, rows_of(cells, runs), strict=True))


def test_figures_are_medians_in_milliseconds_per_image():
    one = cell(SUPER, 2)
    results = [
        replace(RESULT, main_cpu_s=main, workers_cpu_s=workers, wall_s=wall)
        for main, workers, wall in ((0.1, 0.2, 1.0), (0.2, 0.4, 2.0), (0.1, 0.4, 4.0))
    ]
    (row,) = rows_of([one], [Run(number, one, result) for number, result in enumerate(results)])
    assert row["cpu_ms_per_image"] == pytest.approx(0.5)
    assert (row["cpu_ms_per_image_min"], row["cpu_ms_per_image_max"]) == pytest.approx((0.3, 0.6))
    assert row["main_cpu_ms_per_image"] == pytest.approx(0.1)
    assert row["workers_cpu_ms_per_image"] == pytest.approx(0.4)
    assert row["cache_cpu_ms_per_image"] == pytest.approx(0.02)
    assert row["coordinator_cpu_ms_per_image"] == pytest.approx(0.03)
    assert row["functions_cpu_ms_per_image"] == pytest.approx(0.04)
    assert row["store_cpu_ms_per_image"] == pytest.approx(0.05)
    assert row["images_per_s"] == pytest.approx(500)


def test_ratios_are_to_the_same_workers_and_to_the_socket_loop_of_the_main_process():
    found = rows(
        (cell(PILLOW, 0), 3.0),
        (cell(BOTO3, 0), 5.0),
        (cell(RAM, 0), 0.1),
        (cell(SOCKET, 0), 0.04),
        (cell(SUPER, 0), 0.05),
        (cell(PILLOW, 2), 2.8),
        (cell(RAM, 2), 0.2),
        (cell(SUPER, 2), 0.1),
    )
    alone, beside = found[cell(SUPER, 0)], found[cell(SUPER, 2)]
    assert alone["times_less_than_pillow"] == pytest.approx(60)
    assert alone["times_less_than_boto3"] == pytest.approx(100)
    assert alone["times_ram_array"] == pytest.approx(0.5)
    assert alone["times_socket_loop"] == pytest.approx(1.25)
    assert beside["times_less_than_pillow"] == pytest.approx(28)
    assert beside["times_less_than_boto3"] is None  # there is none with two workers
    assert beside["times_ram_array"] == pytest.approx(0.5)
    assert beside["times_socket_loop"] == pytest.approx(2.5)
    assert found[cell(PILLOW, 0)]["times_less_than_pillow"] == 1


def test_a_loader_that_is_not_here_has_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr("benchmarks.contenders.find_spec", lambda _: None)
    absent = cell("webdataset", 0)
    (row,) = rows_of([absent], [])
    assert row["loader"] == "WebDataset: not installed"
    assert "make .venv-bench" in row["note"]
    assert all(column.cell(row) for column in COLUMNS)
    assert row["cpu_ms_per_image"] is None
    assert row["times_less_than_pillow"] is None
