"""Drawn sets and the digits: complete, repeatable, and read by the catalog."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import make_digits, make_set
from tests.experiments.data.small_sets import few_classes, files_of


def test_a_drawn_set_has_class_folders(tmp_path):
    place = make_set(few_classes(), tmp_path / "deep" / "set", samples=80)
    train, val = (list_source(f"file://{place}/{split}") for split in ("train", "val"))
    assert train.classes == val.classes == ("0", "1", "2", "3")
    assert (len(train.keys), len(val.keys)) == (80, 8)
    assert train.labels.tolist() == sorted(list(range(4)) * 20)
    assert sorted(entry.name for entry in place.iterdir()) == ["manifest.json", "train", "val"]
    assert [entry.name for entry in place.parent.iterdir()] == ["set"], "no staging directory is left"
    assert place.stat().st_mode & 0o755 == 0o755
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["counts"] == {"train": 80, "val": 8}
    assert manifest["colour_modes"] == {"L": 1, "RGB": 87}


def test_a_seed_determines_the_files_for_any_number_of_threads_and_processes(tmp_path):
    lines = []
    made = few_classes()

    def draw(_):
        return make_set(made, tmp_path / "two", samples=101, threads=3, log=lines.append)

    alone = files_of(make_set(made, tmp_path / "alone", samples=101, threads=1))
    with ThreadPoolExecutor(2) as pool:
        place, _ = pool.map(draw, range(2))
    other = files_of(make_set(made, tmp_path / "other", samples=101, seed=1))
    assert alone == files_of(place)
    assert len(set(alone.values())) == 111
    assert alone.keys() == other.keys()
    assert not set(alone.values()) & set(other.values())
    assert sum("101 training and 10 validation images" in line for line in lines) == 1, "drawn once"
    assert lines[-1].startswith("111 of 111 images")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return make_digits(tmp_path_factory.mktemp("data") / "nested" / "digits")


def test_the_digits_are_written_once_and_each_class_is_split_80_to_20(digits):
    files = sorted(digits.glob("*/*/*.jpg"))
    assert Counter(path.parts[-3] for path in files) == {"train": 1438, "val": 359}
    assert len({path.name for path in files}) == 1797
    by_class = Counter(path.parts[-3:-1] for path in files)
    assert sorted({label for _, label in by_class}) == list("0123456789")
    for label in "0123456789":
        train, val = by_class["train", label], by_class["val", label]
        assert val == round((train + val) * 0.2)
    for path in files[::100]:
        with Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (64, 64))
            low, high = image.convert("L").getextrema()
            assert high - low > 100, "not blank"


def test_the_digits_are_not_written_again_and_copies_are_equal(digits, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in digits.rglob("*")}
    assert make_digits(digits) == digits
    assert {path: path.stat().st_mtime_ns for path in digits.rglob("*")} == before
    (tmp_path / "second").mkdir()
    assert files_of(make_digits(tmp_path / "second")) == files_of(digits)
