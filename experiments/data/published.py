"""Finds the published image sets in the layouts that their archives unpack to: where their splits lie.

Nothing is written into a user's set. What a set lacks for our loaders (labels of validation images in
folders, images in files) is written once beside it, into ``<directory>-superdl``. MNIST is published as four
files of raw bytes, gzipped or not: a magic number that tells type and dimensions, the dimensions, then the
bytes; big-endian.
"""

from __future__ import annotations

import gzip
import io
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.data.whole_directory import check_room, is_vacant, manifest_of, written_whole
from superdl.experiments.image_sets import PUBLISHED_SETS
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Layout", "find_published"]

_TRAIN = ("train", "training")
_VAL = ("val", "test", "valid", "testing")
_ANNOTATIONS = "val_annotations.txt"
_SHOWN = 3
_MNIST_PREFIXES = {"train": "train", "val": "t10k"}
_MNIST_PLACES = (".", "raw", "MNIST/raw", "mnist/raw")
_DIGITS = 10
_MAX_IMAGES = 1_000_000  # QMNIST and EMNIST come in this format too, with up to 814,255
_MAX_SIDE = 1024
_FILE_BYTES = 4096

_MnistFiles = dict[str, tuple[Path, Path]]
"""Of each split the files of images and of labels."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of a set's splits; a key list where folders do not tell classes."""

    train: Path
    val: Path | None
    val_key_list: Path | None = None


def find_published(name: str, directory: Path, tell: Callable[[str], None] = lambda _: None) -> Layout | None:
    """Find the set called ``name`` in ``directory``; None if nothing at all is there.

    Raises:
        SourceError: something is there, but not this set, or parts of it are missing or damaged.
        ConfigError: what has to be written beside the set cannot be.

    """
    directory = directory.expanduser().absolute()
    try:
        return _find(name, directory, tell) if any(directory.iterdir()) else None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(
            f"cannot look for {name} in {directory}: {error.strerror}: {error.filename}; data.directory "
            "names a directory that you may read"
        ) from error


def _find(name: str, directory: Path, tell: Callable[[str], None]) -> Layout:
    if name == "mnist":
        files = _find_mnist(directory)
        if files is not None:
            converted = _convert_mnist(files, _beside(directory), tell)
            return Layout(converted / "train", converted / "val")
    train = _class_folders(directory, _TRAIN)
    if train is None:
        raise SourceError(
            f"{directory} holds something, but not {name} as it is published "
            f"({PUBLISHED_SETS[name].layout}): name the directory that has these below it"
        )
    if name == "tiny-imagenet" and (directory / "val" / _ANNOTATIONS).is_file():
        return _with_annotations(directory, train)
    val = _class_folders(directory, _VAL)
    if val is None and any((directory / split).is_dir() for split in _VAL):
        raise SourceError(
            f"the validation images of {directory} are in no class folders, and nothing tells their classes: "
            f"sort them into folders as {PUBLISHED_SETS[name].layout}, or give data.train, data.val and "
            "data.val_key_list"
        )
    return Layout(train, val)


def _class_folders(directory: Path, names: tuple[str, ...]) -> Path | None:
    """The first directory of ``names`` that has folders in it, other than one called images."""
    for name in names:
        try:
            with os.scandir(directory / name) as entries:
                if any(entry.is_dir() and entry.name != "images" for entry in entries):
                    return directory / name
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def _with_annotations(directory: Path, train: Path) -> Layout:
    """Tiny ImageNet, whose validation images lie in one folder: their classes become a key list."""
    labels = _annotations(directory / "val" / _ANNOTATIONS)
    images = directory / "val" / "images"
    if not images.is_dir():
        raise SourceError(f"there is no directory {images}, though {_ANNOTATIONS} is there: unpack it again")
    with os.scandir(images) as entries:
        found = {entry.name for entry in entries}
    absent = sorted(labels.keys() - found)
    if absent:
        raise SourceError(
            f"{images} lacks {len(absent):,} of the {len(labels):,} images that {_ANNOTATIONS} names "
            f"({', '.join(absent[:_SHOWN])}): unpack the archive again"
        )
    content = io.StringIO()
    content.write("key,label\n")
    content.writelines(f"{key},{label}\n" for key, label in sorted(labels.items()))
    key_list = _beside(directory) / "val.csv"
    _write_once(key_list, content.getvalue().encode())
    return Layout(train, images, key_list)


def _annotations(path: Path) -> dict[str, str]:
    """File name -> class, of lines with tabs: file, class, and a box that is not needed here."""
    labels: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        words = line.split("\t")
        plain = all(word and word.isascii() and not set(word) & set('/,"') for word in words[:2])
        if len(words) < 2 or not plain or words[0] in labels:  # noqa: PLR2004  # file and class
            raise SourceError(
                f"{path}, line {number}: not an image's file and its class with a tab between, each image "
                f"once: {line[:80]!r}; unpack the archive again"
            )
        labels[words[0]] = words[1]
    return labels


def _beside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-superdl")


def _write_once(path: Path, content: bytes) -> None:
    """Write a file whole, unless it is there and the same."""
    try:
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.close()
                temporary.chmod(0o644)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the classes of the validation images cannot be written to {path}: {error.strerror}; link the "
            "set into a directory that you may write (ln -s) and name the link"
        ) from error


# --------------------------------------------------------------------------------------------- MNIST


def _find_mnist(directory: Path) -> _MnistFiles | None:
    """Find the four files in a directory, or where torchvision puts them below it; None if none is there."""
    for place in _MNIST_PLACES:
        found = {
            (split, kind): _file(directory / place, f"{prefix}-{kind}")
            for split, prefix in _MNIST_PREFIXES.items()
            for kind in ("images-idx3", "labels-idx1")
        }
        there = {key: path for key, path in found.items() if path is not None}
        if not there:
            continue
        if len(there) < len(found):
            absent = sorted(
                f"{_MNIST_PREFIXES[split]}-{kind}-ubyte" for split, kind in found.keys() - there.keys()
            )
            raise SourceError(
                f"{directory / place} has a part of MNIST; these are not there, as .gz or unpacked: "
                f"{', '.join(absent)}"
            )
        return {
            split: (there[split, "images-idx3"], there[split, "labels-idx1"]) for split in _MNIST_PREFIXES
        }
    return None


def _convert_mnist(files: _MnistFiles, directory: Path, tell: Callable[[str], None]) -> Path:
    """Write the images as ``train/<digit>/*.png`` and ``val/<digit>/*.png`` below ``directory``, once."""
    versions = {
        path.name: [path.stat().st_size, path.stat().st_mtime_ns] for pair in files.values() for path in pair
    }
    manifest = {"name": "mnist", "format": 1, "files": versions}
    if not is_vacant(directory):
        if manifest_of(directory) != manifest:
            raise SourceError(
                f"{directory} is where MNIST is kept as PNG files, and holds something else or another "
                "MNIST: delete it, and it is written again"
            )
        return directory
    total = sum(len(_read_bytes(images, 3)) for images, _ in files.values())
    check_room(
        directory,
        size_bytes=total * _FILE_BYTES,
        files=total,
        what=f"MNIST as {total:,} PNG files",
        less="make mnist-like",
    )
    tell(f"writing MNIST's {total:,} images as PNG files to {directory}, once")
    with written_whole(directory, manifest) as staging:
        for split, (images, labels) in files.items():
            _write_split(images, labels, staging / split)
    return directory


def _file(directory: Path, stem: str) -> Path | None:
    names = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem.replace('-idx', '.idx')}-ubyte")
    return next((directory / name for name in names if (directory / name).is_file()), None)


def _write_split(images: Path, labels: Path, split: Path) -> None:
    from PIL import Image

    pixels, digits = _read_bytes(images, 3), _read_bytes(labels, 1)
    if len(pixels) != len(digits):
        raise SourceError(
            f"{images} has {len(pixels)} images, {labels} {len(digits)} labels: download them again"
        )
    for digit in range(_DIGITS):
        (split / str(digit)).mkdir(parents=True)
    for index, (image, digit) in enumerate(zip(pixels, digits, strict=True)):
        if digit >= _DIGITS:
            raise SourceError(f"{labels}: label {index} is {digit}, no digit: download it again")
        Image.fromarray(image).save(split / str(digit) / f"{index:05d}.png", compress_level=3)


def _read_bytes(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array in one of MNIST's files, which has so many dimensions."""
    import numpy as np  # not for a look at which sets there are

    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            magic = stream.read(4)
            header = stream.read(4 * dimensions)
            if magic != bytes((0, 0, 8, dimensions)) or len(header) != 4 * dimensions:
                raise SourceError(
                    f"{path} begins with {magic.hex()}, not as MNIST's files do: download it again"
                )
            sizes = struct.unpack(f">{dimensions}I", header)
            if not 0 < sizes[0] <= _MAX_IMAGES or any(not 0 < side <= _MAX_SIDE for side in sizes[1:]):
                raise SourceError(f"{path} says that it holds {sizes}, which cannot be: download it again")
            content = stream.read(prod(sizes))
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read ({error}): download it again") from error
    if len(content) != prod(sizes):
        raise SourceError(f"{path} ends too early: download it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)
