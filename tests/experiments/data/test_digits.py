"""The digits: counts, split, format, and what happens when the target is not as it should be."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from superdl.experiments.data import make_digits
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_digits(tmp_path_factory.mktemp("data") / "nested" / "digits")


def images_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*/*.jpg"))


def test_every_scan_is_written_once_and_split_80_to_20(digits):
    splits = Counter(path.parts[-3] for path in images_of(digits))
    assert splits == {"train": 1438, "val": 359}
    assert len({path.name for path in images_of(digits)}) == 1797


def test_each_class_is_split_alike(digits):
    by_class = Counter(path.parts[-3:-1] for path in images_of(digits))
    assert sorted({label for _, label in by_class}) == list("0123456789")
    for label in "0123456789":
        train, val = by_class["train", label], by_class["val", label]
        assert val == round((train + val) * 0.2)


def test_images_are_64_by_64_rgb_jpegs_that_show_something(digits):
    for path in images_of(digits)[::100]:
        with Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (64, 64))
            low, high = image.convert("L").getextrema()
            assert high - low > 100


def test_making_them_again_changes_nothing(digits):
    before = {path: path.stat().st_mtime_ns for path in images_of(digits)}
    assert make_digits(digits) == digits
    assert {path: path.stat().st_mtime_ns for path in images_of(digits)} == before


def test_two_copies_are_equal(digits, tmp_path):
    (tmp_path / "second").mkdir()  # an empty directory is as good as none
    second = make_digits(tmp_path / "second")
    names = [path.relative_to(digits) for path in images_of(digits)]
    assert [path.relative_to(second) for path in images_of(second)] == names
    assert all((digits / name).read_bytes() == (second / name).read_bytes() for name in names[::50])
    assert [entry.name for entry in tmp_path.iterdir()] == ["second"]  # nothing temporary stays


def test_functions_of_another_user_may_read_them(digits):
    assert digits.stat().st_mode & 0o755 == 0o755


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SourceError, match="holds other files"):
        make_digits(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way_is_named(tmp_path):
    target = tmp_path / "digits"
    target.write_text("x")
    with pytest.raises(ConfigError, match=r"digits: it is a file"):
        make_digits(target)
    with pytest.raises(ConfigError, match="cannot write the digits to"):
        make_digits(target / "below")


def test_a_damaged_set_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_with(train=3, val=1)))
    with pytest.raises(SourceError, match=r"damaged: there are \{'train': 0, 'val': 0\} images"):
        make_digits(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "digits"}', '{"name": "letters", "counts": {}}'])
def test_a_foreign_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(SourceError, match=r"manifest\.json"):
        make_digits(tmp_path)


def manifest_with(**counts: int) -> dict[str, object]:
    return {
        "name": "digits",
        "format": 1,
        "side_pixels": 64,
        "jpeg_quality": 95,
        "split_seed": 0,
        "val_percent": 20,
        "counts": counts,
    }
