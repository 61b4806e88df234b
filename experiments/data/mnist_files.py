"""MNIST as it is published, four files of raw bytes, turned once into PNG files in class folders.

The format: a magic number that tells type and dimensions, the dimensions, then the bytes; big-endian,
gzipped or not. Where the files lie in a user's directory is looked up here, where the PNGs go is not.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from superdl.experiments.data.whole_directory import check_room, is_vacant, manifest_of, written_whole
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["MnistFiles", "convert_mnist", "find_mnist"]

_PREFIXES = {"train": "train", "val": "t10k"}
_PLACES = (".", "raw", "MNIST/raw", "mnist/raw")
_CLASSES = 10
_MAX_IMAGES = 1_000_000  # QMNIST and EMNIST come in this format too, with up to 814,255
_MAX_SIDE = 1024
_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class MnistFiles:
    """Of each split the files of images and of labels."""

    splits: Mapping[str, tuple[Path, Path]]


def find_mnist(directory: Path) -> MnistFiles | None:
    """Find the four files in a directory, or where torchvision puts them below it; None if none is there.

    Raises:
        SourceError: some are there and others are not.

    """
    for place in _PLACES:
        found = {
            (split, kind): _file(directory / place, f"{prefix}-{kind}")
            for split, prefix in _PREFIXES.items()
            for kind in ("images-idx3", "labels-idx1")
        }
        there = {key: path for key, path in found.items() if path is not None}
        if not there:
            continue
        if len(there) < len(found):
            absent = sorted(f"{_PREFIXES[split]}-{kind}-ubyte" for split, kind in found.keys() - there.keys())
            raise SourceError(
                f"{directory / place} has a part of MNIST; these are not there, as .gz or unpacked: "
                f"{', '.join(absent)}"
            )
        return MnistFiles(
            {split: (there[split, "images-idx3"], there[split, "labels-idx1"]) for split in _PREFIXES}
        )
    return None


def convert_mnist(files: MnistFiles, directory: Path, tell: Callable[[str], None] = lambda _: None) -> Path:
    """Write the images as ``train/<digit>/*.png`` and ``val/<digit>/*.png`` below ``directory``, once.

    Raises:
        SourceError: a file is damaged, or ``directory`` holds something else.
        ConfigError: ``directory`` cannot be written.

    """
    manifest = {"name": "mnist", "format": 1, "files": {path.name: _version(path) for path in _all(files)}}
    if not is_vacant(directory):
        if manifest_of(directory) != manifest:
            raise SourceError(
                f"{directory} is where MNIST is kept as PNG files, and holds something else or another "
                "MNIST: delete it, and it is written again"
            )
        return directory
    total = sum(_count(images) for images, _ in files.splits.values())
    check_room(
        directory,
        size_bytes=total * _FILE_BYTES,
        files=total,
        what=f"MNIST as {total:,} PNG files",
        less="make mnist-like",
    )
    tell(f"writing MNIST's {total:,} images as PNG files to {directory}, once")
    with written_whole(directory, manifest) as staging:
        for split, (images, labels) in files.splits.items():
            _write_split(images, labels, staging / split)
    return directory


def _file(directory: Path, stem: str) -> Path | None:
    names = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem.replace('-idx', '.idx')}-ubyte")
    return next((directory / name for name in names if (directory / name).is_file()), None)


def _all(files: MnistFiles) -> list[Path]:
    return [path for pair in files.splits.values() for path in pair]


def _version(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _count(path: Path) -> int:
    with _opened(path) as stream:
        return _dimensions(path, stream, 3)[0]


def _write_split(images: Path, labels: Path, split: Path) -> None:
    import numpy as np
    from PIL import Image

    for digit in range(_CLASSES):
        (split / str(digit)).mkdir(parents=True)
    with _opened(images) as pixels, _opened(labels) as answers:
        count, height, width = _dimensions(images, pixels, 3)
        (answered,) = _dimensions(labels, answers, 1)
        if count != answered:
            raise SourceError(f"{images} has {count} images, {labels} {answered} labels: download them again")
        digits = _read(labels, answers, count)
        for index, digit in enumerate(digits):
            if digit >= _CLASSES:
                raise SourceError(f"{labels}: label {index} is {digit}, no digit: download it again")
            content = _read(images, pixels, height * width)
            image = np.frombuffer(content, dtype=np.uint8).reshape(height, width)
            Image.fromarray(image).save(split / str(digit) / f"{index:05d}.png", compress_level=3)


def _opened(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


def _dimensions(path: Path, stream: BinaryIO, expected: int) -> tuple[int, ...]:
    """Read the header of a file of bytes with so many dimensions."""
    magic = _read(path, stream, 4)
    if magic != bytes((0, 0, 8, expected)):
        raise SourceError(f"{path} begins with {magic.hex()}, not as MNIST's files do: download it again")
    sizes = struct.unpack(f">{expected}I", _read(path, stream, 4 * expected))
    if not 0 < sizes[0] <= _MAX_IMAGES or any(not 0 < side <= _MAX_SIDE for side in sizes[1:]):
        raise SourceError(f"{path} says that it holds {sizes}, which cannot be: download it again")
    return sizes


def _read(path: Path, stream: Any, size: int) -> bytes:
    try:
        content: bytes = stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path} cannot be read ({error}): download it again") from error
    if len(content) != size:
        raise SourceError(f"{path} ends too early: download it again")
    return content
