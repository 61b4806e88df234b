"""The rows of the benchmarks' tables say what was measured, with ratios of what belongs together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import read, train
from benchmarks.harness.arm import Lap
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.results import Run
from benchmarks.loaders.contenders import PILLOW, SOCKET, SUPER
from benchmarks.train import Alone

ARM = Lap(
    images=1000, first_s=0.1, wall_s=2.0, main_cpu_s=0.1, workers_cpu_s=0.0, cache_cpu_s=0.02,
    coordinator_cpu_s=0.03, functions_cpu_s=0.04, store_cpu_s=0.05, produced=0, store_requests=0,
    source_requests=20,
)  # fmt: skip
EPOCH = replace(
    ARM, wall_s=4.0, cache_cpu_s=0.0, coordinator_cpu_s=0.0, functions_cpu_s=0.0, steps=10, wait_s=1.0,
    losses=[2.0, 1.0],
)  # fmt: skip


def reading(contender, workers, lap, epoch="later", number=1):
    loading = Loading("photos", "/data/photos-9/train", 100, 256, 224, 256, workers)
    return Run(read.conditions_of(contender, loading, epoch), number, lap)


def test_read_tells_medians_in_milliseconds_per_image():
    results = [
        replace(ARM, main_cpu_s=main, workers_cpu_s=workers, wall_s=wall)
        for main, workers, wall in ((0.1, 0.2, 1.0), (0.2, 0.4, 2.0), (0.1, 0.4, 4.0))
    ]
    runs = [reading(SUPER, 2, result, number=number) for number, result in enumerate(results)]
    (row,) = read.rows_of(runs)
    figures = {
        name.removesuffix("_cpu_ms_per_image"): row[name] for name in row if name.endswith("_per_image")
    }
    assert figures == pytest.approx(
        {"cpu_ms_per_image": 0.5, "main": 0.1, "workers": 0.4, "cache": 0.02, "coordinator": 0.03}
        | {"functions": 0.04, "store": 0.05, "cpu_of_all_ms_per_image": 0.59, "gets_per_image": 0.02}
    )
    assert row["images_per_s"] == pytest.approx(500)
    assert row["loader"] == "SUPER"
    assert all(column.cell(row) for column in read.COLUMNS)


def test_read_compares_with_the_same_workers_and_with_the_socket_loop_of_the_main_process():
    cpu_s = {
        (PILLOW, 0): 3.0, (SOCKET, 0): 0.04, (SUPER, 0): 0.05, (PILLOW, 2): 2.8, (SUPER, 2): 0.1,
        (SUPER, 1): 0.1,
    }  # fmt: skip
    runs = [reading(*key, replace(ARM, main_cpu_s=value)) for key, value in cpu_s.items()]
    rows = dict(zip(cpu_s, read.rows_of(runs), strict=True))
    ratios = ("times_less_than_pillow", "times_socket_loop")
    assert [rows[SUPER, 0][name] for name in ratios] == pytest.approx([60, 1.25])
    assert rows[SUPER, 1]["times_less_than_pillow"] is None  # there is none with one worker
    assert [rows[SUPER, 2][name] for name in ratios] == pytest.approx([28, 2.5])
    assert rows[PILLOW, 0]["times_less_than_pillow"] == 1


def trained(contender, *epochs):
    return [Run({"contender": contender, "epoch": at}, 1, epoch) for at, epoch in enumerate(epochs)]


def test_train_tells_step_time_waiting_and_gain_with_what_bounds_it():
    runs = [
        *trained(PILLOW, replace(EPOCH, wall_s=9.0), EPOCH),
        *trained(
            SUPER,
            replace(EPOCH, wall_s=2.0, functions_cpu_s=1.8, cache_cpu_s=0.1, coordinator_cpu_s=0.1),
            replace(EPOCH, wall_s=1.0, wait_s=0.1),
            replace(EPOCH, wall_s=1.2, wait_s=0.1),
        ),
    ]
    alone = Alone(3.0, 1.0)
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
