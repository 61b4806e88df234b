"""The synthetic photographs are what the benchmarks say of them."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from benchmarks.photos import PHOTO_FORMAT, make_photos, photo_jpeg
from superdl.super_wire.errors import SourceError


def test_an_image_has_the_size_and_weight_of_a_photograph():
    content = photo_jpeg(0)
    assert 90_000 <= len(content) <= 130_000
    with Image.open(io.BytesIO(content)) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (500, 375))


def test_images_are_deterministic_and_differ():
    assert photo_jpeg(3) == photo_jpeg(3) != photo_jpeg(4)


def test_a_set_is_written_once(tmp_path):
    target = make_photos(tmp_path / "photos", 3)
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*.jpg"))
    assert files == ["train/00/00000.jpg", "train/01/00001.jpg", "train/02/00002.jpg"]
    written_ns = (target / files[0]).stat().st_mtime_ns
    assert make_photos(tmp_path / "photos", 3) == target
    assert (target / files[0]).stat().st_mtime_ns == written_ns
    assert list(tmp_path.iterdir()) == [target]


def test_another_set_in_its_place_is_refused(tmp_path):
    target = make_photos(tmp_path / "photos", 1)
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["seed"] == PHOTO_FORMAT.seed
    with pytest.raises(SourceError, match="2 images"):
        make_photos(target, 2)
