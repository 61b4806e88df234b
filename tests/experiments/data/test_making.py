"""Making a set: whole or not at all, the same again, only where there is room, read by the real catalog."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import MADE_SETS, make_set
from superdl.super_wire.errors import ConfigError, SourceError
from tests.experiments.data.small_sets import few_classes, files_of


def test_a_set_is_class_folders_that_the_catalog_reads(tmp_path):
    place = make_set(few_classes(), tmp_path / "deep" / "set", samples=80)
    train, val = (list_source(f"file://{place}/{split}") for split in ("train", "val"))
    assert train.classes == val.classes == ("0", "1", "2", "3")
    assert (len(train.keys), len(val.keys)) == (80, 8)
    assert train.labels.tolist() == sorted(list(range(4)) * 20)
    assert sorted(entry.name for entry in place.iterdir()) == ["manifest.json", "train", "val"]
    assert [entry.name for entry in place.parent.iterdir()] == ["set"], "nothing temporary stays"
    assert place.stat().st_mode & 0o755 == 0o755
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["counts"] == {"train": 80, "val": 8}
    assert manifest["colour_modes"] == {"L": 1, "RGB": 87}


def test_threads_draw_what_one_draws_and_seeds_differ(tmp_path):
    told = []
    made = few_classes()
    alone = files_of(make_set(made, tmp_path / "alone", samples=101, threads=1))
    together = files_of(make_set(made, tmp_path / "two", samples=101, threads=3, tell=told.append))
    other = files_of(make_set(made, tmp_path / "other", samples=101, seed=1))
    assert alone == together
    assert alone.keys() == other.keys()
    assert not set(alone.values()) & set(other.values())
    assert "101 training and 10 validation images" in told[0]
    assert told[-1].startswith("111 of 111 images")


def test_what_is_there_is_taken_and_what_is_not_ours_left_alone(tmp_path):
    made = few_classes()
    place = make_set(made, tmp_path, samples=8)  # an empty directory is as good as none
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert make_set(made, tmp_path, samples=8) == place
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    with pytest.raises(SourceError, match="something else .*'train': 8.* there, .*'train': 9.* is wanted"):
        make_set(made, tmp_path, samples=9)
    with pytest.raises(SourceError, match="seed is 0 there, 3 is wanted"):
        make_set(made, tmp_path, samples=8, seed=3)
    next((place / "train" / "2").iterdir()).unlink()
    with pytest.raises(SourceError, match=r"damaged: there are \{'train': 7, 'val': 4\} images"):
        make_set(made, tmp_path, samples=8)


def test_two_who_write_one_set_at_once_write_it_once(tmp_path):
    told = []
    with ThreadPoolExecutor(2) as pool:
        places = pool.map(
            lambda _: make_set(few_classes(), tmp_path / "set", samples=8, tell=told.append), range(2)
        )
        assert list(places) == [tmp_path / "set"] * 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]
    assert sum("drawing" in line for line in told) == 1


def test_a_set_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "a folder")

    monkeypatch.setattr("superdl.experiments.data.pictures.picture_file", broken)
    with pytest.raises(ConfigError, match="cannot write .*No such file or directory: a folder"):
        make_set(few_classes(), tmp_path / "set", samples=80, threads=2)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import os, signal, sys
from dataclasses import replace
from superdl.experiments.data import MADE_SETS, make_set, pictures
made = replace(MADE_SETS["tiny-imagenet-like"], classes=4)
pictures.picture_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
make_set(made, sys.argv[1], samples=80)
"""


def test_what_a_killed_process_left_is_never_taken_and_cleared_by_the_next(tmp_path):
    place = tmp_path / "set"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(place)], check=False, timeout=60, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    (remains,) = tmp_path.iterdir()
    assert remains.name.startswith(".set-")
    make_set(few_classes(), place, samples=8)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_room_is_looked_for_first_and_too_few_samples_are_refused(tmp_path, monkeypatch):
    made = MADE_SETS["imagenet-like"]
    with pytest.raises(ConfigError, match="100 classes: 99 training images cannot have one of each"):
        make_set(made, tmp_path, samples=99)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**10, 10**10, 3 * 10**8))
    message = r"imagenet-like of 14,100 images takes about 1,588 MB in .*/set, where 300 MB are free, .*disk"
    with pytest.raises(ConfigError, match=message):
        make_set(made, tmp_path / "set")
    assert list(tmp_path.iterdir()) == []
