"""The digits: counts, split, format, and what happens when the target is not as it should be."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from superdl.experiments.data import DIGITS_FORMAT, make_digits
from superdl.super_wire.errors import ConfigError, SourceError
from tests.experiments.data.small_sets import files_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_digits(tmp_path_factory.mktemp("data") / "nested" / "digits")


def test_every_scan_is_written_once_and_each_class_split_80_to_20(digits):
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
            assert high - low > 100, "it shows something"
    assert digits.stat().st_mode & 0o755 == 0o755, "functions of another user may read them"


def test_making_them_again_changes_nothing_and_two_copies_are_equal(digits, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in digits.rglob("*")}
    assert make_digits(digits) == digits
    assert {path: path.stat().st_mtime_ns for path in digits.rglob("*")} == before
    (tmp_path / "second").mkdir()  # an empty directory is as good as none
    assert files_of(make_digits(tmp_path / "second")) == files_of(digits)
    assert [entry.name for entry in tmp_path.iterdir()] == ["second"]  # nothing temporary stays


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "cannot write the digits to .* holds other files"),
        ("{", r"manifest\.json cannot be read"),
        ("[]", "holds other files"),
        ('{"name": "letters", "counts": {}}', r"something else than the digits \(name is 'letters' there"),
        (json.dumps(DIGITS_FORMAT), r"damaged: there are \{'train': 0, 'val': 0\} images"),
    ],
)
def test_what_is_something_else_or_damaged_is_named_and_left_alone(tmp_path, manifest, message):
    name = "thesis.tex" if manifest is None else "manifest.json"
    (tmp_path / name).write_text(manifest or "x")
    with pytest.raises(SourceError, match=message):
        make_digits(tmp_path)
    for place in (tmp_path / name, tmp_path / name / "below"):
        with pytest.raises(ConfigError, match=r"cannot write to .* is a file|Not a directory"):
            make_digits(place)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
