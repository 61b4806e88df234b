"""Turn a spec's `data` section into source URLs, and write a missing set first.

Nothing is written into a user's set. Missing parts are written beside it, into ``<directory>-superdl``.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from superdl.experiments.data.making import made_in, make_digits, make_set
from superdl.experiments.data.whole_directory import check_room, written_once
from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS, SPLITS, MadeSet, default_directory
from superdl.experiments.output import write_whole
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from superdl.experiments.spec import DataSpec
    from superdl.super_wire.ids import Versions

_SCHEMES = ("file", "s3")


@dataclass(frozen=True, slots=True)
class Source:
    """The location of a split's samples, with a key list if folders do not list them."""

    url: str
    key_list: str | None = None
    # As in SuperDataset; without classes, the source names them.
    alias: str | None = None
    versions: Versions | None = None
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The sources of a run. Without ``val``, there is no validation."""

    train: Source
    val: Source | None
    note: str | None = None  # identifies the images if the spec allows several


def prepare_data(data: DataSpec, tell: Callable[[str], None] = lambda _: None) -> PreparedData:
    """Return the sources that ``data`` specifies, or find or write its set if it specifies none.

    ``tell`` receives progress messages while a set is written.

    Raises:
        ConfigError: a URL is unknown or contradicts ``data.kind``, or a set cannot be written.
        SourceNotFoundError: a local directory does not exist.
        SourceError: a directory contains something other than the set, or a damaged set.
    """
    if data.train is None:
        if data.kind in PUBLISHED_SETS:
            return _published_or_made(data, tell)
        if data.kind in MADE_SETS:
            return _splits_of(_made(data, MADE_SETS[data.kind], tell))
        return _splits_of(make_digits(data.directory or "data/digits"))
    url = _source_url(data.train, "data.train", data.kind)
    train = Source(url, data.train_key_list, data.train_alias, data.versions)
    if data.val is None:
        return PreparedData(train, None)
    url = _source_url(data.val, "data.val", data.kind)
    return PreparedData(train, Source(url, data.val_key_list, data.val_alias, data.versions))


def _published_or_made(data: DataSpec, tell: Callable[[str], None]) -> PreparedData:
    published = PUBLISHED_SETS[data.kind]
    place = Path(data.directory or Path("data") / published.folder).expanduser().absolute()
    prepared = None if made_in(place) is not None else find_published(data.kind, place, tell)
    if prepared is not None:
        note = f"the images are {data.kind} as published, in {place}"
        if data.samples is not None:
            note += "; all of them are used, since data.samples applies only to drawn sets"
        if prepared.val is None:
            note += "; there are no validation images"
        return replace(prepared, note=note)
    note = (
        f"the published {data.kind} is not in {place} (superdl data list shows the files it needs); the "
        f"images are drawn ones, {published.like}, so accuracies are not comparable with those of the "
        "published set"
    )
    return replace(_splits_of(_made(data, MADE_SETS[published.like], tell)), note=note)


def _made(data: DataSpec, made: MadeSet, tell: Callable[[str], None]) -> Path:
    directory = Path(data.directory or default_directory(made, data.samples)).expanduser()
    samples, seed = data.samples, 0
    # Without samples, a set of any size will do.
    if samples is None:
        standing = made_in(directory)
        if standing is not None and standing.get("name") == made.name:
            samples, seed = standing["counts"]["train"], standing.get("seed", 0)
    return make_set(made, directory, samples=samples, seed=seed, tell=tell)


def _splits_of(directory: Path) -> PreparedData:
    return PreparedData(Source(_file_url(directory / "train")), Source(_file_url(directory / "val")))


def _source_url(value: str, key: str, kind: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not separator:
        if kind == "url":
            raise ConfigError(f"{key} must be a URL (s3://bucket/prefix or file:///path), not {value!r}")
        return _existing(Path(value).expanduser(), key)
    if scheme not in _SCHEMES:
        raise ConfigError(
            f"{key} has the unknown scheme {scheme!r}; allowed: s3://bucket/prefix, file:///path"
        )
    if scheme == "file":
        return _existing(Path(rest), key)
    if kind == "directory":
        raise ConfigError(f"{key} is {value!r}, but data.kind is directory; set data.kind=url")
    return value


def _existing(directory: Path, key: str) -> str:
    if not directory.is_dir():
        raise SourceNotFoundError(f"{key}: there is no directory {directory.absolute()}")
    return _file_url(directory)


def _file_url(directory: Path) -> str:
    """Return the directory's real path as a URL, not percent-encoded, like all sources."""
    return f"file://{directory.resolve()}"


# ------------------------------------------------------------------------------------ published sets

_TRAIN = ("train", "training")
_VAL = ("val", "test", "valid", "testing")
_ANNOTATIONS = "val_annotations.txt"


def find_published(
    name: str, directory: Path, tell: Callable[[str], None] = lambda _: None
) -> PreparedData | None:
    """Find the set ``name`` in ``directory``, or return None if that is empty or missing."""
    directory = directory.expanduser().absolute()
    try:
        if not any(directory.iterdir()):
            return None
        if name in _FILES and (files := _find_arrays(name, directory)) is not None:
            return _convert(name, files, _beside(directory), tell)
        train, val = _class_folders(directory, _TRAIN), _class_folders(directory, _VAL)
        if train is None:
            raise SourceError(
                f"{directory} is not empty, but does not contain {name} as it is published "
                f"({PUBLISHED_SETS[name].layout}): use the directory that contains these files"
            )
        if name == "tiny-imagenet" and (directory / "val" / _ANNOTATIONS).is_file():
            return _with_annotations(directory, train)
        if val is None and any((directory / split).is_dir() for split in _VAL):
            raise SourceError(
                f"the validation images of {directory} are not in class folders, so their classes are "
                f"unknown: sort them into folders as in {PUBLISHED_SETS[name].layout}, or set data.train, "
                "data.val and data.val_key_list"
            )
        return PreparedData(Source(_file_url(train)), None if val is None else Source(_file_url(val)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(
            f"cannot look for {name} in {directory}: {error.strerror} ({error.filename}); set "
            "data.directory to a readable directory"
        ) from error


def _class_folders(directory: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first directory of ``names`` with folders other than ``images``."""
    for name in names:
        try:
            with os.scandir(directory / name) as entries:
                if any(entry.is_dir() and entry.name != "images" for entry in entries):
                    return directory / name
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def _with_annotations(directory: Path, train: Path) -> PreparedData:
    """Write a key list of Tiny ImageNet's validation images, which share one folder."""
    annotations = directory / "val" / _ANNOTATIONS
    # A line has an image's file, its class and a box, separated by tabs.
    rows = [line.split("\t")[:2] for line in annotations.read_text(encoding="utf-8").splitlines()]
    if any(len(row) < 2 for row in rows):  # noqa: PLR2004  # file and class
        raise SourceError(f"{annotations} needs a file and a class in each line: unpack the archive again")
    key_list = _beside(directory) / "val.csv"
    content = "key,label\n" + "".join(f"{key},{label}\n" for key, label in sorted(rows))
    try:
        if not (key_list.is_file() and key_list.read_text(encoding="utf-8") == content):
            key_list.parent.mkdir(exist_ok=True)
            write_whole(content, key_list)
    except OSError as error:
        raise ConfigError(
            f"the classes of the validation images cannot be written to {key_list}: {error.strerror}; link "
            "the set into a writable directory (ln -s) and use the link"
        ) from error
    images = Source(_file_url(directory / "val" / "images"), _file_url(key_list))
    return PreparedData(Source(_file_url(train)), images)


def _beside(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}-superdl")


# ------------------------------------------------------------------------- images in files of arrays

# Files of sets published as arrays, by split: MNIST's images and labels, CIFAR-10's binary batches.
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "mnist": {
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "val": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    },
    "cifar10": {
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "val": ("test_batch.bin",),
    },
}
_PLACES = {"mnist": (".", "raw", "MNIST/raw", "mnist/raw"), "cifar10": (".", "cifar-10-batches-bin")}
_CLASSES = {
    "mnist": [str(digit) for digit in range(10)],
    "cifar10": ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
}
_MNIST_BYTES = 0x800  # type code for bytes; the number of dimensions is added
_CIFAR_ROW_BYTES = 1 + 3 * 32 * 32  # the class, then the planes of red, green and blue
_FILE_BYTES = 4096
_Arrays = tuple["NDArray[np.uint8]", "NDArray[np.uint8]"]


def _find_arrays(name: str, directory: Path) -> dict[str, list[Path]] | None:
    """Find the files of a set in a directory, or where its archive or torchvision puts them."""
    for place in _PLACES[name]:
        splits = {split: [_file(directory / place, file) for file in _FILES[name][split]] for split in SPLITS}
        absent = [path.name for paths in splits.values() for path in paths if not path.is_file()]
        if not absent:
            return splits
        if len(absent) < sum(map(len, splits.values())):
            raise SourceError(
                f"{directory / place} contains only part of {name}; missing, as .gz or unpacked: "
                f"{', '.join(absent)}"
            )
    return None


def _file(directory: Path, name: str) -> Path:
    """Return a file's path, unpacked, compressed or as named by torchvision, else its regular path."""
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    paths = (directory / candidate for candidate in names)
    return next((path for path in paths if path.is_file()), directory / name)


def _convert(
    name: str, files: dict[str, list[Path]], directory: Path, tell: Callable[[str], None]
) -> PreparedData:
    """Write the images once, as PNG files in class folders."""
    known = {path.name: path.stat() for paths in files.values() for path in paths}
    versions = {file: [stat.st_size, stat.st_mtime_ns] for file, stat in known.items()}

    def fill(staging: Path) -> None:
        # CIFAR-10 is read in its binary version: the other would have to be unpickled.
        read = _read_mnist if name == "mnist" else _read_cifar
        splits = {split: read(paths) for split, paths in files.items()}
        total = sum(len(labels) for _, labels in splits.values())
        check_room(directory, total * _FILE_BYTES, f"{name} as {total:,} PNG files")
        tell(f"writing the {total:,} images of {name} as PNG files to {directory}, once")
        for split, (pixels, labels) in splits.items():
            if len(pixels) != len(labels) or labels.max() >= len(_CLASSES[name]):
                raise SourceError(f"the {split} files of {name} do not match: download them again")
            for label in _CLASSES[name]:
                (staging / split / label).mkdir(parents=True)
            for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
                place = staging / split / _CLASSES[name][label] / f"{index:05d}.png"
                Image.fromarray(image).save(place, compress_level=3)

    written_once(directory, {"name": name, "format": 1, "files": versions}, f"{name} as PNG files", fill)
    return _splits_of(directory)


def _read_mnist(paths: Sequence[Path]) -> _Arrays:
    """Read images and labels, which follow a magic number with the dimensions, and the sizes."""
    arrays = []
    for path, dimensions in zip(paths, (3, 1), strict=True):
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                content = stream.read()
            magic, *sizes = struct.unpack_from(f">{dimensions + 1}I", content)
            array = np.frombuffer(content, dtype=np.uint8, offset=4 * (dimensions + 1)).reshape(sizes)
        except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
            raise SourceError(f"{path} cannot be read ({error}): download it again") from error
        if magic != _MNIST_BYTES + dimensions:
            raise SourceError(f"{path} begins with {magic:#x}, unlike the files of MNIST: download it again")
        arrays.append(array)
    return arrays[0], arrays[1]


def _read_cifar(paths: Sequence[Path]) -> _Arrays:
    content = b"".join(path.read_bytes() for path in paths)
    if not content or len(content) % _CIFAR_ROW_BYTES:
        raise SourceError(f"{paths[0].parent} contains no whole CIFAR-10 images: unpack the archive again")
    rows = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_ROW_BYTES)
    return np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), rows[:, 0]
