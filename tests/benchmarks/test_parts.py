"""What benchmarks are made of: contenders, orders, arms, reports."""

from __future__ import annotations

import argparse
import io
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness.arm import ArmSpec, checksum, drop_pages, measure_arm
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.processes import held_to
from benchmarks.harness.results import BenchmarkReport, Column, measured, print_report
from benchmarks.loaders.contenders import CONTENDERS, PILLOW, RAM, convert_once
from benchmarks.loaders.opening import open_in_planned_order
from benchmarks.train import TrainerSpec, warmed
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


COUNT, SIDE = 21, 24


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

COUNT, EPOCHS = 11, 2


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
