"""Published sets in their layouts: found, taken as they are, never written into; what is wrong is named."""

from __future__ import annotations

import gzip
import shutil
import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import prepare_data
from superdl.experiments.data.sources import find_published
from superdl.experiments.spec import DataSpec
from superdl.super_wire.errors import ConfigError, SourceError
from tests.experiments.data.small_sets import files_of, write_images

if TYPE_CHECKING:
    from pathlib import Path

WNIDS = ("n01443537", "n02124075")


@pytest.fixture
def tiny_imagenet(tmp_path):
    """Two classes of it, as its archive unpacks."""
    root = tmp_path / "tiny-imagenet-200"
    for wnid in WNIDS:
        write_images(root, [f"train/{wnid}/images/{wnid}_{index}.JPEG" for index in range(3)])
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    write_images(root, [f"val/images/val_{index}.JPEG" for index in range(4)])
    write_images(root, ["test/images/test_0.JPEG"])
    (root / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{index}.JPEG\t{WNIDS[1 - index % 2]}\t0\t32\t44\t62\n" for index in range(4))
    )
    (root / "wnids.txt").write_text("\n".join(WNIDS))
    return root


def test_tiny_imagenet_has_its_folders_and_a_key_list_for_validation(tiny_imagenet, tmp_path):
    before = files_of(tiny_imagenet)
    prepared = prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet)))
    train = list_source(prepared.train.url, prepared.train.key_list)
    val = list_source(prepared.val.url, prepared.val.key_list)
    assert train.classes == val.classes == WNIDS
    assert [key.decode() for key in train.keys][::3] == [f"{w}/images/{w}_0.JPEG" for w in WNIDS]
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [key.decode() for key in val.keys] == [f"val_{index}.JPEG" for index in range(4)]
    assert val.labels.tolist() == [1, 0, 1, 0]
    assert "tiny-imagenet as published" in prepared.note
    assert files_of(tiny_imagenet) == before, "a user's set is left alone"

    key_list = tmp_path / "tiny-imagenet-200-superdl" / "val.csv"
    assert prepared.val.key_list == f"file://{key_list}"
    written = key_list.stat()
    assert prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet))) == prepared
    assert key_list.stat().st_mtime_ns == written.st_mtime_ns, "once"
    key_list.write_text("key,label\n")
    prepare_data(DataSpec(kind="tiny-imagenet", directory=str(tiny_imagenet)))
    assert len(key_list.read_text().splitlines()) == 5, "but never a stale one"
    assert [entry.name for entry in key_list.parent.iterdir()] == ["val.csv"]


def test_damaged_annotations_are_named(tiny_imagenet):
    with (tiny_imagenet / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_9.JPEG n01443537\n")
    with pytest.raises(SourceError, match=r"val_annotations\.txt has no file and class in each line"):
        find_published("tiny-imagenet", tiny_imagenet)
    assert not tiny_imagenet.with_name("tiny-imagenet-200-superdl").exists()


def test_where_a_key_list_cannot_be_written_a_link_is_the_remedy(tiny_imagenet, tmp_path):
    (tmp_path / "tiny-imagenet-200-superdl").write_text("a file in its way")
    with pytest.raises(ConfigError, match=r"cannot be written to .*; link the set into a directory"):
        find_published("tiny-imagenet", tiny_imagenet)
    link = tmp_path / "mine" / "link"
    link.parent.mkdir()
    link.symlink_to(tiny_imagenet)
    found = find_published("tiny-imagenet", link)
    assert found.val.key_list == f"file://{tmp_path}/mine/link-superdl/val.csv"


@pytest.mark.parametrize(
    ("kind", "names", "val"),
    [
        ("cifar10", ["train/cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png"], "test"),
        ("hymenoptera", ["train/ants/1.jpg", "train/bees/2.jpg", "val/ants/3.jpg", "val/bees/4.jpg"], "val"),
        ("imagenet", ["train/n01/1.JPEG", "train/n02/2.JPEG", "val/n01/3.JPEG", "val/n02/4.JPEG"], "val"),
        ("tiny-imagenet", ["train/n01/images/1.JPEG", "val/n01/images/3.JPEG"], "val"),  # sorted by its user
        ("mnist", ["training/0/1.png", "training/1/2.png", "testing/0/3.png", "testing/1/4.png"], "testing"),
    ],
)
def test_class_folders_are_taken_as_they_are(tmp_path, kind, names, val):
    write_images(tmp_path / "set", names)
    prepared = prepare_data(DataSpec(kind=kind, directory=str(tmp_path / "set")))
    assert prepared.val.url == f"file://{tmp_path}/set/{val}"
    assert prepared.val.key_list is None
    train, validation = list_source(prepared.train.url), list_source(prepared.val.url)
    assert train.classes == validation.classes
    assert len(train.keys) + len(validation.keys) == len(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["set"]


def test_a_set_without_validation_images_says_so(tmp_path):
    write_images(tmp_path, ["train/n01/1.JPEG", "train/n02/2.JPEG"])
    prepared = prepare_data(DataSpec(kind="imagenet", directory=str(tmp_path), samples=5))
    assert prepared.val is None
    assert "no validation images" in prepared.note
    assert "data.samples is for sets that are drawn" in prepared.note


def test_what_is_another_thing_is_refused(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(SourceError, match=r"not cifar10 as it is published \(cifar-10-batches-bin/\*\.bin"):
        find_published("cifar10", tmp_path)
    write_images(tmp_path, ["train/n01/1.JPEG", "val/ILSVRC2012_val_1.JPEG"])
    with pytest.raises(SourceError, match="in no class folders, and nothing tells their classes"):
        find_published("imagenet", tmp_path)
    with pytest.raises(SourceError, match="cannot look for imagenet in .*: Not a directory"):
        find_published("imagenet", tmp_path / "train" / "n01" / "1.JPEG")
    assert find_published("imagenet", tmp_path / "absent") is None


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(directory: Path, *, zipped: bool = True) -> np.ndarray:
    directory.mkdir(parents=True)
    random = np.random.default_rng(0)
    images = random.integers(256, size=(12, 28, 28), dtype=np.uint8)
    for prefix, part in (("train", slice(0, 8)), ("t10k", slice(8, 12))):
        for kind, array in (("images-idx3", images), ("labels-idx1", np.arange(12, dtype=np.uint8) % 2)):
            content = idx(array[part])
            name = f"{prefix}-{kind}-ubyte" + (".gz" if zipped else "")
            (directory / name).write_bytes(gzip.compress(content) if zipped else content)
    return images


@pytest.mark.parametrize(("below", "zipped"), [("", True), ("MNIST/raw", False)])
def test_mnist_becomes_png_files_once(tmp_path, below, zipped):
    images = write_mnist(tmp_path / "mnist" / below, zipped=zipped)
    told = []
    spec = DataSpec(kind="mnist", directory=str(tmp_path / "mnist"))
    prepared = prepare_data(spec, told.append)
    assert told == [f"writing the 12 images of mnist as PNG files to {tmp_path}/mnist-superdl, once"]
    assert prepare_data(spec, told.append) == prepared
    assert len(told) == 1
    train, val = list_source(prepared.train.url), list_source(prepared.val.url)
    assert (train.labels.tolist(), val.labels.tolist()) == ([0] * 4 + [1] * 4, [0, 0, 1, 1])
    with Image.open(tmp_path / "mnist-superdl" / "val" / "1" / "00003.png") as image:
        assert image.mode == "L"
        assert (np.asarray(image) == images[11]).all()


def test_damaged_mnist_is_named_and_leaves_nothing(tmp_path):
    write_mnist(tmp_path / "mnist", zipped=False)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for message, content in {
        "begins with 0x903": bytes((0, 0, 9, 3)) + whole[4:],
        "train-images-idx3-ubyte cannot be read": whole[:-1],
        "do not fit together": idx(np.zeros((9, 28, 28), dtype=np.uint8)),
    }.items():
        file.write_bytes(content)
        with pytest.raises(SourceError, match=message):
            find_published("mnist", tmp_path / "mnist")
        assert [entry.name for entry in tmp_path.iterdir()] == ["mnist"]
    file.unlink()
    with pytest.raises(SourceError, match=r"not there, as \.gz or unpacked: train-images-idx3-ubyte"):
        find_published("mnist", tmp_path / "mnist")


def test_a_truncated_gzip_and_another_mnist_than_the_one_that_was_written_are_refused(tmp_path):
    write_mnist(tmp_path / "mnist")
    find_published("mnist", tmp_path / "mnist")
    file = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    file.write_bytes(gzip.compress(idx(np.zeros((4, 28, 28), dtype=np.uint8))))
    with pytest.raises(SourceError, match="holds something else than mnist as PNG files"):
        find_published("mnist", tmp_path / "mnist")
    shutil.rmtree(tmp_path / "mnist-superdl")
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"t10k-images-idx3-ubyte\.gz cannot be read"):
        find_published("mnist", tmp_path / "mnist")


def test_cifar_10_becomes_png_files_once_and_damage_is_named(tmp_path):
    place = tmp_path / "cifar10" / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(256, size=(12, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(12) % 10
    batches = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for batch, part in zip(batches, np.split(rows, 6), strict=True):
        (place / batch).write_bytes(part.tobytes())
    found = prepare_data(DataSpec(kind="cifar10", directory=str(tmp_path / "cifar10")))
    train, val = list_source(found.train.url), list_source(found.val.url)
    assert train.classes[:3] == ("airplane", "automobile", "bird")
    assert (train.labels.tolist(), val.labels.tolist()) == (list(range(10)), [0, 1])
    with Image.open(tmp_path / "cifar10-superdl" / "val" / "automobile" / "00001.png") as image:
        assert (np.asarray(image) == rows[11, 1:].reshape(3, 32, 32).transpose(1, 2, 0)).all()
    shutil.rmtree(tmp_path / "cifar10-superdl")
    (place / "test_batch.bin").write_bytes(b"x" * 3073)
    with pytest.raises(SourceError, match="the val files of cifar10 do not fit together"):
        find_published("cifar10", tmp_path / "cifar10")
    (place / "test_batch.bin").write_bytes(b"x")
    with pytest.raises(SourceError, match="has no whole images of CIFAR-10"):
        find_published("cifar10", tmp_path / "cifar10")
