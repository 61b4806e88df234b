"""What benchmarks are made of: contenders, arms, reports, and rows with ratios of what belongs together."""

import argparse
import io
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import read, train
from benchmarks.harness.arm import ArmSpec, Lap, checksum, drop_pages, measure_arm
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.processes import held_to
from benchmarks.harness.results import BenchmarkReport, Column, Run, measured, print_report
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, RAM, SOCKET, SUPER, convert_once
from benchmarks.loaders.opening import open_in_planned_order
from benchmarks.train import Alone, TrainerSpec, warmed
from superdl.super_wire.record import payload_hash
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import images, write_images
from tests.super_dataset.stored_batches import images as arrays_of
from tests.super_dataset.stored_batches import packed, ref_of


def test_a_report_has_tables_by_group_a_dash_for_what_is_absent_and_names_the_machine():
    options = argparse.Namespace(command="bench", benchmark="read", rounds=1, data="/home/me", json=True)
    made = BenchmarkReport(
        packages=["boto3", "no-such-package"],
        settings={"images_of": "a"},
        method=["How it was measured."],
        group_by=["images"],
        columns=[Column("loader", "loader"), Column("cpu_ms", "CPU ms", ".3f")],
        rows=[
            {"images": "a", "loader": "one", "cpu_ms": 0.12345},
            {"images": "b", "loader": "two", "cpu_ms": None},
            {"images": "b", "loader": "three", "cpu_ms": 0.5},
            {"images": "c", "loader": "four", "cpu_ms": None},
        ],
    )
    report, content = measured(lambda *_: made, options, lambda _: None)
    console = Console(file=io.StringIO(), width=100)
    print_report(report, content, console)
    text = console.file.getvalue()
    assert [line.strip() for line in text.splitlines() if line.startswith("read, ")] == [
        "read, images a",
        "read, images b",
        "read, images c",
    ]
    words = text.split()
    assert "0.123" in words
    assert words[words.index("two") + 1] == "-"
    assert text.count("CPU ms") == 2, "a table without such figures has no such column"
    assert "How it was measured." in text
    assert content["environment"]["cpu_model"] in text
    assert f"torch {content['environment']['packages']['torch']}" in text
    assert content["environment"]["packages"]["boto3"]
    assert content["environment"]["packages"]["no-such-package"] is None
    assert content["rows"][0]["cpu_ms"] == 0.12345
    assert content["settings"] == {"rounds": 1, "images_of": "a"}


COUNT, SIDE = 11, 24


@pytest.fixture
def loading(tmp_path):
    directory = write_images(tmp_path / "set" / "train", COUNT)
    return Loading("set", str(directory), COUNT, SIDE, SIDE, batch_size=8)


def epoch_of(name, loading):
    """Images and checksum of one epoch."""
    contender = CONTENDERS[name].open(loading)
    try:
        batches = list(contender)
    finally:
        contender.close()
    return sum(len(labels) for _, labels in batches), sum(checksum(*batch) for batch in batches)


def test_the_array_holds_what_pillow_decodes(loading):
    said = []
    for _ in range(2):
        convert_once(RAM, loading, said.append)
    assert len(said) == 1
    assert [path.name for path in loading.format_directory("array").parent.iterdir()] == ["array"]
    expected = epoch_of(PILLOW, loading)
    assert expected[0] == COUNT
    assert epoch_of(RAM, loading) == expected
    assert epoch_of(RAM, replace(loading, num_workers=1)) == expected


def test_the_checksum_tells_labels_that_were_exchanged(loading):
    contender = CONTENDERS[PILLOW].open(loading)
    images, labels = next(iter(contender))
    assert checksum(images, labels) != checksum(images, labels.flip(0))
    assert checksum(images, labels) == checksum(images.flip(0), labels.flip(0))


__all__ = ["images"]


@pytest.fixture(params=[8, 160], ids=["small records", "records on pages"])
def store(request, tmp_path):
    """A store, and the sum of its payloads' hashes."""
    made, arrays = DirectoryStore.open(tmp_path / "store", create=True), arrays_of(COUNT, request.param)
    packed(made, ref_of(COUNT, "redis://x"), arrays)
    return made.address, sum(payload_hash(array.tobytes()) for array in arrays)


def test_an_arm_trains_on_each_batch_and_tells_steps_losses_and_waiting(images):
    loading = Loading("images", str(images), 150, 32, 32, batch_size=60)
    spec = TrainerSpec(loading, 2, min(os.sched_getaffinity(0)))
    arm = ArmSpec(open_in_planned_order, loading, [1, 1], checked=True, trainer=partial(warmed, spec))
    with held_to(sorted(os.sched_getaffinity(0))):  # the trainer holds this process to a core
        laps = measure_arm(arm)
    assert [(lap.images, lap.steps, len(lap.losses)) for lap in laps] == [(150, 3, 3)] * 2
    assert all(0 < lap.wait_s < lap.wall_s for lap in laps)
    assert laps[0].losses != laps[1].losses
    assert laps[0].checksum == laps[1].checksum > 0


def test_dropped_pages_are_read_from_the_disk_again(store):
    address, _ = store
    pack = next(Path(address, "packs").iterdir())
    content = pack.read_bytes()
    drop_pages(address)
    with pack.open("rb") as file:
        try:
            assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
            pytest.skip("this filesystem keeps files in memory")
        except BlockingIOError:
            assert file.read() == content
        except OSError:
            pytest.skip("this filesystem cannot tell what memory holds")


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
