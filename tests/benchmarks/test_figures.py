"""The rows of the benchmarks' tables say what was measured, with ratios of what belongs together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import function, read, store, train
from benchmarks.arm import Lap
from benchmarks.contenders import PILLOW, SOCKET, SUPER, SUPER_LOADER, WEBDATASET
from benchmarks.function_arm import BARE, S3, FunctionArmResult
from benchmarks.image_sets import Loading
from benchmarks.results import Run
from benchmarks.store_arms import EpochFigures
from benchmarks.trainer import EpochResult, TrainResult

ARM = Lap(
    images=1000, first_s=0.1, wall_s=2.0, main_cpu_s=0.1, workers_cpu_s=0.0, cache_cpu_s=0.02,
    coordinator_cpu_s=0.03, functions_cpu_s=0.04, store_cpu_s=0.05, produced=0, store_requests=0,
    source_requests=20,
)  # fmt: skip
EPOCH = EpochResult(
    steps=10, images=1000, wall_s=4.0, wait_s=1.0, functions_cpu_s=0.0, services_cpu_s=0.0, produced=0,
    losses=[2.0, 1.0],
)  # fmt: skip


def cell(contender: str, workers: int) -> read.Cell:
    return read.Cell(Loading("photos", "/data/photos-9/train", 100, 256, 224, 256, workers), contender)


def test_read_tells_medians_in_milliseconds_per_image():
    one = cell(SUPER, 2)
    results = [
        replace(ARM, main_cpu_s=main, workers_cpu_s=workers, wall_s=wall)
        for main, workers, wall in ((0.1, 0.2, 1.0), (0.2, 0.4, 2.0), (0.1, 0.4, 4.0))
    ]
    runs = [Run(one.conditions(), number, result) for number, result in enumerate(results)]
    (row,) = read.rows_of([one], runs)
    figures = {
        name.removesuffix("_cpu_ms_per_image"): row[name] for name in row if name.endswith("_per_image")
    }
    assert figures == pytest.approx(
        {"cpu_ms_per_image": 0.5, "main": 0.1, "workers": 0.4, "cache": 0.02, "coordinator": 0.03}
        | {"functions": 0.04, "store": 0.05, "cpu_of_all_ms_per_image": 0.59, "gets_per_image": 0.02}
    )
    assert row["images_per_s"] == pytest.approx(500)


def test_read_compares_with_the_same_workers_and_with_the_socket_loop_of_the_main_process():
    cpu_s = {
        (PILLOW, 0): 3.0, (SOCKET, 0): 0.04, (SUPER, 0): 0.05, (PILLOW, 2): 2.8, (SUPER, 2): 0.1,
        (SUPER, 1): 0.1,
    }  # fmt: skip
    cells = {cell(*key): value for key, value in cpu_s.items()}
    runs = [Run(one.conditions(), 1, replace(ARM, main_cpu_s=value)) for one, value in cells.items()]
    rows = dict(zip(cpu_s, read.rows_of(list(cells), runs), strict=True))
    ratios = ("times_less_than_pillow", "times_socket_loop")
    assert [rows[SUPER, 0][name] for name in ratios] == pytest.approx([60, 1.25])
    assert rows[SUPER, 1]["times_less_than_pillow"] is None  # there is none with one worker
    assert [rows[SUPER, 2][name] for name in ratios] == pytest.approx([28, 2.5])
    assert rows[PILLOW, 0]["times_less_than_pillow"] == 1


def test_read_tells_the_share_of_the_fastest_webdataset_in_the_same_epoch():
    cells = [
        replace(cell(contender, workers), epoch=epoch)
        for contender, workers in ((WEBDATASET, 0), (WEBDATASET, 2), (SUPER_LOADER, 0))
        for epoch in read.EPOCHS[read.SHARDS]
    ]
    walls_s = (4.0, 4.0, 1.0, 2.0, 2.0, 0.1)
    runs = [
        Run(one.conditions(), 1, replace(ARM, wall_s=wall_s))
        for one, wall_s in zip(cells, walls_s, strict=True)
    ]
    shares = [row["share_of_webdataset"] for row in read.rows_of(cells, runs)]
    assert shares == pytest.approx([0.25, 0.5, 1, 1, 0.5, 20])
    alone = read.rows_of(cells[4:], runs[4:])
    assert [row["share_of_webdataset"] for row in alone] == [None, None]


def test_a_loader_that_is_not_here_has_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr("benchmarks.contenders.find_spec", lambda _: None)
    (row,) = read.rows_of([cell("webdataset", 0)], [])
    assert row["loader"] == "WebDataset: not installed"
    assert "make .venv-bench" in row["note"]
    assert all(column.cell(row) for column in read.COLUMNS)
    assert row["cpu_ms_per_image"] is row["times_less_than_pillow"] is None


def test_train_tells_step_time_waiting_and_gain_with_what_bounds_it():
    plain_epochs = [replace(EPOCH, wall_s=9.0), EPOCH]
    epochs = [
        replace(EPOCH, wall_s=2.0, functions_cpu_s=1.8, services_cpu_s=0.2, produced=1000),
        replace(EPOCH, wall_s=1.0, wait_s=0.1),
        replace(EPOCH, wall_s=1.2, wait_s=0.1),
    ]
    runs = [
        Run({"contender": PILLOW}, 1, TrainResult(plain_epochs, 7, 3.0, 1.0)),
        Run({"contender": SUPER}, 1, TrainResult(epochs, 7, None, None)),
    ]
    alone = train.Alone.of(runs)
    plain, cold, warm = train.rows_of(runs, alone, workers=2, other_cores=1)
    assert (plain["loader"], plain["epochs"], plain["gain"]) == ("DataLoader + Pillow", "later", 1)
    assert (plain["step_ms"], plain["wait_percent"]) == pytest.approx((400, 25))
    assert (cold["epochs"], warm["epochs"]) == ("cold", "warm")
    assert (cold["gain"], cold["functions_cpu_ms_per_image"]) == pytest.approx((2, 1.8))
    assert cold["gain_bound"] == pytest.approx(4 / 2)  # functions and services need 2 ms for an image
    assert warm["gain"] == pytest.approx(4 / 1.1)
    assert warm["gain_bound"] == pytest.approx(4 / 1)  # computing takes 1 ms
    assert warm["wait_percent"] == pytest.approx(100 * (0.1 + 0.1 / 1.2) / 2)
    # More cores for functions raise the bound, until computing is it.
    assert [alone.gain_bound(4.2, 3.0 / cores) for cores in (1, 2, 4)] == pytest.approx([1.4, 2.8, 4.2])
    assert alone.decode_to_compute == 3


def test_train_compares_losses_step_by_step():
    same, other = (
        Run({"contender": PILLOW}, 1, TrainResult([EPOCH, replace(EPOCH, losses=losses)], 7, None, None))
        for losses in ([2.0, 1.0], [2.0, 1.25])
    )
    assert train.loss_difference([same, same]) == 0
    assert train.loss_difference([same, other]) == 0.25
    unseen = Run({"contender": PILLOW}, 1, TrainResult([replace(EPOCH, losses=[])], 7, None, None))
    assert train.loss_difference([unseen, unseen]) == 0, "in bf16 nobody looks"


def test_function_tells_its_share_of_the_bare_loop_and_what_fetch_and_push_leave_to_decoding():
    runs = [
        Run({"images": "photos", "cores": 1, "way": way}, 1, FunctionArmResult(1000, wall_s, cpu_s, 0.2, 0.1))
        for way, wall_s, cpu_s in ((BARE, 1.0, 1.0), (S3, 2.0, 1.25))
    ]
    bare, measured = function.rows_of(runs)
    assert (measured["images_per_s"], measured["share_of_bare"]) == (500, 0.5)
    assert (measured["cpu_ms_per_image"], measured["cpu_share_of_bare"]) == pytest.approx((1.25, 0.8))
    assert measured["decode_cpu_ms_per_image"] == pytest.approx(0.95)
    assert bare["share_of_bare"] is bare["cpu_share_of_bare"] is None


def test_store_tells_first_epochs_and_medians_of_later_ones_over_the_bare_loop():
    ours = [EpochFigures(speed, cpu_ms=cpu_ms) for speed, cpu_ms in ((1, 9), (6, 3), (8, 1), (10, 2))]
    loop = [EpochFigures(speed, cpu_ms=cpu_ms) for speed, cpu_ms in ((1, 9), (16, 1))]
    rows = list(store.rows_of([("SUPER", ours), ("not installed", []), ("bare preadv and hash", loop)]))
    assert [(row["arm"], row["epochs"]) for row in rows] == [
        ("SUPER", "first"), ("SUPER", "later"), ("not installed", "first"),
        ("bare preadv and hash", "first"), ("bare preadv and hash", "later"),
    ]  # fmt: skip
    assert (rows[1]["images_per_s"], rows[1]["cpu_ms"]) == (8, 2)
    assert (rows[1]["speed_of_bare"], rows[1]["cpu_times_bare"]) == (0.5, 2)
    assert (rows[0]["cpu_times_bare"], rows[4]["cpu_times_bare"]) == (9, 1)
    assert rows[2]["images_per_s"] is rows[2]["speed_of_bare"] is rows[1]["decodes"] is None
