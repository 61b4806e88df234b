"""The plain torch loader: what it lists, the pixels it gives, its order and its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.loaders import Loader, LoaderRequest, open_loader
from superdl.experiments.loaders.pixels import ImageMaker
from superdl.experiments.loaders.samples import list_samples
from superdl.experiments.loaders.torch_loader import SourceImages
from superdl.experiments.spec_sections import LoaderSpec, RecipeSpec
from superdl.super_wire.errors import (
    BadSampleError,
    ConfigError,
    SourceEmptyError,
    SourceError,
    SourceNotFoundError,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folders(tmp_path: Path) -> Path:
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


def opened(directory: Path, *, training: bool = False, workers: int = 0, seed: int = 0) -> Loader:
    return open_loader(
        "torch",
        LoaderRequest(
            source=Source(f"file://{directory}"),
            recipe=RecipeSpec(resize=10, crop=8),
            loader=LoaderSpec(kind="torch", batch_size=5, num_workers=workers),
            training=training,
            seed=seed,
            pin_memory=False,
        ),
    )


def images_of(directory: Path, *, resize: int, crop: int, key_list: Path | None = None) -> SourceImages:
    samples = list_samples(
        Source(f"file://{directory}", None if key_list is None else f"file://{key_list}"), "torch"
    )
    return SourceImages(samples, ImageMaker(RecipeSpec(resize=resize, crop=crop), samples.bucket))


def green_values(loader: Loader) -> list[tuple[int, int]]:
    return [
        (int(label), int(image[1, 0, 0]))
        for images, labels, _ in loader
        for image, label in zip(images, labels, strict=True)
    ]


def test_an_epoch_has_each_image_once_with_its_label(folders):
    loader = opened(folders)
    assert (tuple(loader.classes), loader.sample_count, len(loader)) == (("ants", "bees"), 12, 3)
    assert green_values(loader) == [(label, 10 * index) for label in range(2) for index in range(6)]


def test_batches_are_uint8_channels_last_with_figures(folders):
    images, labels, figures = next(iter(opened(folders)))
    assert (images.dtype, images.shape) == (torch.uint8, (5, 3, 8, 8))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64
    assert len(figures.batch_id) == 16
    assert figures.size_bytes == 5 * 3 * 8 * 8
    assert figures.decode_s > 0
    assert (figures.read_s, figures.hits, figures.misses) == (0.0, 0, 0)


def test_shuffling_is_seeded_and_fresh_each_epoch(folders):
    first, second = opened(folders, training=True), opened(folders, training=True)
    epochs = [green_values(first) for _ in range(2)]
    assert [green_values(second) for _ in range(2)] == epochs
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert green_values(opened(folders, training=True, seed=1)) != epochs[0]


def test_counters_grow_with_what_is_decoded(folders):
    loader = opened(folders)
    assert loader.job_stats().samples_produced == 0
    green_values(loader)
    once = loader.job_stats()
    green_values(loader)
    twice = loader.job_stats()
    assert (once.samples_produced, twice.samples_produced) == (12, 24)
    assert 0 < once.decode_s < twice.decode_s
    assert twice.invocations == 0


def test_workers_give_the_same_and_end_when_closed(folders):
    loader = opened(folders, workers=1)
    assert green_values(loader) == green_values(opened(folders))
    loader.close()
    assert torch.multiprocessing.active_children() == []
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(loader))


def test_pixels_are_a_resized_shorter_side_and_its_centre(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (30, 47, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    item = images_of(tmp_path, resize=20, crop=16)[0, 0]
    resized = Image.fromarray(pixels).resize((31, 20), Image.Resampling.BILINEAR)  # int(20 * 47 / 30)
    expected = np.asarray(resized)[2:18, 8:24]  # round((31 - 16) / 2) is 8: half to even, as torchvision
    np.testing.assert_array_equal(item.pixels, expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_other_modes_become_rgb(tmp_path, mode):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (9, 9), (10, 20, 30)).convert(mode).save(tmp_path / "a" / "x.tif")
    assert images_of(tmp_path, resize=9, crop=9)[0, 0].pixels.shape == (9, 9, 3)


def test_sources_that_are_missing_or_empty_are_named(tmp_path):
    with pytest.raises(SourceNotFoundError, match="absent"):
        opened(tmp_path / "absent")
    (tmp_path / "class").mkdir()
    with pytest.raises(SourceEmptyError, match="holds no image"):
        opened(tmp_path)


def test_an_image_that_cannot_be_decoded_is_named(folders):
    (folders / "ants" / "0.png").write_bytes(b"no image")
    for workers in (0, 1):
        loader = opened(folders, workers=workers)
        with pytest.raises(BadSampleError, match=rf"file://{folders}/ants/0\.png: Pillow cannot decode it"):
            next(iter(loader))
        loader.close()


def test_a_file_that_is_gone_is_named(folders):
    loader = opened(folders)
    (folders / "ants" / "1.png").unlink()
    with pytest.raises(SourceNotFoundError, match=r"ants/1\.png is gone since it was listed"):
        next(iter(loader))


def test_a_key_list_names_images_and_classes(folders):
    key_list = folders / "keys.csv"
    key_list.write_text("label,key\nzebra,bees/2.png\nape,bees/1.png\nzebra,ants/deep/5.png\n")
    images = images_of(folders, resize=10, crop=8, key_list=key_list)
    assert [(images[0, place].key, images[0, place].label) for place in range(len(images))] == [
        ("ants/deep/5.png", 1), ("bees/1.png", 0), ("bees/2.png", 1),
    ]  # fmt: skip
    source = Source(f"file://{folders}", key_list=str(key_list))
    request = LoaderRequest(source, RecipeSpec(resize=10, crop=8), LoaderSpec(num_workers=0), False, 0, False)
    loader = open_loader("torch", request)
    assert (tuple(loader.classes), loader.sample_count) == (("ape", "zebra"), 3)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("key,name\nants/1.png,ant\n", SourceError, "label"),
        ("key,label\nants/1.png,3\n", ConfigError, r"are numbers, .* set loader\.kind=super"),
        ("key,label\n../ants/1.png,ant\n", SourceError, r"\.\./ants/1\.png"),
        ("key,label\nants/100.png,ant\n", SourceError, r"1 of its 1 keys are not in .*ants/100\.png"),
    ],
)
def test_a_key_list_that_cannot_be_taken_is_named(folders, content, error, message):
    (folders / "keys.csv").write_text(content)
    with pytest.raises(error, match=message):
        images_of(folders, resize=10, crop=8, key_list=folders / "keys.csv")
    with pytest.raises(SourceNotFoundError, match=r"absent\.csv"):
        images_of(folders, resize=10, crop=8, key_list=folders / "absent.csv")


def test_an_unknown_loader_is_named():
    request = LoaderRequest(
        Source("s3://b/x"), RecipeSpec(), LoaderSpec(), training=True, seed=0, pin_memory=False
    )
    with pytest.raises(
        ConfigError, match=r"one of super, super-threads, torch, webdataset, mds, litdata, not 'dali'"
    ):
        open_loader("dali", request)
