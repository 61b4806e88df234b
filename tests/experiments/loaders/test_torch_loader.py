"""The plain torch loader, beyond what all loaders have: its pixels, key lists, and errors that name files."""

import pytest
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.spec import RecipeSpec
from superdl.super_wire.errors import (
    BadSampleError,
    SourceNotFoundError,
)
from tests.experiments.loaders.opening import opened

SMALL = RecipeSpec(resize=10, crop=8)


@pytest.fixture
def folders(tmp_path):
    """Twelve images in two classes, of different shapes; the green value tells which of its class it is."""
    for label, name in enumerate(("ants", "bees")):
        (tmp_path / name / "deep").mkdir(parents=True)
        for index in range(6):
            size = [(20, 10), (10, 20), (12, 12)][index % 3]
            image = Image.new("RGB", size, (100 * label, 10 * index, 7))
            image.save(tmp_path / name / ("deep" if index == 5 else "") / f"{index}.png")
    (tmp_path / "ants" / "notes.txt").write_text("not an image")
    (tmp_path / "README").write_text("not a class")
    return tmp_path


def green_values(source, place):
    loader = opened("torch", source, place, training=False, recipe=SMALL)
    return [
        (int(label), int(image[1, 0, 0]))
        for images, labels, _ in loader
        for image, label in zip(images, labels, strict=True)
    ]


def test_what_is_missing_gone_or_broken_is_named(folders):
    with pytest.raises(SourceNotFoundError, match="absent"):
        opened("torch", folders / "absent", folders)
    gone = opened("torch", folders, folders, training=False, recipe=SMALL)
    (folders / "ants" / "1.png").unlink()
    with pytest.raises(SourceNotFoundError, match=r"ants/1\.png was removed after it was listed"):
        next(iter(gone))
    (folders / "ants" / "0.png").write_bytes(b"no image")
    for workers in (0, 1):
        loader = opened("torch", folders, folders, training=False, workers=workers, recipe=SMALL)
        with pytest.raises(BadSampleError, match=rf"file://{folders}/ants/0\.png: it cannot be decoded"):
            next(iter(loader))
        loader.close()


def test_a_key_list_names_images_and_classes(folders):
    key_list = folders / "keys.csv"
    key_list.write_text("label,key\nzebra,bees/2.png\nape,bees/1.png\nzebra,ants/deep/5.png\n")
    for named in (f"file://{key_list}", str(key_list)):
        source = Source(f"file://{folders}", key_list=named)
        assert green_values(source, folders) == [(1, 50), (0, 10), (1, 20)], (
            "in key order, by sorted class names"
        )
    loader = opened("torch", source, folders)
    assert (tuple(loader.classes), loader.sample_count) == (("ape", "zebra"), 3)
